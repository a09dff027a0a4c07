"""Greedy races of a network that is still being taught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from rulka.agents.shared.networks import build_clone_policy
from rulka.contracts.actions import FORWARD
from rulka.contracts.observation import reference_normalisation
from rulka.evaluation.closed_loop import ClosedLoop, drive
from rulka.evaluation.race import EvaluationRaces
from rulka.evaluation.results import RaceResult
from rulka.params import reference_params
from rulka.tracks.track import Track

BRAKE = 6


def test_what_is_told_of_races_by_hand(make_race: Callable[..., RaceResult]) -> None:
    """Three that ended after 2, 4 and 1 s, and two that needed 10 and 5 s for the 100 m."""
    races = [make_race(10, stop_m=20), make_race(10, stop_m=40), make_race(20, stop_m=20), make_race(10), make_race(20)]
    assert ClosedLoop.of(races) == ClosedLoop(5, 0.4, 56.0, 7.5, 6.0, 4.4, 2.0)
    assert ClosedLoop.of(races[3:]).median_unfinished_s is None
    from_worst_to_best = [
        [make_race(10, stop_m=40), make_race(10, stop_m=40)],
        [make_race(10, stop_m=40), make_race(10, stop_m=60)],
        [make_race(30), make_race(30, stop_m=99)],
        # Slow is better than not there: on the mean over all metres it would be 8.6 m/s against half of 30 m/s.
        [make_race(30), make_race(5)],
    ]
    assert all(
        ClosedLoop.of(worse).score < ClosedLoop.of(better).score for worse, better in pairwise(from_worst_to_best)
    )


def test_a_network_races_by_its_most_likely_action(track: Track) -> None:
    params = reference_params()
    sizes = params.network.model_copy(update={"float_hidden": 8, "dense_hidden": 8})
    policy = build_clone_policy(params.observation, params.encoder, sizes, reference_normalisation(), 12).eval()
    races = replace(EvaluationRaces.of(track, params), seeds=range(7, 10))
    with torch.no_grad():
        policy.policy_head.weight.zero_()
        policy.policy_head.bias.zero_()
        policy.policy_head.bias[FORWARD] = 1.0
        driven = drive(policy, [races, replace(races, seeds=range(20, 22))])
        policy.policy_head.bias[BRAKE] = 2.0
        stood = drive(policy, [races])
    assert (driven.num_races, driven.finish_rate, driven.median_unfinished_s) == (5, 1.0, None)
    assert driven.mean_progress_m == track.length_m
    assert driven.mean_time_s == pytest.approx(driven.mean_duration_s)
    assert driven.mean_pace_mps == pytest.approx(track.length_m / driven.mean_time_s, rel=0.01)
    assert (stood.finish_rate, stood.mean_time_s) == (0.0, None)
    assert stood.mean_duration_s == pytest.approx(params.race_end.no_progress_s, abs=0.051)
    assert stood.median_unfinished_s == pytest.approx(stood.mean_duration_s)
