from __future__ import annotations

import numpy as np
import pytest

from rulka.actions import action_table
from rulka.observation import CAR, FLOATS, NUM_FLOATS
from rulka.params import Params
from rulka.simulator.simulator import Simulator, SimulatorError
from rulka.tracks.generate import generate_track
from rulka.tracks.track import Track
from tests.simulator.conftest import track_of

TABLE = action_table(5)
FORWARD, LEFT, RIGHT, COAST, BRAKE = 0, 1, 2, 3, 6


def cars(track: Track, params: Params, num: int = 1, **start: float | np.ndarray) -> Simulator:
    simulator = Simulator(track, num, params.simulator, TABLE)
    simulator.reset(np.ones(num, bool), **start)
    return simulator


def speed_of(simulator: Simulator) -> np.ndarray:
    return np.linalg.norm(simulator.cars[:, CAR["velocity"]], axis=1)


def drive(simulator: Simulator, action: int, decisions: int) -> None:
    for _ in range(decisions):
        simulator.step(np.full(simulator.num_cars, action))


def test_full_throttle_goes_straight_and_gains_speed(straight: Track, params: Params) -> None:
    simulator = cars(straight, params)
    drive(simulator, FORWARD, 40)
    assert speed_of(simulator)[0] == pytest.approx(27.0, abs=3.0)  # 2 s of 16 m/s2, falling with speed
    assert simulator.lateral_m[0] == pytest.approx(0.0, abs=1e-9)
    assert simulator.time_ms[0] == 2000


def test_coasting_on_the_flat_never_gains_energy(straight: Track, params: Params) -> None:
    simulator = cars(straight, params, speed_mps=30.0)
    last = 30.0
    for _ in range(60):
        drive(simulator, COAST, 1)
        now = float(speed_of(simulator)[0])
        assert now < last
        last = now


def test_brake_stops_the_car_and_holds_it(straight: Track, params: Params) -> None:
    simulator = cars(straight, params, speed_mps=20.0)
    drive(simulator, BRAKE, 40)
    assert speed_of(simulator)[0] == 0.0
    assert simulator.along_m[0] == pytest.approx(20.0**2 / (2 * 21.0), rel=0.2)  # grip bounds the brake near 20 m/s2


def test_positive_steering_turns_right(straight: Track, params: Params) -> None:
    simulator = cars(straight, params, num=2, speed_mps=20.0)
    for _ in range(10):
        simulator.step(np.array([LEFT, RIGHT]))
    assert simulator.lateral_m[0] > 0.5
    assert simulator.lateral_m[1] == pytest.approx(-simulator.lateral_m[0], abs=1e-9)


def test_mirrored_track_and_inputs_mirror_the_path(params: Params) -> None:
    heading = np.sin(np.arange(801) / 80.0)
    height = 3.0 * np.sin(np.arange(801) / 60.0)
    one = cars(track_of(height, heading), params, lateral_m=1.0, speed_mps=15.0)
    other = cars(track_of(height, -heading), params, lateral_m=-1.0, speed_mps=15.0)
    mirror = {FORWARD: FORWARD, LEFT: RIGHT, RIGHT: LEFT, BRAKE: BRAKE}
    for action in np.random.default_rng(3).choice([FORWARD, LEFT, RIGHT, BRAKE], 80):
        one.step(np.array([action]))
        other.step(np.array([mirror[int(action)]]))
    assert np.allclose(one.cars[:, :3] * [-1, 1, 1], other.cars[:, :3], atol=1e-4)
    assert one.along_m[0] == pytest.approx(other.along_m[0], abs=1e-6)


def test_path_does_not_depend_on_the_batch(params: Params) -> None:
    track = generate_track(**params.track.model_dump())
    rng = np.random.default_rng(1)
    start = {"along_m": rng.uniform(0, 400, 32), "lateral_m": rng.uniform(-3, 3, 32), "speed_mps": np.full(32, 20.0)}
    many = cars(track, params, num=32, **start)
    alone = cars(track, params, **{name: values[17:18] for name, values in start.items()})
    for _ in range(100):
        actions = rng.integers(0, 12, 32)
        many.step(actions)
        alone.step(actions[17:18])
    assert np.array_equal(many.cars[17], alone.cars[0])
    assert many.along_m[17] == alone.along_m[0]


def test_restore_brings_back_every_bit(params: Params) -> None:
    track = generate_track(**params.track.model_dump())
    simulator, rng = cars(track, params, num=8, speed_mps=25.0), np.random.default_rng(2)
    for _ in range(20):
        simulator.step(rng.integers(0, 12, 8))
    saved, plan = simulator.save(), rng.integers(0, 12, (40, 8))

    def future() -> tuple[np.ndarray, np.ndarray]:
        floats = np.empty((8, NUM_FLOATS), np.float32)
        for actions in plan:
            simulator.step(actions)
        simulator.floats(floats)
        return simulator.cars.copy(), floats

    first = future()
    simulator.restore(saved)
    second = future()
    assert np.array_equal(first[0], second[0])
    assert np.array_equal(first[1], second[1])


