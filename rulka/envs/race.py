"""One car as a gymnasium environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rulka.envs.batch import RaceBatch, observation_space
from rulka.envs.picture import RENDER_FPS, RENDER_MODES, check_render_mode, race_picture
from rulka.envs.settings import RaceOptions, resolve_settings
from rulka.observation import NUM_FLOATS
from rulka.tracks.track import Track

Observation = dict[str, NDArray]


class RaceEnv(gymnasium.Env[Any, Any]):
    """A race against the clock: image [1, H, W] and 184 floats in, one of twelve actions out, every 50 ms.

    The reward pays for progress along the centreline and costs time. A race terminates at the finish or off the
    track, and is truncated when it takes too long or gets no further.
    """

    metadata: dict[str, Any] = {"render_modes": RENDER_MODES, "render_fps": RENDER_FPS}  # noqa: RUF012 as in gymnasium

    def __init__(
        self,
        track: Track | Path | str | None = None,
        render_mode: str | None = None,
        **options: Unpack[RaceOptions],
    ) -> None:
        """Bakes the track and places the car.

        Args:
            track: a track, a track file, or None for the generated track of the reference parameters.
            render_mode: None or "rgb_array".
            **options: see `RaceOptions`.

        Raises:
            SettingsError: if a keyword is unknown or out of range.
        """
        self.settings = resolve_settings(track, options)
        self.render_mode = check_render_mode(render_mode)
        self.observation_space = observation_space(self.settings)
        self.action_space = spaces.Discrete(self.settings.table.num_actions)
        self.batch = RaceBatch(self.settings, 1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts a race; see gymnasium's `Env.reset`."""
        super().reset(seed=seed, options=options)
        self.batch.reset([self.np_random])
        return self._observe()

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Takes one decision.

        Raises:
            ClosedEnvironmentError: after `close`.
            ResetNeeded: before the first reset, and after the end of a race.
            InvalidAction: if the action is not an index of the table.
        """
        self.batch.check_running()
        result = self.batch.step(np.asarray(action)[None])
        observation, info = self._observe()
        return observation, float(result.reward[0]), bool(result.terminated[0]), bool(result.truncated[0]), info

    def render(self) -> NDArray[np.uint8] | None:
        """Returns a picture [480, 640, 3] of the car with speed, time and inputs, or None without a render mode."""
        self.batch.check_open()
        return None if self.render_mode is None else race_picture(self.batch, 0)

    def close(self) -> None:
        """Refuses every later step and reset."""
        self.batch.close()

    def _observe(self) -> tuple[Observation, dict[str, Any]]:
        height, width = self.settings.observation.height, self.settings.observation.width
        image, floats = np.empty((1, 1, height, width), np.uint8), np.empty((1, NUM_FLOATS), np.float32)
        potential = np.empty(1, np.float32)
        self.batch.observe(image, floats, potential)
        facts = self.batch.facts() | {"potential": potential}
        return {"image": image[0], "floats": floats[0]}, {name: values[0].item() for name, values in facts.items()}
