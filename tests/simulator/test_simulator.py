import numpy as np
import pytest

from rulka.contracts.observation import CAR, FLOATS, NUM_CAR_FIELDS
from rulka.simulator import car as columns
from rulka.simulator.simulator import Simulator, SimulatorError
from rulka.tracks.generate import generate_track
from rulka.tracks.track import Track


@pytest.fixture(scope="module")
def track(params):
    return generate_track(**params.track.model_dump())


def everyone(simulator: Simulator) -> np.ndarray:
    return np.ones(simulator.num_cars, bool)


def spread(simulator: Simulator, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    n = simulator.num_cars
    places = rng.uniform(0, 500, n), rng.uniform(-5, 5, n), rng.uniform(-0.2, 0.2, n), rng.uniform(0, 50, n)
    simulator.reset(everyone(simulator), *places)


def test_rows_have_the_observations_columns() -> None:
    names = ["position", "rotation", "velocity", "angular_velocity", "is_sliding", "has_contact", "damper", "material"]
    names += ["gearbox_state", "gear", "rpm", "gearbox_counter", "is_free_wheeling"]
    kernel = "POSITION ROTATION VELOCITY SPIN SLIDING CONTACT DAMPER MATERIAL GEARBOX GEAR RPM COUNTER FREE_WHEELING"
    assert [CAR[name].start for name in names] == [getattr(columns, f"R_{name}") for name in kernel.split()]
    assert columns.R_FREE_WHEELING + 1 == NUM_CAR_FIELDS


def test_mirrored_track_and_inputs_give_the_mirrored_path(track, simulator_params, table) -> None:
    changes = {"centre_m": track.centre_m * np.array([-1.0, 1.0, 1.0]), "bank_rad": -track.bank_rad}
    mirrored = Track(**{name: getattr(track, name) for name in Track.__dataclass_fields__} | changes)
    plain, mirror = (Simulator(each, 4, simulator_params, table) for each in (track, mirrored))
    along, lateral, heading, speed = [0, 80, 200, 420], [1.0, -3.0, 0.0, 4.0], [0.1, 0.0, -0.1, 0.05], [0, 30, 20, 40]
    plain.reset(everyone(plain), along, lateral, heading, speed)
    mirror.reset(everyone(mirror), along, np.negative(lateral), np.negative(heading), speed)
    rng = np.random.default_rng(1)
    for _ in range(60):
        controls = rng.uniform([-1, 0, 0], [1, 1, 0.3], (4, 3)).astype(np.float32)
        plain.step_controls(controls)
        mirror.step_controls(controls * np.array([-1, 1, 1], np.float32))
        there = mirror.cars[:, CAR["position"]] * np.array([-1, 1, 1], np.float32)
        np.testing.assert_allclose(plain.cars[:, CAR["position"]], there, atol=1e-3)
        np.testing.assert_array_equal(plain.cars[:, CAR["gear"]], mirror.cars[:, CAR["gear"]])
        np.testing.assert_allclose(plain.lateral_m, -mirror.lateral_m, atol=1e-3)


def test_reset_and_restore_of_some_leave_the_others(track, simulator_params, table) -> None:
    simulator = Simulator(track, 3, simulator_params, table)
    start, middle = simulator.save(), np.array([False, True, False])
    for _ in range(10):
        simulator.step(np.zeros(3, np.int64))
    moved = simulator.save()
    simulator.restore(start, middle)
    assert simulator.save()[1].tobytes() == start[1].tobytes()
    simulator.reset(middle, along_m=np.array([99.0, 50.0, 99.0]))
    assert simulator.along_m[1] == pytest.approx(50.0)
    assert simulator.save()[[0, 2]].tobytes() == moved[[0, 2]].tobytes()
    with pytest.raises(SimulatorError, match="do not fit"):
        simulator.restore(start[:2])


def test_a_placed_car_stands_still_on_the_surface(track, simulator_params, table) -> None:
    """With its springs at rest a placed car stays at its height above the road, and on the level it does not move."""
    track = generate_track(5, 600.0, 16.0, 0.0, 120.0)
    simulator = Simulator(track, 40, simulator_params, table)
    lateral = np.linspace(-7, 7, 40)
    simulator.reset(everyone(simulator), np.linspace(0, 590, 40), lateral)
    before = simulator.cars[:, CAR["position"]].copy()
    np.testing.assert_allclose(simulator.lateral_m, lateral, atol=1e-9)
    for _ in range(20):
        simulator.step(np.full(40, 3))  # no gas, no brake: the brake would reverse
    np.testing.assert_allclose(simulator.cars[:, CAR["position"]], before, atol=0.002)
    assert simulator.cars[:, CAR["has_contact"]].all()


def test_reset_places_where_it_is_told(track, simulator_params, table) -> None:
    simulator = Simulator(track, 3, simulator_params, table)
    simulator.reset(everyone(simulator), [0.0, 130.25, 300.0], [0.0, 2.0, -4.0], [0.0, 0.3, 0.0], [0.0, 35.0, 50.0])
    np.testing.assert_allclose(simulator.along_m, [0.0, 130.25, 300.0])
    assert simulator.zone_index.tolist() == [0, 260, 600]
    assert simulator.gate_index.tolist() == [0, 1, 2]  # gates every 120 m
    assert simulator.time_ms.tolist() == [0, 0, 0]
    assert simulator.cars[:, CAR["gearbox_state"]].ravel().tolist() == [2, 0, 0]
    assert simulator.cars[:, CAR["gear"]].ravel().tolist() == [1, 2, 3]
    rotation = simulator.cars[:, CAR["rotation"]].reshape(-1, 3, 3)
    forward_speed = np.einsum("ni,ni->n", simulator.cars[:, CAR["velocity"]], rotation[:, :, 2])
    np.testing.assert_allclose(forward_speed, [0.0, 35.0, 50.0], rtol=1e-6)
    # heading 0.3 rad left of the road: the car's forward axis has sin(0.3) of the road's left
    out = np.empty((3, 184), np.float32)
    simulator.floats(out)
    ahead = out[1, FLOATS["waypoints"]].reshape(40, 3)
    assert ahead[1, 0] < ahead[0, 0]  # so the road ahead lies to the right
    assert (simulator.previous_keys == np.array([1, 0, 0, 0])).all()


def test_finish_is_interpolated_and_freezes_the_car(make_track, simulator_params, table) -> None:
    """Rolling at a steady 40 m/s from 10 m: gates at 60.08 and 100 m come after 1252 and 2250 ms."""
    free = simulator_params.physics.model_copy(
        update={"engine_brake_mps2": 0.0, "engine_brake_per_s": 0.0, "rolling": 0.0, "scrub": 0.0}
    )
    steady = simulator_params.model_copy(update={"physics": free})
    simulator = Simulator(make_track(100.0, gates=(60.08,)), 2, steady, table)
    simulator.reset(everyone(simulator), along_m=10.0, speed_mps=[40.0, 20.0])
    frozen = None
    for _ in range(60):
        simulator.step(np.full(2, 3))
        if simulator.is_finished[0] and frozen is None:
            frozen = simulator.save()[0]
    # 50.08 m at 40 m/s
    assert simulator.gate_time_ms[0].tolist() == [1252, 2250]
    assert simulator.gate_index.tolist() == [2, 1]
    assert simulator.is_finished.tolist() == [True, False]
    assert simulator.save()[0].tobytes() == frozen.tobytes()
    assert simulator.time_ms[0] == 2250
    assert simulator.time_ms[1] == 3000
    assert simulator.gate_time_ms[1].tolist() == [2504, 0]  # 50.08 m at 20 m/s


def test_too_far_beside_the_road_is_off_track(make_track, simulator_params, table) -> None:
    """A road 16 m wide ends 8 m beside its line, the track 6 m further."""
    for side in (1.0, -1.0):
        simulator = Simulator(make_track(), 2, simulator_params, table)
        simulator.reset(everyone(simulator), 50.0, side * np.array([13.5, 0.0]), side * 0.2, 20.0)
        for _ in range(8):
            simulator.step(np.zeros(2, np.int64))
        assert simulator.is_off_track.tolist() == [True, False]
        assert abs(simulator.lateral_m[0]) == pytest.approx(14.0, abs=0.1)
        stopped = simulator.time_ms[0]
        simulator.step(np.zeros(2, np.int64))
        assert simulator.time_ms[0] == stopped < simulator.time_ms[1]
        assert not simulator.is_finished.any()


def test_actions_controls_and_places_that_are_none_are_refused(make_track, simulator_params, table) -> None:
    simulator = Simulator(make_track(400.0), 2, simulator_params, table)
    for actions in ([12, 0], [-1, 0], [0], [0.0, 1.0], [np.nan, 0.0]):
        with pytest.raises(SimulatorError, match="actions must be"):
            simulator.step(np.array(actions))
    for bad in ([1.1, 0, 0], [0, -0.1, 0], [0, 0, np.nan], [0, 1.5, 0]):
        with pytest.raises(SimulatorError, match="controls must be"):
            simulator.step_controls(np.array([[0, 1, 0], bad], np.float32))
    for place in ({"along_m": 400.0}, {"along_m": -1.0}, {"speed_mps": -1.0}, {"lateral_m": np.nan}):
        with pytest.raises(SimulatorError, match="cars are placed"):
            simulator.reset(everyone(simulator), **place)


def test_previous_keys_hold_the_last_five_decisions(make_track, simulator_params, table) -> None:
    simulator = Simulator(make_track(), 1, simulator_params, table)
    for action in (1, 2, 6):
        simulator.step(np.array([action]))
    forward, left, right, brake = [1, 0, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1], [0, 1, 0, 0]
    assert simulator.previous_keys[0].tolist() == [forward, forward, left, right, brake]


def test_floats_show_the_car_frame(make_track, simulator_params, table) -> None:
    simulator = Simulator(make_track(), 1, simulator_params, table)
    simulator.reset(everyone(simulator), lateral_m=2.0, speed_mps=10.0)
    row = np.empty((1, 184), np.float32)
    simulator.floats(row)
    assert row[0, FLOATS["velocity"]] == pytest.approx([0.0, 0.0, 10.0], abs=1e-5)
    assert row[0, FLOATS["up"]] == pytest.approx([0.0, 1.0, 0.0], abs=1e-6)
    waypoints = row[0, FLOATS["waypoints"]].reshape(-1, 3)
    # the line is 2 m to the right, and the car's position 0.36 m above the road, 0.37 m behind the centre of mass
    assert waypoints[0] == pytest.approx([-2.0, -0.36, 0.37], abs=1e-5)
    assert waypoints[39] == pytest.approx([-2.0, -0.36, 390.37], abs=1e-3)
    assert row[0, FLOATS["margin"]] == pytest.approx(400.0)
