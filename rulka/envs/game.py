"""The game as a gymnasium environment: the observations, actions, rewards and infos of `rulka/Race-v0`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from rulka.envs.game_race import GameRace
from rulka.envs.picture import RENDER_FPS, RENDER_MODES, check_render_mode, pictures_per_s
from rulka.envs.settings import KEYWORDS, action_space, observation_space, read_settings, read_track
from rulka.game.link import GameLink
from rulka.game.protocol import BASE_PORT
from rulka.observation import num_floats
from rulka.race_settings import RaceSettings
from rulka.schedule import Moment
from rulka.tracks.track import Track

Observation = dict[str, NDArray]
NOT_OF_A_GAME = {"randomisation", "continuous", "races_per_start"} | {
    name for name in KEYWORDS if name.startswith("start_")
}
"""Fields without a keyword: a game puts its car where it does, and its keys are pressed or not."""


class GameEnv(gymnasium.Env[Any, Any]):
    """A race in the game: image [L, H, W] and 184 floats in, one of twelve actions out, every 50 ms of race time.

    With `actions_per_decision=5` an action is five of them, each held for 10 ms, and there are 264 floats.
    A race terminates at the finish or off the track, and is truncated when it takes too long, gets no further, or
    loses its connection (`info["is_crashed"]`). The next `reset` then connects anew; where that fails, it raises.
    """

    metadata: dict[str, Any] = {"render_modes": [*RENDER_MODES], "render_fps": RENDER_FPS}  # noqa: RUF012 as in gymnasium

    def __init__(
        self,
        track: Track | Path | str | None = None,
        port: int = BASE_PORT,
        host: str = "127.0.0.1",
        speed: float = 10.0,
        patience_s: float = 10.0,
        timeout_s: float = 20.0,
        render_mode: str | None = None,
        settings: RaceSettings | None = None,
        **keywords: Any,
    ) -> None:
        """Connects to the game.

        Args:
            track: the line and gates of the map that is open in the game: a track, a slug of the campaign, a track
                file, or None for the generated track of the reference parameters.
            port: where the game's plugin listens.
            host: where it runs.
            speed: factor of the race clock.
            patience_s: how long to go on trying to connect.
            timeout_s: longest wait for a message of the game.
            render_mode: None or "rgb_array", which shows the frame of the agent.
            settings: how races go; None takes the reference parameters.
            **keywords: fields of `RaceSettings` that differ from that, but those of `NOT_OF_A_GAME`.

        Raises:
            SettingsError: if a keyword is unknown or out of range.
            GameError: if there is no game.
        """
        self.settings = read_settings(settings, keywords, KEYWORDS - NOT_OF_A_GAME)
        self.metadata = self.metadata | {"render_fps": pictures_per_s(self.settings.table)}
        self.render_mode = check_render_mode(render_mode)
        self.observation_space = observation_space(self.settings)
        self.action_space = action_space(self.settings)
        link = GameLink(host, port, speed=speed, timeout_s=timeout_s, patience_s=patience_s)
        self.race = GameRace(read_track(track), self.settings, link)
        floats = np.empty((1, num_floats(self.settings.actions_per_decision)), np.float32)
        self._seen = np.empty((1, *self.settings.image_shape), np.uint8), floats, np.empty(1, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Rewinds to the start; see gymnasium's `Env.reset`. Nothing is left to chance, so that a seed does nothing.

        Raises:
            ClosedEnvironmentError: after `close`.
            GameError: if the game is gone and does not come back.
        """
        super().reset(seed=seed, options=options)
        self.race.reset_into(*self._seen, 0)
        return self._observation()

    def step(self, action: int | NDArray[np.int64]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Takes one decision.

        Raises:
            ClosedEnvironmentError: after `close`.
            ResetNeeded: before the first reset, and after the end of a race.
            InvalidAction: if the action is not in the action space.
        """
        self.race.check_open()
        if self.race.scores.num_over:
            message = "the race has ended or not begun; reset the environment before the next step"
            raise ResetNeeded(message)
        result = self.race.step_into(np.asarray(action)[None], *self._seen)
        observation, info = self._observation()
        return observation, float(result.reward[0]), bool(result.terminated[0]), bool(result.truncated[0]), info

    def set_moment(self, moment: Moment) -> None:
        """Tells how far the whole run has come, for rewards by schedule."""
        self.race.set_moment(moment)

    def render(self) -> NDArray[np.uint8] | None:
        """Returns the newest grey image as a picture [H, W, 3], or None without a render mode."""
        self.race.check_open()
        return None if self.render_mode is None else np.repeat(self._seen[0][0, -1, :, :, None], 3, axis=2)

    def close(self) -> None:
        """Hands the game back, and refuses every later step and reset."""
        self.race.close()

    def _observation(self) -> tuple[Observation, dict[str, Any]]:
        image, floats, potential = self._seen
        facts = self.race.scores.facts() | {"potential": potential}
        info = {name: values[0].item() for name, values in facts.items()} | {"is_crashed": self.race.is_crashed}
        return {"image": image[0].copy(), "floats": floats[0].copy()}, info
