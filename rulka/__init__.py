"""Rulka: a pipeline that teaches a car to race, from human recordings to an evaluated driver.

Importing it registers `rulka/Race-v0` and `rulka/Game-v0` with gymnasium and loads nothing heavier than that.
"""

from gymnasium.envs.registration import register

register(
    id="rulka/Race-v0",
    entry_point="rulka.envs.race:RaceEnv",
    vector_entry_point="rulka.envs.vector:RaceVectorEnv",
)
register(id="rulka/Game-v0", entry_point="rulka.envs.game:GameEnv")
