from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from rulka.actions import ActionTable
from rulka.observation import CAR
from rulka.params import SimulatorParams
from rulka.simulator import car, physics
from rulka.simulator.compiling import source_stamp
from rulka.simulator.simulator import Simulator
from rulka.tracks.progress import line_frames
from rulka.tracks.track import DRIVEN_SOURCE, Track

GAS, COAST, BRAKE = (0.0, 1.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 1.0)


def drive(simulator: Simulator, controls: tuple[float, float, float], decisions: int) -> np.ndarray:
    """Returns [T, N, 39] the rows after each decision."""
    held = np.tile(np.array(controls, np.float32), (simulator.num_cars, 1))
    rows = []
    for _ in range(decisions):
        simulator.step_controls(held)
        rows.append(simulator.cars.copy())
    return np.array(rows)


def speeds(rows: np.ndarray) -> np.ndarray:
    return np.linalg.norm(rows[..., CAR["velocity"]].astype(np.float64), axis=-1)


def start(track: Track, params: SimulatorParams, table: ActionTable, **place: float) -> Simulator:
    simulator = Simulator(track, 1, params, table)
    simulator.reset(np.ones(1, bool), **place)
    return simulator


def changed(params: SimulatorParams, **values: object) -> SimulatorParams:
    physics = params.physics.model_copy(update=values)
    return params.model_copy(update={"physics": physics})


@pytest.mark.parametrize("steer", [0.0, 0.4, -1.0])
def test_coasting_on_the_flat_never_gains_energy(make_track, simulator_params, table, steer: float) -> None:
    simulator = start(make_track(900.0), simulator_params, table, along_m=10.0, speed_mps=40.0)
    speed = speeds(drive(simulator, (steer, 0.0, 0.0), 40))[:, 0]
    assert (np.diff(speed) <= 1e-9).all()
    assert speed[-1] < 35.0


def test_coasting_over_hills_never_gains_energy(make_track, simulator_params, table) -> None:
    """Kinetic and potential energy together fall, but for what the springs lend and give back."""
    free = changed(simulator_params, engine_brake_per_s=0.0, rolling_mps2=0.0, drag_per_m=0.0)
    track = make_track(900.0, slope=lambda s: 0.1 * np.sin(s / 25.0))
    rows = drive(start(track, free, table, along_m=5.0, speed_mps=30.0), COAST, 300)[:, 0]
    height = rows[:, CAR["position"]][:, 1].astype(np.float64)
    energy = 0.5 * speeds(rows) ** 2 + free.physics.gravity_mps2 * height
    lent = free.physics.gravity_mps2 * 0.1  # a tenth of a metre of spring
    assert (energy <= np.minimum.accumulate(np.r_[energy[0], energy[:-1]]) + lent).all()
    assert energy[-1] > 0.9 * energy[0]  # and nothing else eats it up


def test_acceleration_from_rest_by_hand(make_track, simulator_params, table) -> None:
    """Gear 1 pushes with 16.2 m/s2 less 0.3 of rolling: after 1 s 15.9 m/s, less a little air drag, 7.95 m."""
    simulator = start(make_track(), simulator_params, table)
    rows = drive(simulator, GAS, 20)
    assert speeds(rows)[-1, 0] == pytest.approx(15.9, abs=0.05)
    assert simulator.along_m[0] == pytest.approx(7.95, abs=0.15)
    assert rows[-1, 0, CAR["gear"]] == 1
    assert rows[-1, 0, CAR["rpm"]] == pytest.approx(360.0 * 15.9, rel=0.01)


def test_gears_go_up_with_a_pause_each_and_down_again(make_track, simulator_params, table) -> None:
    simulator = start(make_track(2500.0), simulator_params, table)
    up = drive(simulator, GAS, 260)[:, 0]
    gears = up[:, CAR["gear"]].ravel()
    assert gears[0] == 1
    assert gears[-1] == 5
    assert (np.diff(gears) >= 0).all()
    shifting = up[:, CAR["gearbox_state"]].ravel() == 1
    counter = up[:, CAR["gearbox_counter"]].ravel()
    assert counter.max() == 3  # 150 ms are three decisions
    assert ((counter > 0) == shifting).all()
    assert drive(simulator, BRAKE, 80)[-1, 0, CAR["gear"]] == 1


def test_brake_stops_and_does_not_reverse(make_track, simulator_params, table) -> None:
    simulator = start(make_track(), simulator_params, table, along_m=50.0, speed_mps=30.0)
    speed = speeds(drive(simulator, BRAKE, 40))[:, 0]
    assert (np.diff(speed) <= 0).all()
    assert speed[-1] == 0.0
    # at least 29 m/s2: from 30 m/s within 15.5 m
    assert 50.0 < simulator.along_m[0] < 50.0 + 15.6


