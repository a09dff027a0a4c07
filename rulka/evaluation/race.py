"""Greedy races of one policy: one batch of cars, one per seed, all from a standing start.

Car k's start depends only on `seed + k`, so every contestant drives from the same starts and a race can be reproduced
by its seed. Physics, starts and ends are those of training, see `rulka.simulator.race_settings`.

Dimensions: N cars, T samples, L frames per observation, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.actions import ActionTable
from rulka.contracts.observation import num_floats
from rulka.datasets.formats.races import reference_path
from rulka.evaluation.params import EvaluateParams
from rulka.evaluation.results import FINISHED, NO_SEED, OFF_TRACK, STUCK, TOO_LONG, RaceResult
from rulka.machine.terminal import tell
from rulka.params import Params
from rulka.reference.lap import Reference, StaleReferenceError, load_reference, shipped_lap
from rulka.simulator import race_end
from rulka.simulator.frame_stack import FrameStack
from rulka.simulator.race_end import RaceWatch
from rulka.simulator.race_settings import RaceSettings
from rulka.simulator.race_start import HEADING, LATERAL, NUM_UNIFORMS, Starts, draw_starts
from rulka.simulator.render import FrameRenderer, camera_array
from rulka.simulator.scene import bake_scene
from rulka.simulator.simulator import Simulator
from rulka.tracks.track import Track

Policy = Callable[[NDArray[np.uint8], NDArray[np.float32]], NDArray]
"""Maps images [N, L, H, W] and raw floats [N, F] of N cars to N action indices, chunks of them [N, K], or steer, gas
and brake [N, 3] float32; row k is car k's."""

_END_IN_WORDS = {
    race_end.FINISHED: FINISHED,
    race_end.OFF_TRACK: OFF_TRACK,
    race_end.TOO_LONG: TOO_LONG,
    race_end.STUCK: STUCK,
}


@dataclass(frozen=True)
class EvaluationRaces:
    """Track, settings and seeds of the races of an evaluation.

    Attributes:
        track: the track.
        settings: race settings.
        seeds: seed of each race.
    """

    track: Track
    settings: RaceSettings
    seeds: range

    @classmethod
    def of(cls, track: Track, params: Params, evaluate: EvaluateParams | None = None) -> EvaluationRaces:
        """Returns the races of `evaluate` on a track; None takes the section of `params`."""
        evaluate = evaluate or params.evaluate
        settings = RaceSettings.for_evaluation(
            params.observation, params.actions, params.simulator, evaluate, params.race_end
        )
        return cls(track, settings, range(evaluate.seed, evaluate.seed + evaluate.num_races))


class RandomPolicy:
    """Uniformly random actions; car k's depend only on its seed."""

    def __init__(self, seeds: Sequence[int], num_actions: int) -> None:
        self._generators = [np.random.default_rng([seed, 1]) for seed in seeds]
        self._num_actions = num_actions

    def __call__(self, image: NDArray[np.uint8], floats: NDArray[np.float32]) -> NDArray[np.int64]:
        """Returns N random actions; ignores the observation."""
        return np.array([generator.integers(self._num_actions) for generator in self._generators], dtype=np.int64)


def starts(races: EvaluationRaces) -> Starts:
    """Draws the start of each race, uniform in its ranges: [N] each."""
    uniforms = np.full((len(races.seeds), NUM_UNIFORMS), 0.5)
    for k, seed in enumerate(races.seeds):
        uniforms[k, [LATERAL, HEADING]] = np.random.default_rng([seed, 0]).random(2)
    drawn = draw_starts(uniforms, races.settings, races.track.length_m)
    # In single precision, like the results that these are compared with.
    return Starts(*(values.astype(np.float32) for values in drawn))


OnSeen = Callable[[Simulator, NDArray[np.uint8], NDArray[np.float32]], None]


def race(
    policy: Policy,
    races: EvaluationRaces,
    on_ended: Callable[[int], None] | None = None,
    on_seen: OnSeen | None = None,
    placed: Starts | None = None,
) -> list[RaceResult]:
    """Runs one race of a policy from every seed.

    Args:
        policy: the policy; its attributes `actions` and `observation`, if present, override those of the settings.
        races: track, starts and settings.
        on_ended: called after each step in which races ended, with their number.
        on_seen: called before each decision with the simulator, images and floats, in buffers that are overwritten.
        placed: starts to take instead of those of the seeds.

    Returns:
        One result per seed, in their order.
    """
    table: ActionTable = getattr(policy, "actions", races.settings.table)
    seen = {"observation": getattr(policy, "observation", races.settings.observation)}
    races = replace(races, settings=races.settings.model_copy(update=seen))
    (results,) = side_by_side(policy, [racing(races, table, on_ended, on_seen, placed)])
    return results


Racing = Generator[tuple[NDArray[np.uint8], NDArray[np.float32]], NDArray, list[RaceResult]]
"""Races on one track: yields images and floats, in buffers that are overwritten, takes the actions for them, and
returns the results."""


def side_by_side(policy: Policy, on_tracks: Iterable[Racing]) -> list[list[RaceResult]]:
    """Runs races on several tracks together: one call of the policy decides for all cars that still race, in order.

    Returns:
        The results of each track.
    """
    running = dict(enumerate(on_tracks))
    seen, results = {track: next(races) for track, races in running.items()}, dict[int, list[RaceResult]]()
    while seen:
        images, floats = zip(*seen.values(), strict=True)
        actions = policy(np.concatenate(images), np.concatenate(floats))
        shares = np.split(actions, np.cumsum([len(each) for each in floats])[:-1])
        for track, own in zip(list(seen), shares, strict=True):
            try:
                seen[track] = running[track].send(own)
            except StopIteration as end:
                results[track] = end.value
                del seen[track]
    return [results[track] for track in running]


