"""A batch of races side by side: what the single and the vector environment have in common.

One kernel call each for physics, judging, floats, potentials and frames. Car k's races depend on its own seed and
actions alone, to the bit, so a batch of one is the single environment. Dimensions: N cars, H x W pixels, F floats.
"""

from __future__ import annotations

import math
from copy import deepcopy

import numpy as np
from gymnasium.error import ClosedEnvironmentError, InvalidAction, ResetNeeded
from gymnasium.utils import seeding
from numpy.typing import NDArray

from rulka.envs import judging, rules
from rulka.envs.options import Places
from rulka.envs.randomising import Randomiser
from rulka.envs.results import SavedRaces, VectorStep
from rulka.envs.rewards import car_frame_velocity, length_of
from rulka.envs.settings import RaceSettings
from rulka.simulator.camera import camera_array
from rulka.simulator.race_end import MILESTONE_M, MILESTONE_MS
from rulka.simulator.render import FrameRenderer
from rulka.simulator.scene import bake_scene
from rulka.simulator.simulator import Simulator, SimulatorError

START_MARGIN_M = 20.0
"""Races that begin anywhere begin at least this far before the finish."""


class RaceBatch:
    """Races of N cars on one track.

    Attributes:
        settings: what is raced.
        scene: the baked track.
        simulator: physics of the cars.
        generators: source of chance of each car; empty before the first `reset`.
        measures: [NUM_MEASURES, N] float32, `race_ms`: [N] int64 and `flags`: [NUM_FLAGS, N] of the last decision, see
            `rulka.envs.judging`; overwritten by the next one.
        num_over: races that are over.
        start_m: [N] where along the centreline each race began, metres; float64 that hold float32, a view.
    """

    def __init__(self, settings: RaceSettings, num_cars: int) -> None:
        self.settings, self.num_cars = settings, num_cars
        self.scene = bake_scene(settings.track)
        self._rules = rules.rule_array(settings.rewards, settings.end, settings.track.length_m)
        self._marks = np.zeros((num_cars, judging.NUM_MARKS))
        self.start_m = self._marks[:, judging.START_M]
        self.measures = np.zeros((judging.NUM_MEASURES, num_cars), np.float32)
        self.race_ms = np.zeros(num_cars, np.int64)
        self.flags = np.zeros((judging.NUM_FLAGS, num_cars), np.bool_)
        self.simulator = Simulator(settings.track, num_cars, settings.simulator, settings.table)
        camera, randomisation = camera_array(settings.simulator.camera), settings.randomisation
        self._randomiser: Randomiser | None = None
        if not randomisation.is_off:
            self._randomiser = Randomiser(randomisation, settings.simulator.camera, num_cars)
            camera = self._randomiser.cameras()
        self._renderer = FrameRenderer(self.simulator.cars, self.simulator.zone_index, self.scene, camera)
        self._drive = self.simulator.step_controls if settings.continuous else self.simulator.step
        self.generators: list[np.random.Generator] = []
        self.num_over = 0
        self._is_closed = False

    def set_env_steps(self, env_steps: int) -> None:
        """Tells how many decisions the whole run has taken: the engineered rewards' weights are those of that step.

        They stay so until the next call; before the first they are those of step 0. Resets and `restore` leave them.
        """
        rules.set_engineered(self._rules, self.settings.rewards, env_steps)

    def reset(
        self,
        generators: list[np.random.Generator],
        which: NDArray[np.bool_] | None = None,
        places: Places | None = None,
    ) -> None:
        """Starts races anew, each from its own source of chance, which later resets go on using.

        Args:
            generators: one for each car.
            which: [N] races to begin; all where not given.
            places: where and how fast to begin, instead of where chance says.

        Raises:
            ClosedEnvironmentError: after `close`.
            SimulatorError: if a place is not on the track.
        """
        self.check_open()
        self.generators = generators
        self._begin(np.ones(self.num_cars, np.bool_) if which is None else which, places or {})
        self._marks[:, judging.IS_OVER] *= False if which is None else ~which
        self.num_over = int(self._marks[:, judging.IS_OVER].sum())

    def restart(self, which: NDArray[np.bool_] | None = None, places: Places | None = None) -> None:
        """Starts races anew, going on with the sources of chance of the last `reset`; see there."""
        self.reset(self.generators, which, places)

    def restart_over(self) -> None:
        """Starts anew every race that is over."""
        if self.num_over:
            self.restart(self.is_over)

    @property
    def is_over(self) -> NDArray[np.bool_]:
        """[N] the race has ended and has not begun anew."""
        return self._marks[:, judging.IS_OVER] > 0.0

    @property
    def is_seeded(self) -> bool:
        """Whether `reset` has been called."""
        return bool(self.generators)

    def advance(self, actions: NDArray) -> None:
        """Takes one decision for every car; where a race has ended, begins the next one instead.

        What came of it is in `measures`, `race_ms` and `flags`.

        Args:
            actions: [N] indices into the action table, [N, K] where decisions are blocks of K of them; where the
                settings say continuous, [N, 3] steer in [-1, 1] (positive right), gas and brake in [0, 1].

        Raises:
            ClosedEnvironmentError: after `close`.
            ResetNeeded: before the first `reset`.
            InvalidAction: if an action is none; no car has moved then.
        """
        if self._is_closed or not self.generators:
            self._refuse_step()
        try:
            self._drive(actions)
        except SimulatorError as error:
            raise InvalidAction(self._describe_refusal(actions)) from error
        if self.num_over:
            self._begin(self.is_over, {})
        self.num_over = self._judge()

    def step(self, actions: NDArray) -> VectorStep:
        """Takes one decision for every car, see `advance`, and returns arrays of its own."""
        self.advance(actions)
        measures, flags = self.measures.copy(), self.flags.copy()
        return VectorStep(
            reward=measures[judging.REWARD],
            terminated=flags[judging.TERMINATED],
            truncated=flags[judging.TRUNCATED],
            is_reset=flags[judging.IS_RESET],
            progress_m=measures[judging.PROGRESS_M],
            start_m=self.start_m.astype(np.float32),
            race_time_ms=self.race_ms.copy(),
            is_finished=flags[judging.FINISHED],
            is_off_track=flags[judging.OFF_TRACK],
            is_full_race=flags[judging.FULL_RACE],
        )

    def observe(
        self, image_out: NDArray[np.uint8], floats_out: NDArray[np.float32], potential_out: NDArray[np.float32]
    ) -> None:
        """Writes images [N, 1, H, W], floats [N, F] and shaping potentials [N] of all cars."""
        simulator = self.simulator
        self._renderer.render(image_out[:, 0])
        if self._randomiser is not None:
            self._randomiser.relight(image_out[:, 0], simulator.time_ms)
        simulator.floats(floats_out)
        judging.find_potentials(
            simulator.cars, simulator.zone_index, self.settings.track.zones, self._rules, potential_out
        )

    def save(self) -> SavedRaces:
        """Returns a copy of the cars, of how their races stand and of their sources of chance."""
        chance = tuple(deepcopy(dict(generator.bit_generator.state)) for generator in self.generators)
        return SavedRaces(self.simulator.save(), self._marks.copy(), self._draws().copy(), chance)

    def restore(self, saved: SavedRaces) -> None:
        """Puts all races back to what `save` returned, bit for bit; resets then go on drawing from there.

        Args:
            saved: of this or another batch with the same track, number of cars and settings.

        Raises:
            ClosedEnvironmentError: after `close`.
            SimulatorError: if it is of another track or number of cars, or of other settings.
        """
        self.check_open()
        if saved.marks.shape != self._marks.shape or len(saved.chance) not in (0, self.num_cars):
            message = f"saved races of {len(saved.marks)} cars do not fit a batch of {self.num_cars}"
            raise SimulatorError(message)
        if saved.draws.shape != self._draws().shape:
            message = "the races were saved with domain randomisation and this environment has none, or the reverse"
            raise SimulatorError(message)
        self.simulator.restore(saved.cars)
        self._marks[:] = saved.marks
        if self._randomiser is not None:
            self._randomiser.draws[:] = saved.draws
            self._renderer.cameras[:] = self._randomiser.cameras()
        self.num_over = int(self.is_over.sum())
        # New generators: those in use may belong to an environment, which goes on with its own.
        self.generators = [np.random.Generator(np.random.PCG64(0)) for _ in saved.chance]
        for generator, state in zip(self.generators, saved.chance, strict=True):
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
        if self.num_over:
            message = "the race has ended; reset the environment before the next step"
            raise ResetNeeded(message)

    def facts(self) -> dict[str, NDArray]:
        """Returns the info of all cars: arrays of N entries."""
        simulator = self.simulator
        return {
            "progress_m": self.progress_m,
            "start_m": self.start_m.astype(np.float32),
            "time_ms": self.race_time_ms,
            "is_finished": simulator.is_finished.copy(),
            "is_off_track": simulator.is_off_track & ~simulator.is_finished,
        }

    @property
    def progress_m(self) -> NDArray[np.float32]:
        """[N] furthest distance along the centreline in this race."""
        return self._marks[:, judging.FURTHEST_M].astype(np.float32)

    @property
    def race_time_ms(self) -> NDArray[np.int64]:
        """[N] time since the start; of a finished race its time to the millisecond."""
        simulator = self.simulator
        return np.where(simulator.is_finished, simulator.gate_time_ms[:, -1], simulator.time_ms)

    def _judge(self) -> int:
        """Judges the last decision of every car; see `rulka.envs.judging.judge`."""
        view, zones = self.simulator.view, self.settings.track.zones
        return judging.judge(
            view.progress,
            view.marks,
            view.has_gone,
            self._rules,
            view.rows,
            view.previous_keys,
            zones,
            self._marks,
            self.measures,
            self.race_ms,
            self.flags,
        )

    def _refuse_step(self) -> None:
        self.check_open()
        message = "reset the environment before stepping it"
        raise ResetNeeded(message)

    def _describe_refusal(self, actions: NDArray) -> str:
        if self.settings.continuous:
            wanted = f"{self.num_cars} rows of steer in [-1, 1], gas and brake in [0, 1]"
        else:
            count = " x ".join(map(str, (self.num_cars, *self.settings.table.decision_shape)))
            wanted = f"{count} whole numbers from 0 to {self.settings.table.num_actions - 1}"
        return f"actions must be {wanted}, got {actions!r:.200}"

    def _draws(self) -> NDArray[np.float64]:
        return np.zeros((self.num_cars, 0)) if self._randomiser is None else self._randomiser.draws

    def _begin(self, which: NDArray[np.bool_], places: Places) -> None:
        """Puts chosen cars where they are told or their generators say and starts their clocks."""
        chance = np.zeros((self.num_cars, 4))
        for k in np.flatnonzero(which):
            chance[k] = self.generators[k].random(4)
        settings = self.settings
        is_anywhere = chance[:, 0] < settings.start_anywhere
        drawn: Places = {
            "along_m": is_anywhere * chance[:, 1] * max(settings.track.length_m - START_MARGIN_M, 0.0),
            "lateral_m": (2.0 * chance[:, 2] - 1.0) * settings.start_lateral_m,
            "heading_rad": (2.0 * chance[:, 3] - 1.0) * math.radians(settings.start_heading_deg),
            "speed_mps": is_anywhere * settings.start_speed_mps,
        }
        self.simulator.reset(which, **(drawn | places))
        if self._randomiser is not None:
            self._randomiser.draw(which, self.generators)
            self.simulator.set_friction(which, self._randomiser.friction())
            self._renderer.cameras[:] = self._randomiser.cameras()
        is_full = places["along_m"] <= 0.0 if "along_m" in places else ~is_anywhere
        along_m = np.minimum(self.simulator.along_m, settings.track.length_m)
        marks = self._marks
        marks[which, judging.IS_FULL_RACE] = is_full[which]
        marks[which, judging.FURTHEST_M] = marks[which, MILESTONE_M] = along_m[which]
        marks[which, MILESTONE_MS] = 0.0
        marks[which, judging.START_M] = along_m[which].astype(np.float32)
        if self.settings.rewards.speed_as_seconds:
            marks[which, judging.SPEED_MPS] = length_of(car_frame_velocity(self.simulator.cars[which]))


def car_generators(seed: int, num_cars: int) -> list[np.random.Generator]:
    """Returns one source of chance for each car; car k's is that of a single environment seeded with `seed + k`."""
    return [seeding.np_random(seed + k)[0] for k in range(num_cars)]
