"""Batch of parallel races, used by collectors and by the single and vector environments.

Physics, scoring, floats, potentials and frames take one kernel call each. Car k's races depend bit for bit only on its
own seed and actions, so a batch of one is the single environment. Dimensions: N cars, L stacked frames, H x W pixels,
F floats.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError, InvalidAction, ResetNeeded
from gymnasium.utils import seeding
from numpy.typing import ArrayLike, NDArray

from rulka.contracts.observation import num_floats, places_and_speeds
from rulka.contracts.schedule import Moment
from rulka.contracts.step_results import Floats, Images, StepResult
from rulka.envs.randomising import NUM_VARIANTS, physics_variants
from rulka.envs.scoring import Scores
from rulka.envs.starts import EarlierStates, EqualStarts
from rulka.machine.errors import UserError
from rulka.simulator.frame_stack import FrameStack
from rulka.simulator.race_settings import RaceSettings
from rulka.simulator.race_start import ALONG, NUM_UNIFORMS, draw_starts, starts_from_saved_state
from rulka.simulator.render import FrameRenderer, camera_array
from rulka.simulator.scene import bake_scene
from rulka.simulator.simulator import Simulator, SimulatorError
from rulka.tracks.track import Track

Observation = dict[str, NDArray]
SETTING_OF = {
    "counters": "number of cars",
    "earlier": "`start_from_earlier`",
    "frames": "number or size of frames",
    "starts": "`races_per_start` or domain randomisation",
}
"""Setting that determines the shape of each part of a batch's state."""


class RacingCars(ABC):
    """N racing cars, in the simulator or in a game; the interface for collectors and environments.

    Attributes:
        settings: of the races.
        num_cars: N.
        scores: state of the races, and results of the last decision.
    """

    settings: RaceSettings
    num_cars: int
    scores: Scores
    _is_closed = False

    @abstractmethod
    def advance(self, actions: ArrayLike) -> None:
        """Takes one decision for every car; a car whose race has ended is reset instead (autoreset).

        The results are in `scores`.

        Args:
            actions: [N] indices into the action table; [N, K] if decisions are chunks of K actions; if the settings are
                continuous, [N, 3] steer in [-1, 1] (positive right), gas and brake in [0, 1].

        Raises:
            ClosedEnvironmentError: after `close`.
            ResetNeeded: before the first `reset`.
            InvalidAction: if an action is invalid; no car has moved then.
        """

    @abstractmethod
    def observe(self, image_out: Images, floats_out: Floats, potential_out: Floats) -> None:
        """Writes images [N, L, H, W], floats [N, F] and shaping potentials [N] of all cars."""

    def step(self, actions: ArrayLike) -> StepResult:
        """Takes one decision for every car, see `advance`, and returns the results as new arrays."""
        self.advance(actions)
        return self.scores.result()

    def step_into(self, actions: NDArray, image_out: Images, floats_out: Floats, potential_out: Floats) -> StepResult:
        """Takes one decision for every car, see `step`, and writes the next observations; see `observe`."""
        result = self.step(actions)
        self.observe(image_out, floats_out, potential_out)
        return result

    def look(self) -> tuple[Observation, dict[str, NDArray]]:
        """Returns images and floats by name, and the info of all cars, as new arrays; see `observe`."""
        image = np.empty((self.num_cars, *self.settings.image_shape), np.uint8)
        floats = np.empty((self.num_cars, num_floats(self.settings.table.actions_per_decision)), np.float32)
        potential = np.empty(self.num_cars, np.float32)
        self.observe(image, floats, potential)
        return {"image": image, "floats": floats}, self.scores.facts() | {"potential": potential}

    def set_moment(self, moment: Moment) -> None:
        """Sets the training progress of the run, for scheduled rewards; see `Scores`."""
        self.scores.set_moment(moment)

    def close(self) -> None:
        """Closes the batch: later steps and resets raise."""
        self._is_closed = True

    def check_open(self) -> None:
        """Raises ClosedEnvironmentError after `close`."""
        if self._is_closed:
            raise ClosedEnvironmentError("the environment is closed; make a new one")

    def check_running(self) -> None:
        """Raises ResetNeeded if a race has ended; for environments without autoreset."""
        self.check_open()
        if self.scores.num_over:
            raise ResetNeeded("the race has ended; reset the environment before the next step")