def racing(
    races: EvaluationRaces,
    table: ActionTable,
    on_ended: Callable[[int], None] | None = None,
    on_seen: OnSeen | None = None,
    placed: Starts | None = None,
) -> Racing:
    """Begins the races of `race`, with actions of a table."""
    settings, num_cars = races.settings, len(races.seeds)
    # Repeated decisions are stepped one by one, so that samples and inputs have the same rate as in any race.
    simulator = Simulator(races.track, num_cars, settings.simulator, table.taken_once)
    simulator.reset(np.ones(num_cars, bool), *(placed or starts(races)))
    log = _Log(simulator, races)
    frame_stack, is_first = FrameStack(num_cars, settings.image_shape), np.ones(num_cars, np.bool_)
    floats = np.zeros((num_cars, num_floats(table.actions_per_decision)), np.float32)
    camera = camera_array(settings.simulator.camera)
    renderer = FrameRenderer(simulator.cars, simulator.zone_index, bake_scene(races.track), camera)
    while log.watch.is_racing.any():
        if settings.image.shows_image:
            renderer.render(frame_stack.newest)
            frame_stack.push(has_moved=True, is_first=is_first)
            is_first[:] = False
        simulator.floats(floats)
        if on_seen:
            on_seen(simulator, frame_stack.stack, floats)
        actions = yield frame_stack.stack, floats
        for _ in range(table.repeats):
            simulator.step_controls(actions) if table.is_analog else simulator.step(actions)
            num_ended = log.add(actions)
            if num_ended and on_ended:
                on_ended(num_ended)
            if not log.watch.is_racing.any():
                break
    return log.results()


class _Log:
    """Records samples of every car, and when each race ended."""

    def __init__(self, simulator: Simulator, races: EvaluationRaces) -> None:
        self._simulator, self._races = simulator, races
        num_cars = simulator.num_cars
        self._analog = simulator.table.analog()
        self._cars, self._along, self._time = [simulator.cars.copy()], [simulator.along_m.copy()], [self._now()]
        self._controls: list[NDArray[np.float32]] = []
        self.watch = RaceWatch(races.settings, races.track.length_m, simulator.along_m)
        self._num_samples = np.ones(num_cars, np.int64)

    def _now(self) -> NDArray[np.int64]:
        return np.array(self._simulator.time_ms, dtype=np.int64)

    def add(self, actions: NDArray) -> int:
        """Records the outcome of a decision; returns how many races ended with it."""
        now_ms, simulator = self._now(), self._simulator
        self._cars.append(simulator.cars.copy())
        self._along.append(simulator.along_m.copy())
        self._time.append(now_ms)
        controls = actions if simulator.table.is_analog else self._analog[actions]
        self._controls.append(controls.reshape(len(actions), -1, 3))
        self._num_samples[self.watch.is_racing] += 1
        return self.watch.update(simulator.is_finished, simulator.is_off_track, simulator.along_m, now_ms)

    def results(self) -> list[RaceResult]:
        """Returns one result per car, after all races have ended."""
        cars, along_m = np.stack(self._cars), np.stack(self._along)
        time_ms, controls = np.stack(self._time), np.stack([*self._controls, self._controls[-1]])
        found = []
        for car, seed in enumerate(self._races.seeds):
            end = _END_IN_WORDS[int(self.watch.status[car])]
            own = slice(0, int(self._num_samples[car])), car
            held = controls[own].copy()
            held[-1] = held[max(len(held) - 2, 0)]  # decisions after the end do not count
            gate_times_ms = self._simulator.gate_time_ms[car].astype(np.int64)
            last_ms = time_ms[own][-1]  # a car whose race was cut keeps driving while others race
            gate_times_ms[gate_times_ms > last_ms] = 0
            result = RaceResult(
                track=self._races.track,
                seed=seed,
                end=end,
                time_ms=int(gate_times_ms[-1]) if end == FINISHED else None,
                gate_times_ms=gate_times_ms,
                sample_ms=time_ms[own].copy(),
                cars=cars[own].copy(),
                along_m=along_m[own].copy(),
                controls=held[:, 0],
                chunk_controls=held if held.shape[1] > 1 else None,
                held_ticks=tuple(self._simulator.table.held_ticks.tolist()),
            )
            found.append(result)
        return found


def find_reference_race(races_dir: Path, races: EvaluationRaces) -> RaceResult | None:
    """Drives the reference lap of the dataset, or the one shipped for a track of the campaign.

    A stale lap is reported on standard error and skipped: track, physics or decisions were changed.

    Returns:
        The race, or None without a reference lap.

    Raises:
        ReferenceLapError: if a lap is damaged.
    """
    for path in (reference_path(races_dir, races.track.uid), shipped_lap(races.track)):
        if path is None or not path.is_file():
            continue
        try:
            lap = load_reference(path, races.track, races.settings.simulator, races.settings.table)
            return reference_race(lap, races)
        except StaleReferenceError as error:
            tell(f"reference lap not used: {error}")
    return None


def reference_race(reference: Reference, races: EvaluationRaces) -> RaceResult:
    """Drives a reference lap from the middle of the start line, under the rules of the other races."""
    straight = races.settings.model_copy(update={"start_lateral_m": 0.0, "start_heading_deg": 0.0})
    actions = iter(reference.actions)
    (result,) = race(lambda *_: np.array([next(actions)]), replace(races, settings=straight, seeds=range(1)))
    return replace(result, seed=NO_SEED)
