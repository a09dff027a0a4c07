"""A batch of races side by side: what the single and the vector environment have in common.

One kernel call each for physics, floats and frames. Car k's races depend on its own seed and actions alone, to the
bit, so a batch of one is the single environment. Dimensions: N cars, H x W pixels, F floats.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError, InvalidAction, ResetNeeded
from gymnasium.utils import seeding
from numpy.typing import NDArray

from rulka.envs.rewards import decision_reward, potential
from rulka.envs.settings import RaceSettings
from rulka.observation import CAR, NUM_FLOATS
from rulka.simulator.camera import camera_array
from rulka.simulator.render import POSE_SIZE, render_frames
from rulka.simulator.scene import bake_scene
from rulka.simulator.simulator import Simulator, SimulatorError

START_MARGIN_M = 20.0
"""Races that begin anywhere begin at least this far before the finish."""
FLOAT_LIMIT = 1e6
"""Bound of the float observations' space; no honest value comes near it."""


@dataclass(frozen=True)
class VectorStep:
    """What one decision of every car led to. All arrays have N entries.

    Attributes:
        reward: float32, without shaping; 0 where the decision was swallowed by a reset.
        terminated: the race ended for good: finished or off the track.
        truncated: the race was cut by a limit.
        is_reset: the decision was swallowed by a reset, the observation is the first of a new race.
        progress_m: float32 furthest distance along the centreline.
        race_time_ms: int64 time since the start; of a finished race its time to the millisecond.
        is_finished: the finish was crossed.
        is_off_track: the car left the track.
        is_full_race: the race began at the start line.
    """

    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    is_reset: NDArray[np.bool_]
    progress_m: NDArray[np.float32]
    race_time_ms: NDArray[np.int64]
    is_finished: NDArray[np.bool_]
    is_off_track: NDArray[np.bool_]
    is_full_race: NDArray[np.bool_]


@dataclass(frozen=True)
class SavedRaces:
    """Everything that the future of a batch of races depends on; plain arrays and numbers, fit for another process.

    Attributes:
        cars: [N, K] float64 rows of `Simulator.save`.
        marks: [N, 5] float64 race is over, began at the start line, furthest metre, furthest zone, time of the last
            new zone in ms.
        chance: N states of the sources of chance, empty where the batch was never reset.
    """

    cars: NDArray[np.float64]
    marks: NDArray[np.float64]
    chance: tuple[dict[str, Any], ...]


