"""The gymnasium spaces of a race: what a car sees and what it may do."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from rulka.envs.settings import RaceSettings
from rulka.observation import num_floats

FLOAT_LIMIT = 1e6
"""Bound of the float observations' space; no honest value comes near it."""


def action_space(settings: RaceSettings) -> spaces.Space[Any]:
    """Returns the space of one car's action."""
    if settings.continuous:
        return spaces.Box(np.array([-1.0, 0.0, 0.0], np.float32), np.ones(3, np.float32), dtype=np.float32)
    if settings.table.actions_per_decision > 1:
        return spaces.MultiDiscrete([settings.table.num_actions] * settings.table.actions_per_decision)
    return spaces.Discrete(settings.table.num_actions)


def observation_space(settings: RaceSettings) -> spaces.Dict:
    """Returns the space of one car's observation."""
    shape = (1, settings.observation.height, settings.observation.width)
    return spaces.Dict(
        {
            "image": spaces.Box(0, 255, shape, np.uint8),
            "floats": spaces.Box(
                -FLOAT_LIMIT, FLOAT_LIMIT, (num_floats(settings.table.actions_per_decision),), np.float32
            ),
        }
    )
