"""A batch of races side by side, as collectors drive it; the single and the vector environment are made of it, too.

One kernel call each for physics, scoring, floats, potentials and frames. Car k's races depend on its own seed and
actions alone, to the bit, so a batch of one is the single environment. Dimensions: N cars, L frames seen at once, H x W
pixels, F floats.
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

from rulka.envs.randomising import NUM_DRAWS, Randomiser, physics_variants
from rulka.envs.scoring import Scores
from rulka.envs.settings import SettingsError
from rulka.envs.starts import EarlierStates, EqualStarts
from rulka.observation import num_floats, places_and_speeds
from rulka.race_settings import RaceSettings
from rulka.schedule import Moment
from rulka.simulator.frame_history import FrameHistory
from rulka.simulator.race_start import ALONG, NUM_CHANCES, draw_starts, is_from_earlier
from rulka.simulator.render import FrameRenderer, camera_array
from rulka.simulator.scene import bake_scene
from rulka.simulator.simulator import Simulator, SimulatorError
from rulka.step_results import Floats, Images, StepResult
from rulka.tracks.track import Track

Observation = dict[str, NDArray]
SETTING_OF = {
    "counters": "number of cars",
    "draws": "domain randomisation",
    "earlier": "`start_from_earlier`",
    "frames": "number or size of frames",
    "starts": "`races_per_start`",
}
"""What decides the shape of these parts of the state of a batch."""


class RacingCars(ABC):
    """N cars that race, in the simulator or in a game, as collectors and environments drive them.

    Attributes:
        settings: how the races go.
        num_cars: N.
        scores: how the races stand, and what came of the last decision.
    """

    settings: RaceSettings
    num_cars: int
    scores: Scores
    _is_closed = False

    @abstractmethod
    def advance(self, actions: ArrayLike) -> None:
        """Takes one decision for every car; where a race has ended, begins the next one instead.

        What came of it is in `scores`.

        Args:
            actions: [N] indices into the action table, [N, K] where decisions are chunks of K of them; where the
                settings say continuous, [N, 3] steer in [-1, 1] (positive right), gas and brake in [0, 1].

        Raises:
            ClosedEnvironmentError: after `close`.
            ResetNeeded: before the first `reset`.
            InvalidAction: if an action is none; no car has moved then.
        """

    @abstractmethod
    def observe(self, image_out: Images, floats_out: Floats, potential_out: Floats) -> None:
        """Writes images [N, L, H, W], floats [N, F] and shaping potentials [N] of all cars."""

    def step(self, actions: ArrayLike) -> StepResult:
        """Takes one decision for every car, see `advance`, and returns arrays of its own."""
        self.advance(actions)
        return self.scores.result()

    def step_into(self, actions: NDArray, image_out: Images, floats_out: Floats, potential_out: Floats) -> StepResult:
        """Takes one decision for every car, see `step`, and writes what is seen then; see `observe`."""
        result = self.step(actions)
        self.observe(image_out, floats_out, potential_out)
        return result

    def look(self) -> tuple[Observation, Floats]:
        """Returns images and floats by name, and potentials, in arrays of their own; see `observe`."""
        image = np.empty((self.num_cars, *self.settings.image_shape), np.uint8)
        floats = np.empty((self.num_cars, num_floats(self.settings.actions_per_decision)), np.float32)
        potential = np.empty(self.num_cars, np.float32)
        self.observe(image, floats, potential)
        return {"image": image, "floats": floats}, potential

    def set_moment(self, moment: Moment) -> None:
        """Tells how far the whole run has come, for rewards by schedule; see `Scores`."""
        self.scores.set_moment(moment)

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
        self.check_open()
        if self.scores.num_over:
            message = "the race has ended; reset the environment before the next step"
            raise ResetNeeded(message)


class RaceBatch(RacingCars):
    """Races of N cars on one track; see `rulka.runtime.collector.CarBatch`.

    Attributes:
        track: where.
        scene: the baked track.
        simulator: physics of the cars.
        generators: one for each car, which its starts are drawn from, of cars with equal starts that of the first;
            empty before the first `reset`.
    """

    def __init__(self, track: Track, settings: RaceSettings, num_cars: int) -> None:
        self.track, self.settings, self.num_cars = track, settings, num_cars
        self.scene = bake_scene(track)
        variants = physics_variants(settings.simulator.physics, settings.randomisation.physics)
        self.simulator = Simulator(track, num_cars, settings.simulator, settings.table, variants)
        self.scores = Scores(settings, track, self.simulator.view)
        camera, randomisation = camera_array(settings.simulator.camera), settings.randomisation
        self._randomiser: Randomiser | None = None
        if not randomisation.is_off:
            self._randomiser = Randomiser(randomisation, settings.simulator.camera, num_cars)
            camera = self._randomiser.cameras()
        self._renderer = FrameRenderer(self.simulator.cars, self.simulator.zone_index, self.scene, camera)
        self._drive = self.simulator.step_controls if settings.continuous else self.simulator.step
        self._earlier: EarlierStates | None = None
        if settings.start_from_earlier > 0.0:
            self._earlier = EarlierStates(self.simulator.save(), len(track.gate_m), track.length_m)
        if num_cars % settings.races_per_start:
            message = f"{num_cars} cars are no multiple of races_per_start {settings.races_per_start}"
            raise SimulatorError(message)
        num_chances = NUM_CHANCES + (0 if self._randomiser is None else NUM_DRAWS)
        self._starts = EqualStarts(num_cars, settings.races_per_start, num_chances)
        self.generators: list[np.random.Generator] = []
        self._history: FrameHistory | None = None
        if settings.image.frames > 1 and settings.image.shows_image:
            self._history = FrameHistory(num_cars, settings.image_shape)
        self._has_moved, self._has_begun = False, np.ones(num_cars, np.bool_)
        none = np.zeros((num_cars, 0))
        self._kept = {
            "counters": self.scores.counters,
            "draws": none if self._randomiser is None else self._randomiser.draws,
            "earlier": none if self._earlier is None else self._earlier.rows,
            "frames": none if self._history is None else self._history.seen,
            "starts": self._starts.rows,
        }

    def reset(
        self,
        generators: list[np.random.Generator],
        which: NDArray[np.bool_] | None = None,
        places: Mapping[str, NDArray[np.floating]] | None = None,
    ) -> None:
        """Starts races anew, each from its own generator.

        Args:
            generators: one for each car.
            which: [N] races to begin; all where not given.
            places: fields of `Starts` that are told instead of drawn.

        Raises:
            ClosedEnvironmentError: after `close`.
            SimulatorError: if a place is not on the track.
        """
        self.check_open()
        if self._earlier is not None and self.generators:
            self._earlier.forget([new is not old for new, old in zip(generators, self.generators, strict=True)])
        self.generators = generators
        if which is None:
            self._starts.begin_anew()
        self._begin(np.ones(self.num_cars, np.bool_) if which is None else which, places or {})
        self.scores.set_over(np.zeros(self.num_cars, np.bool_) if which is None else self.scores.is_over & ~which)

    def reset_into(self, image_out: Images, floats_out: Floats, potential_out: Floats, seed: int) -> None:
        """Starts all races anew, car k's from `seed + k`, and writes what is seen then; see `observe`."""
        self.reset(car_generators(seed, self.num_cars))
        self.observe(image_out, floats_out, potential_out)

    def advance(self, actions: ArrayLike) -> None:
        """Takes one decision for every car; see `RacingCars.advance`."""
        if self._is_closed or not self.generators:
            self.check_open()
            message = "reset the environment before stepping it"
            raise ResetNeeded(message)
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

        Images that agents are not shown are not drawn, but black.
        """
        if not self.settings.image.shows_image:
            image_out[:] = 0
        elif self._history is None:
            self._draw(image_out[:, 0])
        else:
            self._draw(self._history.newest)
            self._history.add(self._has_moved, self._has_begun)
            image_out[:] = self._history.seen
            self._has_moved, self._has_begun[:] = False, False
        self.simulator.floats(floats_out)
        self.scores.find_potentials(potential_out)

    def _draw(self, frame_out: NDArray[np.uint8]) -> None:
        """Writes the frames [N, H, W] of all cars."""
        self._renderer.render(frame_out)
        if self._randomiser is not None:
            self._randomiser.relight(frame_out, self.simulator.time_ms)

    def cars(self) -> Floats:
        """Returns [N, 4] where the cars are, world metres, and their speed in m/s."""
        return places_and_speeds(self.simulator.cars)

    def state_dict(self) -> dict[str, Any]:
        """Returns a copy of all that the future of the races depends on, plain arrays and numbers by name.

        `cars` are rows of `Simulator.save`, `counters` how the races stand (`rulka.envs.scoring`), `earlier` states
        that they may begin from and `starts` how starts are dealt (`rulka.envs.starts`), `frames` what each car saw
        last, `draws` in what races differ (`rulka.envs.randomising`), `chance` the states of the generators. What the
        settings do not ask for is empty, as is `chance` of a batch that was never reset.
        """
        chance = tuple(deepcopy(dict(generator.bit_generator.state)) for generator in self.generators)
        return {name: values.copy() for name, values in self._kept.items()} | {
            "cars": self.simulator.save(),
            "chance": chance,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts all races back to what `state_dict` returned, bit for bit; resets then go on drawing from there.

        Args:
            state: of this or another batch with the same track, number of cars and settings.

        Raises:
            ClosedEnvironmentError: after `close`.
            SettingsError: if it is anything else.
            SimulatorError: if it is of another track or number of cars, or of other settings.
        """
        self.check_open()
        if not isinstance(state, Mapping) or set(state) != {"cars", "chance", *self._kept}:
            message = f"the reset option 'state' is what RaceBatch.state_dict returned, got {type(state).__name__}"
            raise SettingsError(message)
        for name, values in self._kept.items():
            if state[name].shape != values.shape or len(state["chance"]) not in (0, self.num_cars):
                message = f"the saved races do not fit this environment: they have another {SETTING_OF[name]}"
                raise SimulatorError(message)
        self.simulator.restore(state["cars"])
        for name, values in self._kept.items():
            values[:] = state[name]
        self._has_moved, self._has_begun[:] = False, False
        self.scores.set_over(self.scores.is_over)
        if self._randomiser is not None:
            self._renderer.cameras[:] = self._randomiser.cameras()
        # New generators: those in use may belong to an environment, which goes on with its own.
        self.generators = [np.random.Generator(np.random.PCG64(0)) for _ in state["chance"]]
        for generator, chance in zip(self.generators, state["chance"], strict=True):
            generator.bit_generator.state = chance

    def _begin(self, which: NDArray[np.bool_], places: Mapping[str, NDArray[np.floating]]) -> None:
        """Puts chosen cars where they are told or their generators say and starts their clocks."""
        chance = self._starts.draw(which, self.generators)
        starts = draw_starts(chance, self.settings, self.track.length_m)._replace(**places)
        self.simulator.reset(which, *starts)
        is_full_race = starts.along_m <= 0.0
        if self._earlier is not None:
            self._earlier.break_off(which)
            if not places:
                cars = np.flatnonzero(which & is_from_earlier(chance, self.settings))
                cars, states = self._earlier.draw(cars, chance[cars, ALONG])
                self.simulator.put(cars, states)
                is_full_race[cars] = False
        if self._randomiser is not None:
            self._randomiser.begin(which, chance[:, NUM_CHANCES:])
            self.simulator.set_friction(which, self._randomiser.friction())
            self.simulator.set_variant(which, self._randomiser.variants())
            self._renderer.cameras[:] = self._randomiser.cameras()
        self.scores.begin(which, is_full_race)
        self._has_begun |= which


def car_generators(seed: int, num_cars: int) -> list[np.random.Generator]:
    """Returns one generator for each car; car k's is that of a single environment seeded with `seed + k`."""
    return [seeding.np_random(int(seed) + k)[0] for k in range(num_cars)]
