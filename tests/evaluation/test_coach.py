"""The coach: bends, losses against a planner or an agent, and what a race of the coach gains."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from rulka.contracts.actions import FORWARD, action_table
from rulka.evaluation.coach import agent_coach, bend_cuts, coach_race, coached_summary, coached_table, planner_coach
from rulka.evaluation.race import EvaluationRaces, RandomPolicy, find_reference_race, race
from rulka.evaluation.results import RaceResult
from rulka.params import read_params
from rulka.planner.params import PlannerParams
from rulka.planner.planner import Planner
from rulka.simulator.race_start import Starts
from rulka.stages.folders import RACES
from rulka.tracks.campaign import campaign_track
from rulka.tracks.track import Track


def races_on(track: Track) -> EvaluationRaces:
    params = read_params()
    return EvaluationRaces.of(track, params, params.evaluate.model_copy(update={"num_races": 1}))


def slow_race(races: EvaluationRaces) -> RaceResult:
    """A race of the planner at 0.7 of the speed that it takes bends for."""
    table = action_table(races.settings.ticks_per_action)
    physics = races.settings.simulator.physics
    planner = Planner(races.track, physics, table, 1, PlannerParams(num_plans=8), seed=0)
    planner.plans.most_pace[:] = 0.7
    actions = np.zeros(1, np.int64)

    def plan(simulator, image, floats) -> None:
        actions[:] = planner.actions(simulator.save())

    (result,) = race(lambda *_: actions, races, on_seen=plan)
    return result


def test_road_is_cut_between_bends(track: Track) -> None:
    np.testing.assert_array_equal(bend_cuts(track), [0.0, track.length_m])  # a straight
    cuts = bend_cuts(campaign_track("copper-oval"))
    assert len(cuts) == 3  # two ends, each a bend of half a turn
    assert cuts[1] == pytest.approx(200.0, abs=20.0)


def test_a_slow_race_loses_in_each_bend_and_the_coach_gains_over_the_whole() -> None:
    races = races_on(campaign_track("copper-oval"))
    result = slow_race(races)
    found = coach_race(result, planner_coach(result, races.settings))
    assert found.time_s == result.time_s is not None
    assert found.coach_s is not None
    gained_s = found.time_s - found.coach_s
    assert gained_s > 0.1 * found.time_s
    assert [bend.to_m for bend in found.bends[:-1]] == [bend.from_m for bend in found.bends[1:]]
    for bend in found.bends:
        assert bend.turn_deg == pytest.approx(180.0, abs=20.0)
        assert bend.lost_s is not None
        assert bend.lost_s > 0.2
        assert bend.coach.exit_kmh > bend.race.exit_kmh
        assert bend.race.coast_m > bend.coach.coast_m
    # Two bends: the first counts to the finish, and so does the second.
    assert sum(bend.lost_s or 0.0 for bend in found.bends) == pytest.approx(gained_s, abs=0.15)
    assert all("off the gas for" in row[-1] for row in coached_table(found)[1:])
    assert "to the ghost" not in coached_table(found)[0]


def test_a_coach_who_repeats_the_race_gains_nothing() -> None:
    """To the millisecond, though each drive begins at a sample, up to a decision beyond the end of a bend."""
    races = races_on(campaign_track("copper-oval"))
    result = slow_race(races)

    def repeat(starts: Starts, goals: np.ndarray) -> list[RaceResult]:
        first = np.searchsorted(np.maximum.accumulate(result.along_m), starts.along_m - 1e-3)
        return [part_of(result, int(sample)) for sample in first]

    found = coach_race(result, repeat)
    assert [bend.lost_s for bend in found.bends] == pytest.approx([0.0, 0.0], abs=0.0011)


def test_what_bends_lost_to_a_ghost_adds_up_to_the_difference_of_the_times() -> None:
    """Of what is shown, too; a ghost that does not finish is compared as far as it came."""
    races = races_on(campaign_track("copper-oval"))
    result, ghost = slow_race(races), find_reference_race(RACES, races)
    assert ghost is not None
    coach = agent_coach(lambda image, floats: np.full(len(floats), FORWARD), races)
    found = coach_race(result, coach, ghost)
    head, *rows = coached_table(found)
    behind_s = (result.time_s or 0.0) - (ghost.time_s or 0.0)
    assert behind_s > 1.0
    assert [bend.to_ghost_s > 0.5 for bend in found.bends if bend.to_ghost_s] == [True, True]
    assert sum(bend.to_ghost_s or 0.0 for bend in found.bends) == pytest.approx(behind_s, abs=1e-9)
    shown_s = [float(row[head.index("to the ghost")].removesuffix(" s")) for row in rows]
    assert sum(shown_s) == pytest.approx(behind_s, abs=0.002)
    begun = {name: getattr(ghost, name)[:20] for name in ("sample_ms", "cars", "along_m", "controls")}
    unfinished = coach_race(result, coach, dataclasses.replace(ghost, end="left the track", time_ms=None, **begun))
    assert [bend.to_ghost_s for bend in unfinished.bends] == [None, None]
    assert coached_table(unfinished)[0] == coached_table(coach_race(result, coach))[0]


def test_a_steady_ghost_by_hand(track: Track, make_race: Callable[..., RaceResult]) -> None:
    """100 m at 20 m/s take 5 s, at 25 m/s 4 s; the road is one straight."""
    found = coach_race(make_race(20.0), lambda starts, goals: [make_race(25.0) for _ in goals], make_race(25.0))
    (bend,) = found.bends
    assert bend.to_ghost_s == pytest.approx(1.0)
    assert coached_table(found)[1][2] == "+1.000 s"


def part_of(result: RaceResult, first: int) -> RaceResult:
    """The race from one of its samples on, as if it began there."""
    begun_ms = int(result.sample_ms[first])
    return dataclasses.replace(
        result,
        time_ms=result.time_ms - begun_ms,
        sample_ms=result.sample_ms[first:] - begun_ms,
        cars=result.cars[first:],
        along_m=result.along_m[first:],
        controls=result.controls[first:],
    )


def test_a_reference_lap_leaves_little_to_gain() -> None:
    races = races_on(campaign_track("copper-oval"))
    result = find_reference_race(RACES, races)
    assert result is not None
    assert result.time_s is not None
    found = coach_race(result, planner_coach(result, races.settings))
    assert found.coach_s == pytest.approx(result.time_s, rel=0.02)
    assert all(abs(bend.lost_s or 0.0) < 0.2 for bend in found.bends)


def test_an_agent_has_nothing_to_learn_from_itself(track: Track) -> None:
    races = races_on(track)

    def policy(image, floats) -> np.ndarray:
        return np.full(len(floats), FORWARD)

    (result,) = race(policy, races)
    found = coach_race(result, agent_coach(policy, races))
    (bend,) = found.bends
    assert bend.lost_s == pytest.approx(0.0, abs=0.002)
    assert found.coach_s == pytest.approx(found.time_s, abs=0.002)
    assert dataclasses.asdict(bend.race) == pytest.approx(dataclasses.asdict(bend.coach), abs=0.1)
    assert coached_table(found)[1][-1] == ""  # the same inputs


def test_a_race_that_does_not_finish_is_coached_as_far_as_it_came() -> None:
    races = races_on(campaign_track("copper-oval"))
    (result,) = race(RandomPolicy(races.seeds, 12), races)
    assert not result.is_finished
    found = coach_race(result, planner_coach(result, races.settings))
    assert len(found.bends) < len(bend_cuts(races.track)) - 1
    assert found.bends[-1].lost_s is None
    assert found.bends[-1].from_m <= result.progress_m
    assert found.coach_s is not None
    assert coached_summary(found).startswith("The race did not finish; the coach takes 8.")
