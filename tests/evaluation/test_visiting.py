"""What a cloned policy meets where it drives, and what it is advised there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from models.actor_critic import ClonePolicy
from models.encoders.config import ConvConfig
from models.torso import InputShape
from rulka.contracts.actions import action_table
from rulka.contracts.observation import CAR, FLOATS, centres_of_mass, num_floats
from rulka.datasets.formats.races import Race
from rulka.datasets.recovery import line_of_race
from rulka.evaluation.dagger import by_tick, collect_dagger_races
from rulka.evaluation.race import EvaluationRaces, starts
from rulka.params import reference_params
from rulka.planner.demonstrations import record_demonstrations
from rulka.planner.params import PlannerParams
from rulka.planner.planner import FOLLOW, FOLLOWING, Planner
from rulka.simulator import car as columns
from rulka.simulator.race_settings import RaceSettings
from rulka.simulator.simulator import Simulator
from rulka.tracks.generate import generate_track
from rulka.tracks.progress import progress_along
from rulka.tracks.track import Track
from tasks.races import race_of_driver

TABLE = action_table(5)
CONV = ConvConfig(kind="conv", adaptive_pool=0)
CHUNKS = replace(TABLE, ticks_per_action=1, actions_per_decision=5)
PLANS = PlannerParams(num_plans=8, horizon_s=1.5, step_m=0.3)


def line_of(race: Race, track: Track) -> tuple[np.ndarray, np.ndarray]:
    """Metres along the track and to the left of its line, at every sample."""
    _, along_m, lateral_m = progress_along(track, centres_of_mass(race.state))
    return along_m, lateral_m


def adviser_of(races: EvaluationRaces, **more: Any) -> Planner:
    """The adviser of the races, by a small search."""
    settings = races.settings
    planner = {"params": PLANS, "seed": 1} | more
    return Planner(races.track, settings.simulator.physics, settings.table, len(races.seeds), **planner)


def drives_forward() -> ClonePolicy:
    """A policy that keeps the gas pressed and never steers."""
    num_inputs = num_floats(TABLE.actions_per_decision)
    shape = InputShape(64, 64, torch.zeros(num_inputs), torch.ones(num_inputs))
    policy = ClonePolicy(shape, CONV, 4, 4, TABLE.space.num_outputs)
    with torch.no_grad():
        policy.policy_head.weight.zero_()
        policy.policy_head.bias.zero_()
        policy.policy_head.bias[0] = 5.0
    return policy.eval()


def test_every_decision_is_labelled_with_advice_for_where_the_car_is() -> None:
    params = reference_params()
    track = generate_track(**params.track.model_dump())
    settings = RaceSettings.for_evaluation(
        params.observation, params.actions, params.simulator, params.evaluate, params.race_end
    )
    with torch.no_grad():
        races = EvaluationRaces(track, settings, range(3))
        other = replace(races, track=generate_track(1, 300.0, 16.0, 0.1, 100.0), seeds=range(5, 7))
        advised = [(each, adviser_of(each)) for each in (races, other)]
        visited = collect_dagger_races(drives_forward(), advised, "first")
    assert (visited.driven.num_races, visited.driven.finish_rate) == (5, 0.0), "nobody steers"
    first, second = track.uid, other.track.uid
    seeds = [(first, 0), (first, 1), (first, 2), (second, 5), (second, 6)]
    assert [(race.map_uid, race.race_id) for race in visited.races] == [
        (uid, f"first-{uid}-{seed}") for uid, seed in seeds
    ]
    for race in visited.races:
        num_frames = len(race.image)
        assert race.image.shape == (num_frames, 1, 64, 64)
        assert race.time_ms.tolist() == list(range(0, 50 * num_frames, 50))
        assert (np.diff(race.along_m) >= -0.1).all()
        np.testing.assert_allclose(race.action_share.sum(axis=1), 1.0, atol=1e-6)
        assert race.image.any(axis=(1, 2, 3)).all()
        keys = race.floats[5:, FLOATS["previous_actions"]].reshape(-1, 5, 4)
        assert (keys == TABLE.keys()[0]).all(), "it sees what it did, not what it was advised"
    # The naive twin: the same races once more, asking at every decision.
    simulator = Simulator(track, 3, settings.simulator, TABLE)
    simulator.reset(np.ones(3, bool), *starts(EvaluationRaces(track, settings, range(3))))
    adviser = adviser_of(races)
    on_track = visited.races[:3]
    for step in range(min(len(race.image) for race in on_track)):
        advice = adviser.advice(simulator.save())
        for car, race in enumerate(on_track):
            assert np.array_equal(race.action_share[step], advice[car])
            assert race.action[step] == advice[car].argmax()
            np.testing.assert_allclose(race.controls[step], advice[car] @ TABLE.analog(), atol=1e-6)
        simulator.step(np.zeros(3, np.int64))


@pytest.fixture(scope="module")
def recorded() -> tuple[Race, Track, RaceSettings]:
    """A race of the built-in driver, its track, and the settings of races beside it."""
    params = reference_params()
    track = generate_track(**params.track.model_dump())
    demonstrations = RaceSettings.for_demonstrations(params.actions, params.simulator, params.race_end)
    driven = record_demonstrations(track, demonstrations, params.races.driver, 1, 1)
    settings = RaceSettings.for_evaluation(
        params.observation, params.actions, params.simulator, params.evaluate, params.race_end
    )
    return race_of_driver(driven[0], track.uid, TABLE), track, settings


def test_a_recording_advises_to_come_back_to_it(recorded: tuple[Race, Track, RaceSettings]) -> None:
    """Left of its line to the right, right of it to the left; and a race that is over rests."""
    race, track, settings = recorded
    line = line_of_race(race, track)

    def adviser() -> Planner:
        return adviser_of(EvaluationRaces(track, settings, range(4)), params=FOLLOWING, aim=FOLLOW, line=line)

    simulator = Simulator(track, 4, settings.simulator, TABLE)
    along_m, lateral_m = line_of(race, track)
    middle = len(along_m) // 2
    speed = float(np.linalg.norm(race.state[middle, CAR["velocity"]]))
    aside = lateral_m[middle] + np.array([0.0, 2.5, -2.5, 0.0])
    simulator.reset(np.ones(4, bool), along_m[middle], aside, 0.0, speed)
    states = simulator.save()
    states[3, columns.OFF_TRACK] = 1.0
    advice = adviser().advice(states)
    np.testing.assert_allclose(advice.sum(axis=1), 1.0, atol=1e-6)
    assert not (advice[3] @ TABLE.keys()).any()
    steer = advice @ TABLE.analog()[:, 0]
    # A chunk of five actions is as long, and is advised over its whole length.
    chunks = settings.decided_by(CHUNKS)
    again = adviser_of(EvaluationRaces(track, chunks, range(4)), params=FOLLOWING, aim=FOLLOW, line=line)
    np.testing.assert_array_equal(again.advice(states), advice)
    assert steer[1] > steer[0] + 0.1
    assert steer[2] < steer[0] - 0.1


def test_ticks_by_hand() -> None:
    """Five ticks: all of one action; three fifths and two; a share of less than half a tick is none."""
    advice = np.zeros((3, 4), np.float32)
    advice[0, 2], advice[1, [0, 3]], advice[2, [1, 2]] = 1.0, [0.4, 0.6], [0.95, 0.05]
    assert by_tick(advice, 5).tolist() == [[2] * 5, [3, 3, 3, 0, 0], [1] * 5]
