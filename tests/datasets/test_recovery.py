"""Recorded races that are driven again with disturbances, to show how to come back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from rulka.contracts.actions import action_table
from rulka.contracts.observation import CAR, centres_of_mass
from rulka.datasets import recovery
from rulka.datasets.formats.races import Race
from rulka.datasets.recovery import RecoveryError, drive_again
from rulka.planner.demonstrations import record_demonstrations
from rulka.planner.planner import Planner
from rulka.recordings.car_rows import interpolate_rows
from rulka.simulator.race_settings import RaceSettings
from rulka.simulator.simulator import Simulator
from rulka.tracks.progress import progress_along
from tasks.races import race_of_driver
from tests.datasets.conftest import PARAMS, TRACK

SIMULATOR = PARAMS.simulator


@pytest.fixture(scope="module")
def race() -> Race:
    return driven_race()


class Drive(NamedTuple):
    """The first drive of a race, with what was planned and what was held in each decision."""

    race: Race
    planned: list[np.ndarray]
    held: list[np.ndarray]


@pytest.fixture(scope="module")
def drive(race: Race) -> Drive:
    planned, held, plan, step = list[np.ndarray](), list[np.ndarray](), Planner.controls, Simulator.step_controls
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Planner, "controls", lambda *args: (found := plan(*args), planned.append(found[0]))[0])
        patch.setattr(Simulator, "step_controls", lambda own, inputs: held.append(inputs) or step(own, inputs))
        return Drive(drive_again(race, TRACK, SIMULATOR, 5, 0), planned, held)


def driven_race(**changes: Any) -> Race:
    """The fastest of three races of the built-in driver."""
    settings = RaceSettings.for_demonstrations(PARAMS.actions, SIMULATOR, PARAMS.race_end)
    driven = record_demonstrations(TRACK, settings, PARAMS.races.driver.model_copy(update=changes), 3, 1)
    finished = [race_of_driver(one, TRACK.uid, action_table(5)) for one in driven if one.is_finished]
    return min(finished, key=lambda one: one.race_time_ms or 0)


def sideways_m(race: Race, beside: Race) -> np.ndarray:
    """Metres between a race and the line of another, at each of its samples."""
    _, along_m, lateral_m = progress_along(TRACK, centres_of_mass(race.state))
    _, there_m, line_m = progress_along(TRACK, centres_of_mass(beside.state))
    return np.abs(lateral_m - np.interp(along_m, there_m, line_m))


def test_a_race_is_disturbed_comes_back_and_is_always_the_same(race: Race, drive: Drive) -> None:
    first, again, other = drive.race, *(drive_again(race, TRACK, SIMULATOR, 5, number) for number in (0, 1))
    for one in (first, other):
        assert one.map_uid == race.map_uid
        assert one.source == "recovery"
        assert len(one.controls) == 5 * len(one.state), "a decision's inputs for each state"
        assert one.state_time_ms.tolist() == list(range(0, 50 * len(one.state), 50))
        away_m = sideways_m(one, race)
        assert away_m.max() > 0.4, "it was off the line"
        assert np.median(away_m) < 0.2, "and came back"
        _, along_m, _ = progress_along(TRACK, centres_of_mass(one.state))
        assert along_m[-1] > TRACK.length_m - 5.0
    assert first.race_id == again.race_id != other.race_id
    np.testing.assert_array_equal(first.state, again.state)
    np.testing.assert_array_equal(first.controls, again.controls)
    assert not np.array_equal(first.state[:50], other.state[:50])


def test_labels_steer_back_also_while_something_else_is_held(race: Race) -> None:
    """Off to the left it steers right on average, and the other way round: by the labels, not by what was held."""
    drives = [drive_again(race, TRACK, SIMULATOR, 5, number) for number in range(3)]
    steers, asides = [], []
    for one in drives:
        _, along_m, lateral_m = progress_along(TRACK, centres_of_mass(one.state))
        _, there_m, line_m = progress_along(TRACK, centres_of_mass(race.state))
        tick = np.minimum(race.state_time_ms // 10, race.num_ticks - 1)
        steers.append(one.controls[::5, 0] - np.interp(along_m, there_m, race.controls[tick, 0]))
        asides.append(lateral_m - np.interp(along_m, there_m, line_m))
    steer, aside = np.concatenate(steers), np.concatenate(asides)
    assert steer[aside > 0.2].mean() > 0.03
    assert steer[aside < -0.2].mean() < -0.03


def test_labels_are_plans_whatever_is_held(drive: Drive) -> None:
    assert len(drive.planned) == len(drive.race.state), "no disturbance was undone"
    labels = np.repeat(np.concatenate(drive.planned), 5, axis=0).astype(np.float32)
    np.testing.assert_array_equal(drive.race.controls, labels)
    is_disturbed = (np.repeat(np.concatenate(drive.held), 5, axis=0) != drive.race.controls).any(axis=1)
    assert 0.1 < is_disturbed.mean() < 0.5


def test_a_late_car_follows_at_the_recorded_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disturbances cost time, which a policy does not see: labels that made up for it would teach it to speed."""
    monkeypatch.setattr(recovery, "SPEED_ERROR", 0.3)
    slow = driven_race(pace_low=0.6, pace=0.6)
    _, there_m, _ = progress_along(TRACK, centres_of_mass(slow.state))
    excess, late_ms = [], []
    for number in range(4):
        one = drive_again(slow, TRACK, SIMULATOR, 5, number)
        _, along_m, _ = progress_along(TRACK, centres_of_mass(one.state))
        speed, recorded = (np.linalg.norm(each.state[:, CAR["velocity"]], axis=1) for each in (one, slow))
        excess.append(speed - np.interp(along_m, there_m, recorded))
        late_ms.append(one.state_time_ms - np.interp(along_m, there_m, slow.state_time_ms))
    is_late = np.concatenate(late_ms) > 100.0
    assert is_late.mean() > 0.2
    assert np.median(np.concatenate(excess)[is_late]) < 0.1


def test_a_race_that_the_simulator_cannot_follow_is_named(race: Race) -> None:
    weak = SIMULATOR.model_copy(
        update={"physics": SIMULATOR.physics.model_copy(update={"push_mps2": (0.5, 0.5, 0.5, 0.5)})}
    )
    said = r"^a\.Gbx cannot be driven again: the simulated car (left the track|took longer).*, at \d+ m of 250 m"
    with pytest.raises(RecoveryError, match=said) as caught:
        drive_again(replace(race, file="a.Gbx"), TRACK, weak, 5, 0)
    assert "left out" in caught.value.for_people()


def test_a_recording_of_samples_ten_times_a_second_does_as_well(race: Race) -> None:
    rare = np.arange(0, race.state_time_ms[-1] + 1, 100)
    sampled = replace(race, state_time_ms=rare, state=interpolate_rows(race.state_time_ms, race.state, rare))
    one = drive_again(sampled, TRACK, SIMULATOR, 5, 0)
    assert np.median(sideways_m(one, race)) < 0.5
