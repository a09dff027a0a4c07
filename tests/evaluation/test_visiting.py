"""What a cloned policy meets where it drives, and what it is advised there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.actor_critic import ClonePolicy
from models.encoders.config import ConvConfig
from models.torso import InputShape
from rulka.contracts.actions import action_table
from rulka.contracts.observation import CAR, FLOATS, NUM_FLOATS, centres_of_mass
from rulka.datasets.formats.races import Race
from rulka.datasets.recovery import follower_of
from rulka.evaluation.dagger import LOOK_AHEAD_S, RecordingAdviser, by_tick, collect_dagger_races, line_adviser
from rulka.evaluation.race import EvaluationRaces, starts
from rulka.params import reference_params
from rulka.simulator.demonstrations import record_demonstrations
from rulka.simulator.driver import PurePursuitDriver, Skills, action_shares
from rulka.simulator.follower import NO_CORRECTION
from rulka.simulator.race_settings import RaceSettings
from rulka.simulator.simulator import Simulator
from rulka.tracks.generate import generate_track
from rulka.tracks.progress import progress_along
from rulka.tracks.track import Track
from tasks.races import race_of_driver

TABLE = action_table(5)
CONV = ConvConfig(kind="conv", adaptive_pool=0)
PACE = 0.2
"""So slow that a car at full gas is soon told to brake, as one at full pace is not before it leaves the road."""


def line_of(race: Race, track: Track) -> tuple[np.ndarray, np.ndarray]:
    """Metres along the track and to the left of its line, at every sample."""
    _, along_m, lateral_m = progress_along(track, centres_of_mass(race.state))
    return along_m, lateral_m


def drives_forward() -> ClonePolicy:
    """A policy that keeps the gas pressed and never steers."""
    policy = ClonePolicy(InputShape(64, 64, torch.zeros(NUM_FLOATS), torch.ones(NUM_FLOATS)), CONV, 4, 4, 12)
    with torch.no_grad():
        policy.policy_head.weight.zero_()
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
        advised = [(each, line_adviser(each, PACE)) for each in (races, other)]
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
    skills = Skills(np.full(3, PACE), np.full(3, LOOK_AHEAD_S), np.zeros(3), np.zeros(3))
    adviser = PurePursuitDriver(track, settings.simulator.physics, skills, 0)
    on_track = visited.races[:3]
    for step in range(min(len(race.image) for race in on_track)):
        advice = adviser.advice(simulator)
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


def test_a_recording_goes_on_correcting_as_it_began(recorded: tuple[Race, Track, RaceSettings]) -> None:
    """Each plan is sampled around the last one: two decisions of two cars, chained by hand."""
    race, track, settings = recorded
    simulator = Simulator(track, 2, settings.simulator, TABLE)
    simulator.reset(np.ones(2, bool), 100.0, np.array([2.5, -2.5]), 0.0, 20.0)
    adviser = RecordingAdviser(race, EvaluationRaces(track, settings, range(2)))
    follower, corrections = follower_of(race, track, settings.simulator.physics), [NO_CORRECTION] * 2
    for _ in range(2):
        planned = []
        for car, state in enumerate(simulator.save()):
            inputs, _, corrections[car] = follower.plan(state, corrections[car])
            planned.append(inputs[:5].mean(axis=0))
        steer, gas, brake = np.array(planned).astype(np.float64).T
        np.testing.assert_array_equal(adviser.advice(simulator), action_shares(TABLE, gas, brake, steer))
        simulator.step(np.zeros(2, np.int64))
    assert all(correction.steer.any() for correction in corrections)


def test_a_recording_advises_to_come_back_to_it(recorded: tuple[Race, Track, RaceSettings]) -> None:
    """On its line as it was driven; left of it to the right, right of it to the left; and a race that is over rests."""
    race, track, settings = recorded
    adviser = RecordingAdviser(race, EvaluationRaces(track, settings, range(4)))
    simulator = Simulator(track, 4, settings.simulator, TABLE)
    along_m, lateral_m = line_of(race, track)
    middle = len(along_m) // 2
    speed = float(np.linalg.norm(race.state[middle, CAR["velocity"]]))
    aside = lateral_m[middle] + np.array([0.0, 2.5, -2.5, 0.0])
    simulator.reset(np.ones(4, bool), along_m[middle], aside, 0.0, speed)
    simulator.is_off_track[3] = True
    advice = adviser.advice(simulator)
    np.testing.assert_allclose(advice.sum(axis=1), 1.0, atol=1e-6)
    assert not (advice[3] @ TABLE.keys()).any()
    tick = int(race.state_time_ms[middle]) // 10
    steer = advice @ TABLE.analog()[:, 0]
    assert steer[0] == pytest.approx(race.controls[tick : tick + 5, 0].mean(), abs=0.25)
    # A chunk of five actions is as long, and is advised over its whole length.
    chunks = Simulator(track, 4, settings.simulator, replace(TABLE, ticks_per_action=1, actions_per_decision=5))
    chunks.reset(np.ones(4, bool), along_m[middle], aside, 0.0, speed)
    chunks.is_off_track[3] = True
    again = RecordingAdviser(race, EvaluationRaces(track, settings, range(4)))
    np.testing.assert_array_equal(again.advice(chunks), advice)
    assert steer[1] > steer[0] + 0.1
    assert steer[2] < steer[0] - 0.1


def test_ticks_by_hand() -> None:
    """Five ticks: all of one action; three fifths and two; a share of less than half a tick is none."""
    advice = np.zeros((3, 4), np.float32)
    advice[0, 2], advice[1, [0, 3]], advice[2, [1, 2]] = 1.0, [0.4, 0.6], [0.95, 0.05]
    assert by_tick(advice, 5).tolist() == [[2] * 5, [3, 3, 3, 0, 0], [1] * 5]