def test_car_flies_over_a_crest_and_lands(crest: Track, params: Params) -> None:
    fast, slow = (cars(crest, params, along_m=95.0, speed_mps=speed) for speed in (45.0, 10.0))
    contact = {"fast": [], "slow": []}
    for _ in range(100):
        for name, simulator in (("fast", fast), ("slow", slow)):
            simulator.step(np.array([COAST]))
            contact[name].append(float(simulator.cars[0, CAR["has_contact"]].mean()))
    assert min(contact["fast"]) == 0.0  # 45^2 / 50 m = 40 m/s2 would be needed to stay down
    assert contact["fast"][-1] == 1.0
    assert min(contact["slow"]) == 1.0  # 10^2 / 50 m = 2 m/s2 is less than gravity


def test_no_steering_and_no_engine_in_the_air(crest: Track, params: Params) -> None:
    one, other = (cars(crest, params, along_m=99.0, speed_mps=45.0) for _ in range(2))
    for simulator in (one, other):
        drive(simulator, COAST, 2)
        assert simulator.cars[0, CAR["has_contact"]].mean() == 0.0
    drive(one, LEFT, 2)
    drive(other, COAST, 2)
    assert np.array_equal(one.cars[0, CAR["velocity"]], other.cars[0, CAR["velocity"]])


def test_grass_then_off_the_track(straight: Track, params: Params) -> None:
    simulator = cars(straight, params, lateral_m=8.5, heading_rad=0.3, speed_mps=20.0)
    drive(simulator, FORWARD, 1)
    assert simulator.cars[0, CAR["material"]].tolist() == [2.0] * 4
    drive(simulator, FORWARD, 40)
    assert simulator.is_off_track[0]
    stopped = simulator.cars.copy()
    drive(simulator, FORWARD, 3)
    assert np.array_equal(simulator.cars[:, :12], stopped[:, :12])
    assert not simulator.is_finished[0]


def test_gates_are_timed_inside_the_tick(straight: Track, params: Params) -> None:
    simulator = cars(straight, params, along_m=190.0, speed_mps=50.0)
    assert simulator.gate_index[0] == 0
    drive(simulator, COAST, 10)
    assert simulator.gate_index[0] == 1
    # 10 m at 50 m/s, slowed by rolling and drag (1.5 m/s2): 200.6 ms.
    assert simulator.gate_time_ms[0, 0] == pytest.approx(200.6, abs=1.0)


def test_finish_ends_the_race(straight: Track, params: Params) -> None:
    simulator = cars(straight, params, along_m=395.0, speed_mps=30.0)
    drive(simulator, FORWARD, 10)
    assert simulator.is_finished[0]
    assert simulator.gate_time_ms[0, -1] == pytest.approx(5.0 / 30.0 * 1000, abs=10)
    assert simulator.time_ms[0] <= simulator.gate_time_ms[0, -1] + 10


def test_a_changed_constant_takes_effect(straight: Track, params: Params) -> None:
    weak = params.simulator.model_copy(
        update={"physics": params.simulator.physics.model_copy(update={"engine_mps2": 8.0})}
    )
    strong_car, weak_car = Simulator(straight, 1, params.simulator, TABLE), Simulator(straight, 1, weak, TABLE)
    drive(strong_car, FORWARD, 20)
    drive(weak_car, FORWARD, 20)
    assert speed_of(weak_car)[0] < 0.6 * speed_of(strong_car)[0]


def test_hard_turns_slide_and_gentle_ones_do_not(straight: Track, params: Params) -> None:
    fast, slow = cars(straight, params, speed_mps=40.0), cars(straight, params, speed_mps=5.0)
    drive(fast, LEFT, 8)
    drive(slow, LEFT, 8)
    assert fast.cars[0, CAR["is_sliding"]].all()
    assert not slow.cars[0, CAR["is_sliding"]].any()


def test_floats_show_the_car_frame(straight: Track, params: Params) -> None:
    simulator = cars(straight, params, lateral_m=2.0, speed_mps=10.0)
    floats = np.empty((1, NUM_FLOATS), np.float32)
    simulator.floats(floats)
    row = floats[0]
    assert row[FLOATS["velocity"]] == pytest.approx([0.0, 0.0, 10.0], abs=1e-5)
    assert row[FLOATS["up"]] == pytest.approx([0.0, 1.0, 0.0], abs=1e-6)
    waypoints = row[FLOATS["waypoints"]].reshape(-1, 3)
    assert waypoints[0] == pytest.approx([-2.0, 0.0, 0.0], abs=1e-5)  # the line is 2 m to the right
    assert waypoints[39] == pytest.approx([-2.0, 0.0, 390.0], abs=1e-3)
    assert row[FLOATS["margin"]] == pytest.approx(400.0)
    assert row[FLOATS["previous_actions"]].reshape(5, 4).tolist() == [[1, 0, 0, 0]] * 5


@pytest.mark.parametrize("actions", [np.array([12]), np.array([-1]), np.array([0, 0])])
def test_actions_outside_the_table_are_refused(straight: Track, params: Params, actions: np.ndarray) -> None:
    with pytest.raises(SimulatorError, match="actions must be 1 indices"):
        cars(straight, params).step(actions)


@pytest.mark.parametrize("controls", [[np.nan, 0, 0], [1.5, 0, 0], [0, -0.1, 0]])
def test_controls_out_of_range_are_refused(straight: Track, params: Params, controls: list[float]) -> None:
    with pytest.raises(SimulatorError, match="controls must be"):
        cars(straight, params).step_controls(np.array([controls], np.float32))
