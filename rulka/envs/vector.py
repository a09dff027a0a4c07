"""Gymnasium vector environment of many cars. Dimensions: N cars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rulka.contracts.schedule import Moment
from rulka.envs.batch import Observation, RaceBatch, car_generators
from rulka.envs.picture import RENDER_FPS, RENDER_MODES, check_render_mode, pictures_per_s, race_picture
from rulka.envs.scoring import REWARD, TERMINATED, TRUNCATED
from rulka.envs.settings import (
    MASK,
    STATE,
    action_space,
    check_options,
    observation_space,
    read_mask,
    read_places,
    read_track,
)
from rulka.machine.errors import UserError
from rulka.simulator.race_settings import RaceSettings, read_settings
from rulka.tracks.track import Track


class RaceVectorEnv(VectorEnv[Observation, NDArray, NDArray]):
    """Independent cars that race in parallel on one track without seeing each other.

    Autoreset modes are gymnasium's. "Next step": the step after the end of a race resets it, ignores the action and
    returns reward 0; the step that ends it returns the true last observation. "Same step": the ending step resets the
    race; the last observation and info are in `info["final_obs"]` and `info["final_info"]`. "Disabled": the caller
    resets, with `options={"reset_mask": mask}`. Seeded with `s`, car k is bit for bit the `RaceEnv` seeded with
    `s + k`.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 as in gymnasium
        "render_modes": [*RENDER_MODES],
        "render_fps": RENDER_FPS,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        num_envs: int,
        track: Track | Path | str | None = None,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        settings: RaceSettings | None = None,
        **keywords: Any,
    ) -> None:
        """Bakes the track and places the cars.

        Args:
            num_envs: number of cars.
            track: a track, a slug of the campaign, a track file, or None for the generated track of the reference
                parameters.
            render_mode: None or "rgb_array".
            autoreset_mode: see the class; a string is the name or the value of gymnasium's mode.
            settings: of the races; None takes the reference parameters.
            **keywords: fields of `RaceSettings` that override `settings`.

        Raises:
            UserError: if a keyword is unknown or out of range.
        """
        if not isinstance(num_envs, int | np.integer) or isinstance(num_envs, bool) or num_envs < 1:
            raise UserError(f"num_envs is a whole number from 1, got {num_envs!r:.80}")
        self.settings = read_settings(settings, keywords)
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        differing = {"autoreset_mode": self.autoreset_mode, "render_fps": pictures_per_s(self.settings.table)}
        self.metadata = self.metadata | differing
        self.num_envs, self.render_mode = num_envs, check_render_mode(render_mode)
        self.single_observation_space = observation_space(self.settings)
        self.single_action_space = action_space(self.settings)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.batch = RaceBatch(read_track(track), self.settings, num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Resets races; without a seed, each car's generator continues.

        Args:
            seed: car k's generator is seeded with `seed + k`; or a list of one seed per car, None to continue its
                generator.
            options: start poses, see `rulka.simulator.race_start.Starts`; "reset_mask", a bool array of the cars to
                reset while the others continue; or "state", a result of `RaceBatch.state_dict`, including its
                generators unless a seed is given.

        Raises:
            ClosedEnvironmentError: after `close`.
            UserError: if an option or a seed is unknown or wrong.
            SimulatorError: if a start pose is not on the track, or the state belongs to another track.
        """
        given, seeds = check_options(options, (STATE, MASK)), _car_seeds(seed, self.num_envs)
        places, mask = read_places(given, self.num_envs), read_mask(given, self.num_envs)
        super().reset(seed=int(seed) if isinstance(seed, int | np.integer) else None)
        if STATE in given:
            self.batch.load_state_dict(given[STATE])
            self.batch.generators = self._generators(seeds, None)
        elif mask is not None and not self.batch.generators:
            raise UserError(f"the first reset is of all cars; {MASK!r} comes later")
        else:
            self.batch.check_open()
            self.batch.reset(self._generators(seeds, mask), mask, places)
        return self.batch.look()

    def step(self, actions: NDArray) -> tuple[Observation, NDArray, NDArray, NDArray, dict[str, Any]]:
        """Takes one decision for every car; see gymnasium's `VectorEnv.step` and `RaceBatch.advance`.

        Raises:
            ClosedEnvironmentError: after `close`.
            ResetNeeded: before the first reset, or if a race has ended and autoreset is disabled.
            InvalidAction: if an action is not in the action space; no car has moved then.
        """
        batch = self.batch
        if self.autoreset_mode is AutoresetMode.DISABLED:
            batch.check_running()
        batch.advance(actions)
        observation, info = batch.look()
        measures, flags = batch.scores.measures.copy(), batch.scores.flags.copy()
        if self.autoreset_mode is AutoresetMode.SAME_STEP and batch.scores.num_over:
            observation, info = self._begin_next(observation, info)
        return observation, measures[REWARD], flags[TERMINATED], flags[TRUNCATED], info

    def set_moment(self, moment: Moment) -> None:
        """Sets the training progress of the run, for scheduled rewards; see `Scores`."""
        self.batch.set_moment(moment)

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """Returns one picture per car, or None without a render mode."""
        self.batch.check_open()
        if self.render_mode is None:
            return None
        return tuple(race_picture(self.batch, k) for k in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the batch; called by `close`."""
        del kwargs
        self.batch.close()

    def _generators(self, seeds: list[int | None], mask: NDArray[np.bool_] | None) -> list[np.random.Generator]:
        """Returns each car's generator: a new one if it has a seed and is in the mask, else the current one."""
        now = self.batch.generators
        if not now and None in seeds:
            first = int(self.np_random.integers(2**31))
            seeds = [first + k if seed is None else seed for k, seed in enumerate(seeds)]
        return [
            now[k] if seed is None or (mask is not None and not mask[k]) else car_generators(seed, 1)[0]
            for k, seed in enumerate(seeds)
        ]

    def _begin_next(self, last: Observation, last_info: dict[str, Any]) -> tuple[Observation, dict[str, Any]]:
        """Resets races that are over; returns first observations, and info with the old races' last observations."""
        is_over = self.batch.scores.is_over
        self.batch.reset(self.batch.generators, is_over)
        observation, info = self.batch.look()
        final_obs, final_info = np.full(self.num_envs, None, object), {}
        for k in np.flatnonzero(is_over):
            final_obs[k] = {name: values[k].copy() for name, values in last.items()}
        for name, values in last_info.items():
            final_info[name], final_info[f"_{name}"] = np.where(is_over, values, 0).astype(values.dtype), is_over
        finals = {"final_obs": final_obs, "_final_obs": is_over, "final_info": final_info, "_final_info": is_over}
        return observation, info | finals


def _car_seeds(seed: int | Sequence[int | None] | None, num_cars: int) -> list[int | None]:
    """Returns each car's seed, None to continue its generator, or raises UserError."""
    if seed is None:
        return [None] * num_cars
    given: Any = [seed + k for k in range(num_cars)] if _is_seed(seed) else np.asarray(seed, object).tolist()
    if not isinstance(given, list) or len(given) != num_cars or not all(one is None or _is_seed(one) for one in given):
        message = f"seed is a whole number from 0, or a list of {num_cars}, one or None for each car, got {seed!r:.120}"
        raise UserError(message)
    return [None if one is None else int(one) for one in given]


def _is_seed(value: Any) -> TypeGuard[int]:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 0)


def _autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """Returns gymnasium's mode by name or value, case-insensitively, or raises UserError."""
    if isinstance(mode, AutoresetMode):
        return mode
    for known in AutoresetMode:
        if isinstance(mode, str) and mode.lower() in (known.name.lower(), known.value.lower()):
            return known
    raise UserError(f"autoreset_mode {mode!r} is not known; it is one of {[known.value for known in AutoresetMode]}")