def test_engine_brake_waits(make_track, simulator_params, table) -> None:
    """Off the gas nothing but air and wheels slow the car for 0.12 s, then 0.31 of its speed each second."""
    simulator = start(make_track(900.0), simulator_params, table, along_m=10.0, speed_mps=60.0)
    speed = np.r_[60.0, speeds(drive(simulator, COAST, 10))[:, 0]]
    lost = -np.diff(speed) / 0.05
    assert lost[0] == pytest.approx(0.3 + 0.0001 * 60**2, abs=0.05)
    assert lost[5] == pytest.approx(0.66 + 0.31 * speed[5], rel=0.03)


@pytest.mark.parametrize(("speed_mps", "radius_m"), [(25.0, 22.0), (45.0, 36.0), (75.0, 90.0)])
def test_full_lock_drives_the_measured_radius(make_track, simulator_params, table, speed_mps, radius_m) -> None:
    wide = make_track(500.0, width_m=400.0)
    held = changed(simulator_params, engine_brake_per_s=0.0, rolling_mps2=0.0, drag_per_m=0.0, scrub=0.0)
    simulator = start(wide, held, table, along_m=100.0, speed_mps=speed_mps)
    rows = drive(simulator, (-1.0, 0.0, 0.0), 30)[10:, 0]
    yaw = rows[:, CAR["angular_velocity"]][:, 1]
    assert (yaw > 0).all()  # left is positive about up
    assert speeds(rows)[-1] / yaw[-1] == pytest.approx(radius_m, rel=0.06)
    assert not rows[:, CAR["is_sliding"]].any()


def test_grass_slides_where_the_road_holds(make_track, simulator_params, table) -> None:
    """Beyond the edge all four wheels report grass, and full lock at 40 m/s slides; on the road it does not."""
    track = make_track(500.0, width_m=100.0)
    on_road = start(track, simulator_params, table, along_m=50.0, speed_mps=40.0)
    on_grass = start(track, simulator_params, table, along_m=50.0, speed_mps=40.0, lateral_m=53.0)
    road, grass = (drive(s, (-1.0, 1.0, 0.0), 8)[:, 0] for s in (on_road, on_grass))
    assert (road[:, CAR["material"]] == 16).all()
    assert (grass[:3, CAR["material"]] == 2).all()
    assert not road[:, CAR["is_sliding"]].any()
    assert grass[:, CAR["is_sliding"]].any()
    straight_road, straight_grass = (
        drive(start(track, simulator_params, table, along_m=9.0, lateral_m=m), GAS, 20)[-1, 0] for m in (0.0, 53.0)
    )
    assert speeds(straight_grass) == pytest.approx(0.4 * 16.2 - 0.3, abs=0.1)
    assert speeds(straight_road) > 15.0


def test_a_wheel_at_the_edge_touches_grass_alone(make_track, simulator_params, table) -> None:
    """The car's left wheels are 0.8 m beside its middle: 7.5 m left of the line they are past the edge at 8 m."""
    row = start(make_track(), simulator_params, table, along_m=50.0, lateral_m=7.5).cars[0]
    assert row[CAR["material"]].tolist() == [2, 16, 16, 2]


def test_over_a_crest_the_car_flies_and_cannot_steer(make_track, simulator_params, table) -> None:
    """The road falls away by 45 % within 6 m; at 45 m/s no spring follows that."""
    track = make_track(700.0, slope=lambda s: np.interp(s, [100.0, 106.0], [0.1, -0.35]))
    simulator = start(track, simulator_params, table, along_m=60.0, speed_mps=45.0)
    rows = drive(simulator, GAS, 24)[:, 0]
    contact = rows[:, CAR["has_contact"]]
    in_air = ~contact.any(axis=1)
    assert contact[0].all()
    assert in_air.sum() >= 4
    assert (rows[in_air, CAR["damper"]] == np.float32(0.005)).all()
    assert not rows[in_air, CAR["is_sliding"]].any()
    simulator = start(track, simulator_params, table, along_m=60.0, speed_mps=45.0)
    drive(simulator, GAS, int(np.argmax(in_air)) + 1)
    before = simulator.cars[0].copy()
    saved = simulator.save()
    for controls in ((1.0, 0.0, 1.0), (-1.0, 1.0, 0.0)):
        simulator.restore(saved)
        after = drive(simulator, controls, 2)[-1, 0]
        speed_change = after[CAR["velocity"]] - before[CAR["velocity"]]
        # free fall, and a touch of air drag
        np.testing.assert_allclose(speed_change, [0.0, -24.8 * 0.1, 0.0], atol=0.05)
        assert abs(after[CAR["angular_velocity"]][1]) < 1e-6
    landing = drive(start(track, simulator_params, table, along_m=60.0, speed_mps=45.0), COAST, 60)[:, 0]
    assert landing[-1, CAR["has_contact"]].all()
    assert not simulator.is_off_track[0]


