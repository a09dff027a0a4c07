"""Captured races show exactly what an agent in the simulator would have seen and done."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rulka.contracts.observation import CAR, FLOATS, NUM_CAR_FIELDS, NUM_FLOATS
from rulka.datasets.capture import (
    capture_race,
    captured_race,
    cars_at,
    decision_times,
    previous_keys,
)
from rulka.datasets.formats.races import Race
from rulka.planner.demonstrations import DrivenRace
from rulka.recordings.car_rows import gearbox_counter
from rulka.simulator.render import FrameRenderer
from rulka.simulator.scene import bake_scene
from rulka.simulator.simulator import Simulator
from tasks.races import race_of_driver
from tests.datasets.conftest import PARAMS, SETTINGS, TABLE, TRACK, random_race


def race_with(**changes: object) -> Race:
    """Full gas for 395 ms, of which the last sample is at 300."""
    controls, state = np.zeros((40, 3), np.float32), np.tile(np.eye(1, NUM_CAR_FIELDS, 3, dtype=np.float32), (4, 1))
    controls[:, 1] = 1.0
    held = {"race_time_ms": 395, "controls": controls, "state_time_ms": np.arange(4) * 100, "state": state}
    return replace(random_race("x", 40), **held | changes)


def drive() -> tuple[DrivenRace, np.ndarray, np.ndarray]:
    """Steers for the waypoint 10 m ahead; also returns what an agent sees before each decision."""
    simulator = Simulator(TRACK, 1, PARAMS.simulator, TABLE)
    simulator.reset(np.ones(1, np.bool_), lateral_m=1.5)
    scene = bake_scene(TRACK)
    rows, times = [simulator.cars[0].copy()], [0]
    actions, floats, frames = [], [], []
    while not simulator.is_finished[0]:
        out = np.empty((1, NUM_FLOATS), np.float32)
        simulator.floats(out)
        image = np.empty((1, 64, 64), np.uint8)
        FrameRenderer(simulator.cars, simulator.zone_index, scene, SETTINGS.camera).render(image)
        lateral_m, forward_mps = out[0, FLOATS["waypoints"].start + 3], out[0, FLOATS["velocity"].start + 2]
        action = np.array([(1 if lateral_m > 0.5 else 2 if lateral_m < -0.5 else 0) + (3 if forward_mps > 15 else 0)])
        floats.append(out[0])
        frames.append(image)
        actions.append(action[0])
        simulator.step(action)
        rows.append(simulator.cars[0].copy())
        times.append(int(simulator.time_ms[0]))
        assert len(actions) < 2000, "the driver did not finish"
    gates = tuple(int(time) for time in simulator.gate_time_ms[0])
    driven = DrivenRace(
        0, 0, np.array(actions), np.array(rows), np.array(times), gates, gates[-1], float(simulator.along_m[0])
    )
    return driven, np.array(floats), np.array(frames)


def test_a_simulated_race_is_captured_as_the_agent_saw_it() -> None:
    driven, floats, frames = drive()
    captured = capture_race(race_of_driver(driven, TRACK.uid, TABLE), TRACK, bake_scene(TRACK), SETTINGS)
    np.testing.assert_array_equal(captured.action, driven.actions)
    np.testing.assert_array_equal(captured.action_share, np.eye(12, dtype=np.float32)[driven.actions])
    np.testing.assert_array_equal(captured.tick_actions, np.repeat(driven.actions[:, None], 5, axis=1))
    np.testing.assert_array_equal(captured.controls, TABLE.analog()[driven.actions])
    np.testing.assert_array_equal(captured.time_ms, 50 * np.arange(len(driven.actions)))
    for name, part in FLOATS.items():
        if name not in ("waypoints", "margin"):
            np.testing.assert_array_equal(captured.floats[:, part], floats[:, part], err_msg=name)
    np.testing.assert_allclose(captured.floats[:, FLOATS["margin"]], floats[:, FLOATS["margin"]], atol=0.01)
    # The zone is found from the stored float32 position: a car exactly between two zones may count to the other one,
    # and every waypoint is then one zone (0.5 m) further or nearer.
    difference = np.abs(captured.floats[:, FLOATS["waypoints"]] - floats[:, FLOATS["waypoints"]]).max(axis=1)
    assert difference.max() < 0.51
    assert (difference == 0).mean() > 0.98
    np.testing.assert_array_equal(captured.image[difference == 0], frames[difference == 0])
    assert len(np.unique(captured.image)) > 10


def test_decisions_run_to_the_finish() -> None:
    assert decision_times(race_with(), 50).tolist() == [0, 50, 100, 150, 200, 250, 300, 350]
    assert decision_times(race_with(race_time_ms=350), 50)[-1] == 300
    # Nothing is known of the car 200 ms after its last sample.
    assert decision_times(race_with(race_time_ms=None, controls=np.zeros((99, 3), np.float32)), 50)[-1] == 450


def test_analog_controls_stay_raw_and_are_meaned_by_hand() -> None:
    """Decision 2 shows ticks 5 to 9: steering 0.2 in three of them and -0.6 in two is -0.12, gas is half pressed."""
    race = race_with()
    race.controls[5:8, 0], race.controls[8:10, 0], race.controls[5:10, 1] = 0.2, -0.6, 0.5
    decision_ms, image = np.array([0, 50]), np.zeros((2, 64, 64), np.uint8)
    mean = captured_race(race, TRACK, decision_ms, np.zeros((2, NUM_CAR_FIELDS), np.float32), image, SETTINGS).controls
    np.testing.assert_allclose(mean[1], [-0.12, 0.5, 0.0], atol=1e-6)


def test_previous_keys_are_a_decision_apart_and_begin_with_forward() -> None:
    keys = previous_keys(np.array([6, 1, 2]), TABLE)
    forward, brake, left = [1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0]
    assert keys[0].tolist() == [forward] * 5
    assert keys[1].tolist() == [forward] * 4 + [brake]
    assert keys[2].tolist() == [forward] * 3 + [brake, left]


def test_gearbox_counter_by_hand() -> None:
    assert gearbox_counter(np.array([2, 1, 1, 0, 1, 2, 0], np.float32)).tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_stored_samples_are_taken_as_they_are_and_others_lie_between() -> None:
    race = race_with()
    rng = np.random.default_rng(0)
    race.state[:, CAR["velocity"]] = rng.normal(size=(4, 3))
    race.state[:, CAR["position"]] = np.cumsum(rng.normal(size=(4, 3)), axis=0)
    race.state[:, CAR["rotation"]] = np.eye(3).ravel()
    race.state[:, CAR["rpm"]] = np.array([[1000.0], [2000.0], [3000.0], [4000.0]])
    cars = cars_at(race, np.array([0, 50, 100, 250, 300]))
    np.testing.assert_array_equal(cars[[0, 2, 4]], race.state[[0, 1, 3]])
    np.testing.assert_allclose(cars[[1, 3], CAR["rpm"].start], [1500.0, 3500.0])
