"""A batch of races side by side: what the single and the vector environment have in common.

One kernel call each for physics, scoring, floats, potentials and frames. Car k's races depend on its own seed and
actions alone, to the bit, so a batch of one is the single environment. Dimensions: N cars, L frames seen at once, H x W
pixels, F floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError, InvalidAction, ResetNeeded
from gymnasium.utils import seeding
from numpy.typing import NDArray

from rulka.envs.randomising import NUM_DRAWS, Randomiser
from rulka.envs.scoring import Scores
from rulka.envs.settings import SettingsError
from rulka.envs.starts import EarlierStates, EqualStarts
from rulka.race_settings import RaceSettings
from rulka.simulator.frame_history import FrameHistory
from rulka.simulator.race_start import ALONG, NUM_CHANCES, draw_starts, is_from_earlier
from rulka.simulator.render import FrameRenderer, camera_array
from rulka.simulator.scene import bake_scene
from rulka.simulator.simulator import Simulator, SimulatorError
from rulka.step_results import StepResult
from rulka.tracks.track import Track

SETTING_OF = {
    "counters": "number of cars",
    "draws": "domain randomisation",
    "earlier": "`start_from_earlier`",
    "frames": "number or size of frames",
    "starts": "`races_per_start`",
}
"""What decides the shape of each part of `SavedRaces`."""


@dataclass(frozen=True)
class SavedRaces:
    """Everything that the future of a batch of races depends on; plain arrays and numbers, fit for another process.

    Attributes:
        cars: [N, K] float64 rows of `Simulator.save`.
        counters: [N, NUM_COUNTERS] float64 how each race stands, see `rulka.envs.scoring`.
        earlier: [N, P, K + 1] states that races may begin from, see `rulka.envs.starts`; [N, 0] without that.
        frames: [N, L, H, W] what each car saw last, see `rulka.simulator.frame_history`; [N, 0] where one frame is all.
        chance: N states of the generators, empty where the batch was never reset.
        draws: [N, D] in what each race differs from others, see `rulka.envs.randomising`; D is 0 without that.
        starts: how the starts of races are dealt, see `rulka.envs.starts`.
    """

    cars: NDArray[np.float64]
    counters: NDArray[np.float64]
    draws: NDArray[np.float64]
    earlier: NDArray[np.float64]
    frames: NDArray[np.uint8]
    starts: NDArray[np.float64]
    chance: tuple[dict[str, Any], ...]


class RaceBatch:
    """Races of N cars on one track.

    Attributes:
        track: where.
        settings: how the races go.
        scene: the baked track.
        simulator: physics of the cars.
        scores: how the races stand, and what came of the last decision.
        generators: one for each car, which its starts are drawn from, of cars with equal starts that of the first;
            empty before the first `reset`.
    """

    def __init__(self, track: Track, settings: RaceSettings, num_cars: int) -> None:
        self.track, self.settings, self.num_cars = track, settings, num_cars
        self.scene = bake_scene(track)
        self.simulator = Simulator(track, num_cars, settings.simulator, settings.table)
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
        self._is_closed = False

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

    def advance(self, actions: NDArray) -> None:
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
        if self._is_closed or not self.generators:
            self._refuse_step()
        try:
            self._drive(actions)
        except SimulatorError as error:
            raise InvalidAction(self._describe_refusal(actions)) from error
        self._has_moved = True
        if self.scores.num_over:
            self._begin(self.scores.is_over, {})
        self.scores.score()
        if self._earlier is not None:
            self._earlier.note(self.simulator, self.scores.is_over)

    def step(self, actions: NDArray) -> StepResult:
        """Takes one decision for every car, see `advance`, and returns arrays of its own."""
        self.advance(actions)
        return self.scores.result()

    def observe(
        self, image_out: NDArray[np.uint8], floats_out: NDArray[np.float32], potential_out: NDArray[np.float32]
    ) -> None:
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

    def save(self) -> SavedRaces:
        """Returns a copy of the cars, of how their races stand and of their generators."""
        chance = tuple(deepcopy(dict(generator.bit_generator.state)) for generator in self.generators)
        kept = {name: values.copy() for name, values in self._kept.items()}
        return SavedRaces(cars=self.simulator.save(), chance=chance, **kept)

    def restore(self, saved: SavedRaces) -> None:
        """Puts all races back to what `save` returned, bit for bit; resets then go on drawing from there.

        Args:
            saved: of this or another batch with the same track, number of cars and settings.

        Raises:
            ClosedEnvironmentError: after `close`.
            SettingsError: if it is anything else.
            SimulatorError: if it is of another track or number of cars, or of other settings.
        """
        self.check_open()
        if not isinstance(saved, SavedRaces):
            message = f"the reset option 'state' is what RaceBatch.save returned, got {type(saved).__name__}"
            raise SettingsError(message)
        for name, values in self._kept.items():
            if getattr(saved, name).shape != values.shape or len(saved.chance) not in (0, self.num_cars):
                message = f"the saved races do not fit this environment: they have another {SETTING_OF[name]}"
                raise SimulatorError(message)
        self.simulator.restore(saved.cars)
        for name, values in self._kept.items():
            values[:] = getattr(saved, name)
        self._has_moved, self._has_begun[:] = False, False
        self.scores.set_over(self.scores.is_over)
        if self._randomiser is not None:
            self._renderer.cameras[:] = self._randomiser.cameras()
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
        if self.scores.num_over:
            message = "the race has ended; reset the environment before the next step"
            raise ResetNeeded(message)

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
            self._renderer.cameras[:] = self._randomiser.cameras()
        self.scores.begin(which, is_full_race)
        self._has_begun |= which


def car_generators(seed: int, num_cars: int) -> list[np.random.Generator]:
    """Returns one generator for each car; car k's is that of a single environment seeded with `seed + k`."""
    return [seeding.np_random(seed + k)[0] for k in range(num_cars)]
