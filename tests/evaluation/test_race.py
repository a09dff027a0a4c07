"""Races in the simulator: starts, ends, and that a car's race does not depend on the others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rulka.contracts.actions import FORWARD, action_table
from rulka.contracts.observation import CAR
from rulka.evaluation.race import (
    FINISHED,
    OFF_TRACK,
    STUCK,
    TOO_LONG,
    EvaluationRaces,
    RandomPolicy,
    race,
    racing,
    side_by_side,
    starts,
)
from rulka.evaluation.results import RaceResult
from rulka.params import read_params
from rulka.simulator.race_params import RaceEndParams
from rulka.tracks.generate import generate_track
from rulka.tracks.track import Track

COAST, LEFT = 3, 1
"""Actions: no key; gas and left."""


def make_races(track: Track, num_races: int = 3, **changes: float) -> EvaluationRaces:
    params = read_params()
    limits = {"max_race_s": 30.0, "no_progress_s": 2.0, "min_gain_m": 0.5}
    end = {name: changes.pop(name, value) for name, value in limits.items()}
    evaluate = params.evaluate.model_copy(update={"num_races": num_races, "seed": 5, **changes})
    return EvaluationRaces.of(track, params.model_copy(update={"race_end": RaceEndParams(**end)}), evaluate)


def always(action: int) -> Callable[..., np.ndarray]:
    return lambda image, floats: np.full(len(floats), action, np.int64)


def test_full_throttle_on_a_straight_road_finishes(track: Track) -> None:
    ended: list[int] = []
    races = make_races(track, start_heading_deg=0.5)
    results = race(always(FORWARD), races, on_ended=ended.append)
    assert sum(ended) == 3
    for seed, result in zip((5, 6, 7), results, strict=True):
        assert (result.seed, result.end, result.progress_m) == (seed, FINISHED, track.length_m)
        assert result.time_ms == result.gate_times_ms[-1]
        assert (np.diff(result.gate_times_ms) > 0).all()
        assert result.sample_ms[-2] < result.time_ms <= result.sample_ms[-1]
        assert result.speed_mps[0] == pytest.approx(0.0, abs=0.1)  # a standing start
        np.testing.assert_array_equal(result.controls[0], [0.0, 1.0, 0.0])


def test_a_policy_sees_what_it_was_made_for(track: Track) -> None:
    races, shapes = make_races(track), set[tuple[int, ...]]()

    class Small:
        observation = read_params().observation.model_copy(update={"height": 36, "width": 40, "frames": 2})

        def __call__(self, image: np.ndarray, floats: np.ndarray) -> np.ndarray:
            shapes.add(image.shape)
            return always(FORWARD)(image, floats)

    assert [result.end for result in race(Small(), races)] == [FINISHED] * 3
    assert shapes == {(3, 2, 36, 40)}


def test_cars_start_where_their_seeds_say(track: Track) -> None:
    """The road runs along z with left at +x, so the lateral offset is x, and heading turns z toward x.

    A car's position is 0.37 m behind its centre of mass, which is placed.
    """
    races = make_races(track, num_races=6)
    along_m, lateral_m, heading_rad, speed_mps = starts(races)
    assert not along_m.any()
    assert not speed_mps.any(), "a standing start"
    assert np.abs(lateral_m).max() <= races.settings.start_lateral_m
    assert np.abs(heading_rad).max() <= np.radians(races.settings.start_heading_deg)
    assert len(set(lateral_m.tolist())) == 6
    first = np.stack([result.cars[0] for result in race(always(COAST), races)])
    ahead_x = first[:, CAR["rotation"]].reshape(-1, 3, 3)[:, 0, 2]
    np.testing.assert_allclose(first[:, CAR["position"].start] + 0.37 * ahead_x, lateral_m, atol=1e-3)
    np.testing.assert_allclose(np.arcsin(ahead_x), heading_rad, atol=1e-3)
    many = starts(make_races(track, num_races=400))
    assert abs(np.corrcoef(many.lateral_m, many.heading_rad)[0, 1]) < 0.15, "side and heading are drawn apart"


def same_race(first: RaceResult, second: RaceResult) -> bool:
    return (
        first.end == second.end
        and first.time_ms == second.time_ms
        and np.array_equal(first.cars, second.cars)
        and np.array_equal(first.controls, second.controls)
    )


def test_a_race_is_repeatable_and_independent_of_the_batch(track: Track) -> None:
    few, many = make_races(track, 2), make_races(track, 5)
    alone = race(RandomPolicy(few.seeds, 12), few)
    together = race(RandomPolicy(many.seeds, 12), many)
    assert all(same_race(a, b) for a, b in zip(alone, together, strict=False))
    assert not same_race(together[0], together[1])


def test_tracks_side_by_side_are_raced_as_each_alone(track: Track) -> None:
    """A policy decides by what each car sees; the second track's cars leave the road first."""

    def decide(image: np.ndarray, floats: np.ndarray) -> np.ndarray:
        return (np.abs(floats).sum(axis=1) * 1000.0 + image.sum(axis=(1, 2, 3))).astype(np.int64) % 12

    on_tracks = [
        make_races(track, 2),
        make_races(generate_track(1, 300.0, 8.0, 0.1, 100.0), 1, start_heading_deg=40.0),
        make_races(generate_track(2, 300.0, 16.0, 0.1, 100.0)),
    ]
    alone = [race(decide, races) for races in on_tracks]
    table = on_tracks[0].settings.table
    together = side_by_side(decide, [racing(races, table) for races in on_tracks])
    assert [len(results) for results in together] == [2, 1, 3]
    assert len({results[0].duration_ms for results in together}) > 1, "some end first"
    for races in zip(alone, together, strict=True):
        assert all(same_race(first, second) for first, second in zip(*races, strict=True))


