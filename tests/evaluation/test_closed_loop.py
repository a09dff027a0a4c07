"""Greedy races of a network that is still being taught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from rulka.actions import FORWARD
from rulka.agents.networks import build_clone_policy
from rulka.evaluation.closed_loop import ClosedLoop, drive
from rulka.evaluation.race import EvaluationRaces
from rulka.evaluation.results import RaceResult
from rulka.observation import reference_normalisation
from rulka.params import reference_params
from rulka.tracks.track import Track

BRAKE = 6


def test_what_is_told_of_races_by_hand(make_race: Callable[..., RaceResult]) -> None:
    """Three that ended after 2, 4 and 1 s, and two that needed 10 and 5 s for the 100 m."""
    races = [make_race(10, stop_m=20), make_race(10, stop_m=40), make_race(20, stop_m=20), make_race(10), make_race(20)]
    assert ClosedLoop.of(races) == ClosedLoop(5, 0.4, 56.0, 7.5, 4.4, 2.0)
    assert ClosedLoop.of(races[3:]).median_unfinished_s is None


def test_a_driver_is_better_by_finishes_then_by_time_then_by_progress() -> None:
    from_worst_to_best = [
        ClosedLoop(4, *values, 9.0, 9.0)
        for values in ((0.0, 40.0, None), (0.0, 60.0, None), (0.25, 30.0, 30.0), (0.25, 20.0, 20.0), (1.0, 100.0, 25.0))
    ]
    assert all(worse.rank < better.rank for worse, better in pairwise(from_worst_to_best))


@pytest.mark.parametrize(("action", "finish_rate"), [(FORWARD, 1.0), (BRAKE, 0.0)])
def test_a_network_races_by_its_most_likely_action(track: Track, action: int, finish_rate: float) -> None:
    params = reference_params()
    sizes = params.network.model_copy(update={"float_hidden": 8, "dense_hidden": 8})
    policy = build_clone_policy(params.observation, params.encoder, sizes, reference_normalisation(), 12).eval()
    with torch.no_grad():
        policy.policy_head.weight.zero_()
        policy.policy_head.bias.zero_()
        policy.policy_head.bias[action] = 1.0
        races = EvaluationRaces.of(
            track, params.observation, params.actions, params.simulator, params.evaluate, params.race_end
        )
        found = drive(policy, replace(races, seeds=range(7, 10)))
    assert (found.num_races, found.finish_rate) == (3, finish_rate)
    if finish_rate:
        assert found.mean_progress_m == track.length_m
        assert found.mean_time_s == pytest.approx(found.mean_duration_s)
        assert found.median_unfinished_s is None
    else:
        assert found.mean_time_s is None
        assert found.mean_duration_s == pytest.approx(params.race_end.no_progress_s, abs=0.051)
        assert found.median_unfinished_s == pytest.approx(found.mean_duration_s)