class RaceBatch:
    """Races of N cars on one track, each reset by the step after its end.

    Attributes:
        settings: what is raced.
        scene: the baked track.
        simulator: physics of the cars.
    """

    def __init__(self, settings: RaceSettings, num_cars: int) -> None:
        self.settings, self.num_cars = settings, num_cars
        self.scene, self._camera = bake_scene(settings.track), camera_array(settings.simulator.camera)
        self.simulator = Simulator(settings.track, num_cars, settings.simulator, settings.table)
        self._generators: list[np.random.Generator] = []
        self._is_over = np.zeros(num_cars, np.bool_)
        self._is_full_race = np.zeros(num_cars, np.bool_)
        self._furthest_m = np.zeros(num_cars)
        self._furthest_zone = np.zeros(num_cars, np.int64)
        self._progress_ms = np.zeros(num_cars, np.int64)
        self._is_closed = False

    def reset(self, generators: list[np.random.Generator]) -> None:
        """Starts all races anew, each from its own source of chance, which later resets go on using."""
        self.check_open()
        self._generators = generators
        self._begin(np.ones(self.num_cars, np.bool_))

    def restart(self) -> None:
        """Starts all races anew, going on with the sources of chance of the last `reset`."""
        self.check_open()
        self._begin(np.ones(self.num_cars, np.bool_))

    @property
    def is_seeded(self) -> bool:
        """Whether `reset` has been called."""
        return bool(self._generators)

    def step(self, actions: NDArray[np.int64]) -> VectorStep:
        """Takes one decision for every car; where a race has ended, begins the next one instead.

        Args:
            actions: [N] indices into the action table.

        Raises:
            ClosedEnvironmentError: after `close`.
            ResetNeeded: before the first `reset`.
            InvalidAction: if an action is not an index of the table.
        """
        self.check_open()
        if not self.is_seeded:
            message = "reset the environment before stepping it"
            raise ResetNeeded(message)
        chosen = self._checked(actions)
        is_reset = self._is_over
        before_m, before_ms = self._along_m(), self.simulator.time_ms.copy()
        self.simulator.step(chosen)
        self._begin(is_reset)
        return self._judge(is_reset, before_m, before_ms)

    def observe(
        self, image_out: NDArray[np.uint8], floats_out: NDArray[np.float32], potential_out: NDArray[np.float32]
    ) -> None:
        """Writes images [N, 1, H, W], floats [N, F] and shaping potentials [N] of all cars."""
        simulator = self.simulator
        render_frames(simulator.cars[:, :POSE_SIZE], simulator.zone_index, self.scene, self._camera, image_out[:, 0])
        simulator.floats(floats_out)
        offset = simulator.cars[:, CAR["position"]] - self.settings.track.zones[simulator.zone_index]
        potential_out[:] = potential(np.sqrt((offset * offset).sum(axis=1)), self.settings.rewards)

    def save(self) -> SavedRaces:
        """Returns a copy of the cars, of how their races stand and of their sources of chance."""
        marks = (self._is_over, self._is_full_race, self._furthest_m, self._furthest_zone, self._progress_ms)
        chance = tuple(deepcopy(dict(generator.bit_generator.state)) for generator in self._generators)
        return SavedRaces(self.simulator.save(), np.stack(marks, axis=1).astype(np.float64), chance)

    def restore(self, saved: SavedRaces) -> None:
        """Puts all races back to what `save` returned, bit for bit; resets then go on drawing from there.

        Args:
            saved: of this or another batch with the same track, number of cars and settings.

        Raises:
            ClosedEnvironmentError: after `close`.
            SimulatorError: if it is of another track or number of cars.
        """
        self.check_open()
        if saved.marks.shape != (self.num_cars, 5) or len(saved.chance) not in (0, self.num_cars):
            message = f"saved races of {len(saved.marks)} cars do not fit a batch of {self.num_cars}"
            raise SimulatorError(message)
        self.simulator.restore(saved.cars)
        is_over, is_full, furthest_m, zone, progress_ms = saved.marks.T
        self._is_over, self._is_full_race, self._furthest_m = is_over > 0.0, is_full > 0.0, furthest_m.copy()
        self._furthest_zone, self._progress_ms = zone.astype(np.int64), progress_ms.astype(np.int64)
        # New generators: those in use may belong to an environment, which goes on with its own.
        self._generators = [np.random.Generator(np.random.PCG64(0)) for _ in saved.chance]
        for generator, state in zip(self._generators, saved.chance, strict=True):
            generator.bit_generator.state = state

    def close(self) -> None:
        """Refuses every later step and reset."""
        self._is_closed = True

    def check_open(self) -> None:
        """Raises ClosedEnvironmentError after `close`."""
        if self._is_closed:
            message = "the environment is closed; make a new one"
            raise ClosedEnvironmentError(message)

    def check_running(self) -> None:
        """Raises ResetNeeded where a race has ended; for those who reset by themselves."""
        if self._is_over.any():
            message = "the race has ended; reset the environment before the next step"
            raise ResetNeeded(message)

    def facts(self) -> dict[str, NDArray]:
        """Returns the info of all cars: arrays of N entries."""
        simulator = self.simulator
        return {
            "progress_m": self.progress_m,
            "time_ms": self.race_time_ms,
            "is_finished": simulator.is_finished.copy(),
            "is_off_track": simulator.is_off_track & ~simulator.is_finished,
        }

    @property
    def progress_m(self) -> NDArray[np.float32]:
        """[N] furthest distance along the centreline in this race."""
        return self._furthest_m.astype(np.float32)

    @property
    def race_time_ms(self) -> NDArray[np.int64]:
        """[N] time since the start; of a finished race its time to the millisecond."""
        simulator = self.simulator
        return np.where(simulator.is_finished, simulator.gate_time_ms[:, -1], simulator.time_ms)

    def _along_m(self) -> NDArray[np.float64]:
        return np.minimum(self.simulator.along_m, self.settings.track.length_m).astype(np.float64)

    def _checked(self, actions: NDArray[np.int64]) -> NDArray[np.int64]:
        array = np.asarray(actions)
        num_actions = self.settings.table.num_actions
        is_index = array.dtype.kind in "iu" and array.shape == (self.num_cars,)
        if not is_index or (array < 0).any() or (array >= num_actions).any():
            message = f"actions must be {self.num_cars} whole numbers from 0 to {num_actions - 1}, got {actions!r:.200}"
            raise InvalidAction(message)
        return array.astype(np.int64)

    def _begin(self, which: NDArray[np.bool_]) -> None:
        """Puts chosen cars where their generators say and starts their clocks."""
        if not which.any():
            return
        chance = np.zeros((self.num_cars, 4))
        for k in np.flatnonzero(which):
            chance[k] = self._generators[k].random(4)
        settings = self.settings
        is_anywhere = chance[:, 0] < settings.start_anywhere
        along_m = is_anywhere * chance[:, 1] * max(settings.track.length_m - START_MARGIN_M, 0.0)
        lateral_m = (2.0 * chance[:, 2] - 1.0) * settings.start_lateral_m
        heading_rad = (2.0 * chance[:, 3] - 1.0) * np.deg2rad(settings.start_heading_deg)
        self.simulator.reset(which, along_m, lateral_m, heading_rad, 0.0)
        self._is_full_race = np.where(which, ~is_anywhere, self._is_full_race)
        self._furthest_m = np.where(which, self._along_m(), self._furthest_m)
        self._furthest_zone = np.where(which, self.simulator.zone_index, self._furthest_zone)
        self._progress_ms = np.where(which, 0, self._progress_ms)
        self._is_over = self._is_over & ~which

    def _judge(
        self, is_reset: NDArray[np.bool_], before_m: NDArray[np.float64], before_ms: NDArray[np.int64]
    ) -> VectorStep:
        """Finds out which races ended and what the decisions were worth."""
        simulator, settings = self.simulator, self.settings
        along_m, zone, now_ms = self._along_m(), simulator.zone_index, self.race_time_ms
        self._furthest_m = np.maximum(self._furthest_m, along_m)
        self._progress_ms = np.where(zone > self._furthest_zone, now_ms, self._progress_ms)
        self._furthest_zone = np.maximum(self._furthest_zone, zone)
        is_finished, is_off_track = simulator.is_finished.copy(), simulator.is_off_track & ~simulator.is_finished
        terminated = is_finished | is_off_track
        is_late = now_ms >= settings.max_race_s * 1000.0
        is_stuck = now_ms - self._progress_ms >= settings.no_progress_s * 1000.0
        truncated = ~terminated & ~is_reset & (is_late | is_stuck)
        reward = decision_reward(along_m - before_m, (now_ms - before_ms) / 1000.0, is_off_track, settings.rewards)
        self._is_over = terminated | truncated
        return VectorStep(
            reward=np.where(is_reset, np.float32(0.0), reward),
            terminated=terminated,
            truncated=truncated,
            is_reset=is_reset,
            progress_m=self.progress_m,
            race_time_ms=now_ms,
            is_finished=is_finished,
            is_off_track=is_off_track,
            is_full_race=self._is_full_race.copy(),
        )


def car_generators(seed: int, num_cars: int) -> list[np.random.Generator]:
    """Returns one source of chance for each car; car k's is that of a single environment seeded with `seed + k`."""
    return [seeding.np_random(seed + k)[0] for k in range(num_cars)]


def observation_space(settings: RaceSettings) -> spaces.Dict:
    """Returns the space of one car's observation."""
    shape = (1, settings.observation.height, settings.observation.width)
    return spaces.Dict(
        {
            "image": spaces.Box(0, 255, shape, np.uint8),
            "floats": spaces.Box(-FLOAT_LIMIT, FLOAT_LIMIT, (NUM_FLOATS,), np.float32),
        }
    )