class Repeating:
    """Asked for every decision, or for every second one, which it then takes twice."""

    def __init__(self, repeats: int) -> None:
        self.actions, self._held, self._num_asked = action_table(5, repeats=repeats), 2 // repeats, 0

    def __call__(self, image: np.ndarray, floats: np.ndarray) -> np.ndarray:
        rng = np.random.default_rng(self._num_asked // self._held)
        self._num_asked += 1
        return rng.choice([FORWARD, LEFT], len(floats), p=[0.9, 0.1])


def test_a_repeated_decision_is_sampled_as_two(track: Track) -> None:
    races = make_races(track, 3)
    repeated, single = race(Repeating(2), races), race(Repeating(1), races)
    assert all(same_race(a, b) for a, b in zip(repeated, single, strict=True))
    assert all((np.diff(result.sample_ms)[:-1] == 50).all() for result in repeated)
    assert any(len(result.sample_ms) % 2 == 0 for result in repeated), "none ended in the middle of a decision"


def test_races_that_do_not_finish_say_why(track: Track) -> None:
    """Who never moves had its last progress at 0 ms: it is cut at the first decision from 2 s on."""
    slow = {"no_progress_s": 99.0, "max_race_s": 1.0}
    for action, changes, end in ((LEFT, {}, OFF_TRACK), (COAST, {}, STUCK), (COAST, slow, TOO_LONG)):
        for result in race(always(action), make_races(track, **changes)):
            assert (result.end, result.time_ms, result.is_finished) == (end, None, False)
            assert result.gate_times_ms[-1] == 0
            assert end != STUCK or int(result.sample_ms[-1]) == 2000


def test_gates_passed_after_a_race_was_cut_do_not_count(track: Track) -> None:
    """Car 0 is cut after 1 s of standing still, then drives on while car 1 waits for its own end."""
    races = make_races(track, num_races=2, no_progress_s=1.0)
    decision = -1

    def late_start(image: np.ndarray, floats: np.ndarray) -> np.ndarray:
        nonlocal decision
        decision += 1
        return np.array([FORWARD if decision >= 21 else COAST, FORWARD if decision < 10 else COAST])

    first, second = race(late_start, races)
    assert (first.end, int(first.sample_ms[-1])) == (STUCK, 1000)
    assert int(second.sample_ms[-1]) > 4000
    assert (first.gate_times_ms == 0).all()
