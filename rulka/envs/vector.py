"""Many cars as one gymnasium vector environment: one kernel call a step for physics, floats and frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rulka.envs.batch import RaceBatch, VectorStep, car_generators, observation_space
from rulka.envs.picture import RENDER_FPS, RENDER_MODES, check_render_mode, race_picture
from rulka.envs.settings import RaceOptions, resolve_settings
from rulka.observation import NUM_FLOATS
from rulka.tracks.track import Track

Observation = dict[str, NDArray]


class RaceVectorEnv(VectorEnv[Observation, NDArray, NDArray]):
    """Cars that race side by side on one track without seeing each other.

    A race that has ended is reset by the next step, whose action is ignored and whose reward is 0 (autoreset mode
    "next step"); the step that ends it returns its true last observation. Seeded with `s`, car k is bit for bit the
    `RaceEnv` seeded with `s + k`.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 as in gymnasium
        "render_modes": RENDER_MODES,
        "render_fps": RENDER_FPS,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        num_envs: int,
        track: Track | Path | str | None = None,
        render_mode: str | None = None,
        **options: Unpack[RaceOptions],
    ) -> None:
        """Bakes the track and places the cars.

        Args:
            num_envs: number of cars.
            track: a track, a track file, or None for the generated track of the reference parameters.
            render_mode: None or "rgb_array".
            **options: see `RaceOptions`.

        Raises:
            SettingsError: if a keyword is unknown or out of range.
        """
        self.settings = resolve_settings(track, options)
        self.num_envs, self.render_mode = num_envs, check_render_mode(render_mode)
        self.single_observation_space = observation_space(self.settings)
        self.single_action_space = spaces.Discrete(self.settings.table.num_actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.batch = RaceBatch(self.settings, num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts all races anew; without a seed, from where each car's source of chance has come to."""
        del options
        super().reset(seed=seed)
        self._restart(seed)
        observation, potential = self._observe()
        return observation, self._info(potential)

    def step(self, actions: NDArray) -> tuple[Observation, NDArray, NDArray, NDArray, dict[str, Any]]:
        """Takes one decision for every car; see gymnasium's `VectorEnv.step` and `RaceBatch.step`."""
        result = self.batch.step(actions)
        observation, potential = self._observe()
        return observation, result.reward, result.terminated, result.truncated, self._info(potential)

    def reset_into(
        self,
        image_out: NDArray[np.uint8],
        floats_out: NDArray[np.float32],
        potential_out: NDArray[np.float32],
        seed: int,
    ) -> None:
        """Starts all races anew and writes images [N, 1, H, W], floats [N, 184] and potentials [N]; copies nothing."""
        self._restart(seed)
        self.batch.observe(image_out, floats_out, potential_out)

    def step_into(
        self,
        actions: NDArray[np.int64],
        image_out: NDArray[np.uint8],
        floats_out: NDArray[np.float32],
        potential_out: NDArray[np.float32],
    ) -> VectorStep:
        """Takes one decision for every car and writes what they see then; see `RaceBatch.step` for the errors."""
        result = self.batch.step(actions)
        self.batch.observe(image_out, floats_out, potential_out)
        return result

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """Returns one picture for each car, or None without a render mode."""
        self.batch.check_open()
        if self.render_mode is None:
            return None
        return tuple(race_picture(self.batch, k) for k in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the batch; called by `close`."""
        del kwargs
        self.batch.close()

    def _restart(self, seed: int | None) -> None:
        if seed is None and self.batch.is_seeded:
            self.batch.restart()
            return
        first = int(self.np_random.integers(2**31)) if seed is None else seed
        self.batch.reset(car_generators(first, self.num_envs))

    def _observe(self) -> tuple[Observation, NDArray[np.float32]]:
        height, width = self.settings.observation.height, self.settings.observation.width
        image = np.empty((self.num_envs, 1, height, width), np.uint8)
        floats, potential = np.empty((self.num_envs, NUM_FLOATS), np.float32), np.empty(self.num_envs, np.float32)
        self.batch.observe(image, floats, potential)
        return {"image": image, "floats": floats}, potential

    def _info(self, potential: NDArray[np.float32]) -> dict[str, Any]:
        return self.batch.facts() | {"potential": potential}