class RaceBatch(RacingCars):
    """Races of N cars on one track; see `rulka.runtime.collector.CarBatch`.

    Attributes:
        track: of all races.
        scene: the baked track.
        simulator: physics of the cars.
        generators: one per car, for its starts; cars with equal starts use that of the first car of their group. Empty
            before the first `reset`.
    """

    def __init__(self, track: Track, settings: RaceSettings, num_cars: int) -> None:
        self.track, self.settings, self.num_cars = track, settings, num_cars
        self.scene = bake_scene(track)
        variants = physics_variants(settings.simulator.physics, settings.randomisation.physics)
        self.simulator = Simulator(track, num_cars, settings.simulator, settings.table, variants)
        self.scores = Scores(settings, track, self.simulator.view)
        camera = camera_array(settings.simulator.camera)
        self._renderer = FrameRenderer(self.simulator.cars, self.simulator.zone_index, self.scene, camera)
        self._drive = self.simulator.step_controls if settings.continuous else self.simulator.step
        self._earlier: EarlierStates | None = None
        if settings.start_from_earlier > 0.0:
            self._earlier = EarlierStates(self.simulator.save(), len(track.gate_m), track.length_m)
        if num_cars % settings.races_per_start:
            raise SimulatorError(f"{num_cars} cars are no multiple of races_per_start {settings.races_per_start}")
        self._has_variants = len(variants) > 0
        self._starts = EqualStarts(num_cars, settings.races_per_start, NUM_UNIFORMS + self._has_variants)
        self.generators: list[np.random.Generator] = []
        self._frame_stack: FrameStack | None = None
        if settings.image.frames > 1 and settings.image.shows_image:
            self._frame_stack = FrameStack(num_cars, settings.image_shape)
        self._has_moved, self._has_begun = False, np.ones(num_cars, np.bool_)
        none = np.zeros((num_cars, 0))
        self._kept = {
            "counters": self.scores.counters,
            "earlier": none if self._earlier is None else self._earlier.rows,
            "frames": none if self._frame_stack is None else self._frame_stack.stack,
            "starts": self._starts.rows,
        }

    def reset(
        self,
        generators: list[np.random.Generator],
        which: NDArray[np.bool_] | None = None,
        places: Mapping[str, NDArray[np.floating]] | None = None,
    ) -> None:
        """Resets races, each from its own generator.

        Args:
            generators: one per car.
            which: [N] mask of races to reset; None resets all.
            places: fields of `Starts` that are given instead of drawn.

        Raises:
            ClosedEnvironmentError: after `close`.
            SimulatorError: if a start pose is not on the track.
        """
        self.check_open()
        if self._earlier is not None and self.generators:
            self._earlier.clear([new is not old for new, old in zip(generators, self.generators, strict=True)])
        self.generators = generators
        if which is None:
            self._starts.begin_anew()
        self._begin(np.ones(self.num_cars, np.bool_) if which is None else which, places or {})
        self.scores.set_over(np.zeros(self.num_cars, np.bool_) if which is None else self.scores.is_over & ~which)

    def reset_into(self, image_out: Images, floats_out: Floats, potential_out: Floats, seed: int) -> None:
        """Resets all races, car k with `seed + k`, and writes the first observations; see `observe`."""
        self.reset(car_generators(seed, self.num_cars))
        self.observe(image_out, floats_out, potential_out)

    def advance(self, actions: ArrayLike) -> None:
        """Takes one decision for every car; see `RacingCars.advance`."""
        if self._is_closed or not self.generators:
            self.check_open()
            raise ResetNeeded("reset the environment before stepping it")
        try:
            self._drive(actions)
        except SimulatorError as error:
            raise InvalidAction(str(error)) from error
        self._has_moved = True
        if self.scores.num_over:
            self._begin(self.scores.is_over, {})
        self.scores.score()
        if self._earlier is not None:
            self._earlier.note(self.simulator, self.scores.is_over)

    def observe(self, image_out: Images, floats_out: Floats, potential_out: Floats) -> None:
        """Writes images [N, L, H, W], floats [N, F] and shaping potentials [N] of all cars.

        If images are withheld from agents, they are black and not rendered.
        """
        if not self.settings.image.shows_image:
            image_out[:] = 0
        elif self._frame_stack is None:
            self._renderer.render(image_out[:, 0])
        else:
            self._renderer.render(self._frame_stack.newest)
            self._frame_stack.push(self._has_moved, self._has_begun)
            image_out[:] = self._frame_stack.stack
            self._has_moved, self._has_begun[:] = False, False
        self.simulator.floats(floats_out)
        self.scores.find_potentials(potential_out)

    def cars(self) -> Floats:
        """Returns world position in metres and speed in m/s [N, 4]."""
        return places_and_speeds(self.simulator.cars)

    def state_dict(self) -> dict[str, Any]:
        """Returns a copy of the complete state of the races, plain arrays and numbers by name.

        `cars` holds rows of `Simulator.save`, `counters` the episode counters (`rulka.envs.scoring`), `earlier` the
        saved start states and `starts` the equal starts (`rulka.envs.starts`), `frames` the stacked frames, `chance`
        the RNG states. Parts that the settings do not use are empty, and so is `chance` before the first reset.
        """
        chance = tuple(deepcopy(dict(generator.bit_generator.state)) for generator in self.generators)
        return {name: values.copy() for name, values in self._kept.items()} | {
            "cars": self.simulator.save(),
            "chance": chance,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores all races and RNG states bit for bit from a result of `state_dict`.

        Args:
            state: of this or another batch with the same track, number of cars and settings.

        Raises:
            ClosedEnvironmentError: after `close`.
            UserError: if it is not a state of a batch.
            SimulatorError: if track, number of cars or settings differ.
        """
        self.check_open()
        if not isinstance(state, Mapping) or set(state) != {"cars", "chance", *self._kept}:
            message = f"the reset option 'state' is what RaceBatch.state_dict returned, got {type(state).__name__}"
            raise UserError(message)
        for name, values in self._kept.items():
            if state[name].shape != values.shape or len(state["chance"]) not in (0, self.num_cars):
                message = f"the saved races do not fit this environment: they have another {SETTING_OF[name]}"
                raise SimulatorError(message)
        self.simulator.restore(state["cars"])
        for name, values in self._kept.items():
            values[:] = state[name]
        self._has_moved, self._has_begun[:] = False, False
        self.scores.set_over(self.scores.is_over)
        # New generators: the current ones may belong to an environment, which keeps using them.
        self.generators = [np.random.Generator(np.random.PCG64(0)) for _ in state["chance"]]
        for generator, chance in zip(self.generators, state["chance"], strict=True):
            generator.bit_generator.state = chance

    def _begin(self, which: NDArray[np.bool_], places: Mapping[str, NDArray[np.floating]]) -> None:
        """Places the masked cars at given or drawn starts and starts their clocks."""
        uniforms = self._starts.draw(which, self.generators)
        starts = draw_starts(uniforms, self.settings, self.track.length_m)._replace(**places)
        self.simulator.reset(which, *starts)
        is_full_race = starts.along_m <= 0.0
        if self._earlier is not None:
            self._earlier.drop_pending(which)
            if not places:
                cars = np.flatnonzero(which & starts_from_saved_state(uniforms, self.settings))
                cars, states = self._earlier.draw(cars, uniforms[cars, ALONG])
                self.simulator.set_states(cars, states)
                is_full_race[cars] = False
        if self._has_variants:
            self.simulator.set_variant(which, 1 + (uniforms[:, NUM_UNIFORMS] * NUM_VARIANTS).astype(np.int64))
        self.scores.begin(which, is_full_race)
        self._has_begun |= which


def car_generators(seed: int, num_cars: int) -> list[np.random.Generator]:
    """Returns one generator per car; car k's equals that of a single environment seeded with `seed + k`."""
    return [seeding.np_random(int(seed) + k)[0] for k in range(num_cars)]