def test_banked_road_leans_the_car(make_track, simulator_params, table) -> None:
    row = start(make_track(bank_rad=0.2), simulator_params, table, along_m=50.0).cars[0]
    rotation = row[CAR["rotation"]].reshape(3, 3)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-6)
    assert np.linalg.det(rotation) == pytest.approx(1.0)
    assert rotation[1, 0] == pytest.approx(np.sin(0.2), abs=1e-6)  # the left axis points up


def test_braking_loads_the_front(make_track, simulator_params, table) -> None:
    simulator = start(make_track(), simulator_params, table, along_m=50.0, speed_mps=40.0)
    damper = drive(simulator, BRAKE, 4)[-1, 0, CAR["damper"]]
    assert (damper[:2] > damper[2:]).all()
    assert damper.mean() == pytest.approx(simulator_params.physics.rest_m, abs=2e-3)


def test_a_loop_keeps_its_car(make_track, simulator_params, table) -> None:
    """A vertical circle of 40 m radius, entered at 78 m/s, is driven upside down and left as fast as it was entered."""
    radius_m, zones = 40.0, 3000
    angle = np.clip((np.arange(zones) * 0.5 - 200.0) / radius_m, 0.0, 2.0 * np.pi)
    steps = np.stack([np.full(zones, 0.1), np.sin(angle), np.cos(angle)], axis=1)
    steps *= 0.5 / np.linalg.norm(steps, axis=1, keepdims=True)
    centre = np.concatenate([np.zeros((1, 3)), np.cumsum(steps, axis=0)])
    tangent, level, upright = line_frames(centre)
    left = np.array([1.0, 0.0, 0.0]) - tangent[:, :1] * tangent  # the road's left stays left, upside down at the top
    bank = np.arctan2((left * upright).sum(axis=1), (left * level).sum(axis=1))
    track = Track(
        **{**vars(make_track(1500.0, width_m=60.0)), "centre_m": centre, "bank_rad": bank, "source": DRIVEN_SOURCE}
    )
    frictionless = changed(simulator_params, engine_brake_per_s=0.0, rolling_mps2=0.0, drag_per_m=0.0, scrub=0.0)
    simulator = start(track, frictionless, table, along_m=150.0, speed_mps=78.0)
    rows = drive(simulator, COAST, 150)[:, 0]
    assert rows[:, CAR["rotation"]][:, 4].min() < -0.95
    assert rows[:, CAR["has_contact"]].mean() > 0.95
    assert not simulator.is_off_track[0]
    assert simulator.along_m[0] > 200.0 + 2 * np.pi * radius_m
    assert 73.0 < speeds(rows)[-1] <= 78.0


def test_turbo_pad_pushes(make_track, simulator_params, table) -> None:
    plain = make_track(900.0)
    material = plain.material.copy()
    material[200:216] = 7
    pad = Track(**{**vars(plain), "material": material})
    one_gear = changed(simulator_params, gear_push_mps2=(8.0,) * 5, shift_ms=0.0)
    on_plain, on_pad = (
        speeds(drive(start(t, one_gear, table, along_m=90.0, speed_mps=50.0), GAS, 20))[-1, 0] for t in (plain, pad)
    )
    # 8 m of pad at 50 m/s take 0.15 s, then it fades within 0.25 s; between 48 and 34 m/s2
    assert on_pad - on_plain == pytest.approx(41.0 * (0.15 + 0.12), rel=0.15)


def test_a_changed_constant_takes_effect(make_track, simulator_params, table) -> None:
    weak = changed(simulator_params, gear_push_mps2=(8.0,) * 5)
    fast, slow = (speeds(drive(start(make_track(), p, table), GAS, 20))[-1, 0] for p in (simulator_params, weak))
    assert slow == pytest.approx(8.0 - 0.3, abs=0.05)
    assert fast > 15.0


def test_the_kernels_stamp_covers_their_files() -> None:
    """numba looks at one file only; every other one that kernels are made of must be in the stamp of the cache key."""
    parts = {path for path in Path(str(car.__file__)).parent.glob("*.py") if path.name != "__init__.py"}
    assert {Path(str(module.__file__)) for module in physics.MODULES} == parts


def test_the_stamp_changes_with_a_file(tmp_path: Path) -> None:
    module = ModuleType("edited")
    module.__file__ = str(tmp_path / "edited.py")
    stamps = []
    for text in ("GRASS = 2", "GRASS = 3"):
        Path(module.__file__).write_text(text, encoding="utf-8")
        stamps.append(source_stamp((module,)))
    assert stamps[0] != stamps[1]
