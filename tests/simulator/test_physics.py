import numpy as np
import pytest
from numba import njit

from rulka.contracts.actions import ActionTable, action_table
from rulka.contracts.observation import CAR
from rulka.planner.speed import SPEEDS, full_lock_radius
from rulka.simulator import car as columns
from rulka.simulator.constants import road_array
from rulka.simulator.params import SimulatorParams
from rulka.simulator.simulator import Simulator, SimulatorError
from rulka.tracks.generate import generate_track
from rulka.tracks.geometry import line_frames
from rulka.tracks.progress import locate, zone_frames
from rulka.tracks.track import DRIVEN_SOURCE, DROP, NO_GROUND, WALL, Track

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


def test_coasting_on_the_flat_loses_what_the_engine_brakes(make_track, simulator_params, table) -> None:
    """Off the gas the car loses 1 m/s and 0.29 of its speed each second; full lock at 100 m/s costs 1 m/s2 more.

    Recorded cars lose 1.1 m/s2 to full lock at 100 m/s.
    """
    physics = simulator_params.physics
    for speed_mps, steer, extra in ((40.0, 0.0, 0.0), (100.0, 0.0, 0.0), (100.0, 1.0, 1.0)):
        simulator = start(make_track(900.0, width_m=400.0), simulator_params, table, along_m=10.0, speed_mps=speed_mps)
        speed = speeds(drive(simulator, (steer, 0.0, 0.0), 20))[:, 0]
        assert (np.diff(speed) <= 1e-9).all()
        lost = (speed[9] - speed[10]) / 0.05
        expected = physics.engine_brake_mps2 + physics.engine_brake_per_s * speed[9]
        assert lost - expected == pytest.approx(extra, abs=0.4)


def test_coasting_over_hills_never_gains_energy(make_track, simulator_params, table) -> None:
    """Kinetic and potential energy together fall, but for what the springs lend and give back."""
    free = changed(simulator_params, engine_brake_mps2=0.0, engine_brake_per_s=0.0, rolling=0.0)
    track = make_track(900.0, slope=lambda s: 0.1 * np.sin(s / 25.0))
    rows = drive(start(track, free, table, along_m=5.0, speed_mps=30.0), COAST, 300)[:, 0]
    height = rows[:, CAR["position"]][:, 1].astype(np.float64)
    energy = 0.5 * speeds(rows) ** 2 + free.physics.gravity_mps2 * height
    lent = free.physics.gravity_mps2 * 0.1  # a tenth of a metre of spring
    assert (energy <= np.minimum.accumulate(np.r_[energy[0], energy[:-1]]) + lent).all()
    assert energy[-1] > 0.9 * energy[0]  # and nothing else eats it up


def test_acceleration_from_rest_by_hand(make_track, simulator_params, table) -> None:
    """Gear 1 pushes with 15.9 m/s2: after 1 s 15.9 m/s, 7.95 m."""
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
    assert counter.max() in (5, 6)  # 40 ms, and (360 - 219) 28.4 rpm at 17,000 a second: 276 ms, 5.5 decisions
    assert ((counter > 0) == shifting).all()
    assert drive(simulator, BRAKE, 80)[-1, 0, CAR["gear"]] == 1


def test_brake_stops_and_then_reverses_slowly(make_track, simulator_params, table) -> None:
    """From 30 m/s at 13.2 m/s2, the engine's 5 to 10 and, below 15 m/s, 29: 20 m, then back at its reverse speed.

    (30^2 - 15^2) / (2 * 20.8) = 16.2 m with locked wheels, 15^2 / (2 * 32.2) = 3.5 m with rolling ones.
    """
    simulator = start(make_track(), simulator_params, table, along_m=50.0, speed_mps=30.0)
    rows = drive(simulator, BRAKE, 20)[:, 0]
    furthest_m = rows[:, CAR["position"]][:, 2].max() - make_track().centre_m[100, 2]
    assert furthest_m == pytest.approx(19.7, abs=1.5)
    rows = drive(simulator, BRAKE, 100)[:, 0]
    assert simulator.along_m[0] < 50.0
    assert speeds(rows)[-1] == pytest.approx(simulator_params.physics.reverse_top_mps, abs=0.5)
    before_m = simulator.along_m[0]
    drive(simulator, GAS, 60)
    assert simulator.along_m[0] > before_m + 20.0, "gas drives forward again"


def test_rolling_back_down_a_slope_the_brake_holds_the_speed_of_reverse(make_track, simulator_params, table) -> None:
    """Gravity adds at most 29.4 m/s2 x 10 ms = 0.3 m/s in a tick to what the brake has just taken away."""
    for slope in (0.1, 0.5):
        track = make_track(900.0, slope=lambda s, slope=slope: np.full_like(s, slope))
        simulator = start(track, simulator_params, table, along_m=450.0)
        speed = speeds(drive(simulator, BRAKE, 200))[:, 0]
        assert speed.max() < simulator_params.physics.reverse_top_mps + 0.3
        assert simulator.along_m[0] < 400.0


def test_a_spun_car_is_braked_to_the_speed_of_reverse(make_track, simulator_params, table) -> None:
    """Tail first at 50 m/s, off the gas: from 29 m/s2 or more it needs at most (50 - 10) / 29 = 1.4 s."""
    track = make_track(900.0, width_m=100.0)
    simulator = start(track, simulator_params, table, along_m=50.0, heading_rad=np.pi, speed_mps=0.0)
    saved = simulator.save()
    saved[:, columns.VX : columns.VX + 3] = -50.0 * saved[:, columns.FX : columns.FX + 3]
    simulator.restore(saved)
    speed = speeds(drive(simulator, BRAKE, 28))[:, 0]
    assert speed[-1] == pytest.approx(simulator_params.physics.reverse_top_mps, abs=0.3)


def test_a_car_at_rest_stays_where_it_is(make_track, simulator_params, table) -> None:
    simulator = start(make_track(), simulator_params, table, along_m=50.0)
    rows = drive(simulator, COAST, 100)[:, 0]
    assert np.ptp(rows[20:, CAR["position"]], axis=0).max() < 1e-4


def walled(track: Track, kind: int) -> Track:
    return Track(**{**vars(track), "edge": np.full(track.num_zones, kind, np.uint8)})


def test_walls_hold_and_give_no_energy(make_track, simulator_params, table) -> None:
    """A glancing one costs little, a frontal one nearly all of the speed."""
    track, after = walled(make_track(900.0), WALL), {}
    for heading_deg in (5.0, 45.0, -85.0):
        place = {"along_m": 100.0, "heading_rad": np.radians(heading_deg), "speed_mps": 40.0}
        simulator = start(track, simulator_params, table, **place)
        rows = drive(simulator, COAST, 60)[:, 0]
        after[heading_deg] = speeds(rows)
        assert (np.diff(speeds(rows)) <= 1e-6).all()
        assert np.abs(rows[:, CAR["position"]][:, 0] - track.centre_m[0, 0]).max() < track.width_m[0] / 2.0
        assert not simulator.is_off_track[0]
    assert after[5.0][29] > 20.0
    assert after[-85.0][29] < 8.0


def test_beyond_a_drop_the_car_falls_and_the_race_ends(make_track, simulator_params, table) -> None:
    track = walled(make_track(900.0), DROP)
    simulator = start(track, simulator_params, table, along_m=100.0, heading_rad=np.radians(60.0), speed_mps=25.0)
    rows = drive(simulator, COAST, 40)[:, 0]
    assert simulator.is_off_track[0]
    on_road = np.abs(rows[:, CAR["position"]][:, 0]) < track.width_m[0] / 2.0
    assert rows[on_road, CAR["position"].start + 1].min() > rows[0, CAR["position"].start + 1] - 0.1
    assert rows[~on_road][1:, CAR["has_contact"]].sum() == 0  # the first of them left the road in its decision
    assert rows[-1, CAR["position"].start + 1] < rows[0, CAR["position"].start + 1] - 0.5


def test_driving_forward_never_lowers_progress(make_track, simulator_params, table) -> None:
    for seed in range(2):
        rng = np.random.default_rng(seed)
        track = make_track(1500.0, width_m=40.0, curvature=lambda s, seed=seed: 0.012 * np.sin(s / 37.0 + seed))
        simulator = start(track, simulator_params, table, along_m=5.0, speed_mps=20.0)
        before_m = simulator.along_m[0]
        for _ in range(150):
            row = drive(simulator, (rng.uniform(-0.3, 0.3), 1.0, 0.0), 1)[0, 0]
            ahead = row[CAR["velocity"]] @ road_array(track)[simulator.zone_index[0], 3:6]
            assert simulator.along_m[0] >= before_m or ahead < 0
            before_m = simulator.along_m[0]


def test_full_lock_drives_the_radius_of_the_curve(make_track, simulator_params, table) -> None:
    wide = make_track(500.0, width_m=400.0)
    held = changed(simulator_params, engine_brake_mps2=0.0, engine_brake_per_s=0.0, rolling=0.0, scrub=0.0)
    for speed_mps in (25.0, 45.0, 75.0):
        simulator = start(wide, held, table, along_m=100.0, speed_mps=speed_mps)
        rows = drive(simulator, (-1.0, 0.0, 0.0), 30)[10:, 0]
        yaw = rows[:, CAR["angular_velocity"]][:, 1]
        assert (yaw > 0).all()  # left is positive about up
        radius_m = np.interp(speeds(rows)[-1], SPEEDS, full_lock_radius(simulator_params.physics))
        assert speeds(rows)[-1] / yaw[-1] == pytest.approx(radius_m, rel=0.06)
        assert not rows[:, CAR["is_sliding"]].any()


def test_grass_slides_where_the_road_holds(make_track, simulator_params, table) -> None:
    """Beyond the edge all four wheels report grass, and full lock at 40 m/s slides; on the road it does not.

    The left wheels are 0.8 m beside the middle of the car: 7.5 m left of the line they are past the edge at 8 m.
    """
    edge = start(make_track(), simulator_params, table, along_m=50.0, lateral_m=7.5).cars[0]
    assert edge[CAR["material"]].tolist() == [2, 16, 16, 2]
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
    assert speeds(straight_grass) == pytest.approx(0.4 * 15.9 - 0.05, abs=0.1)
    assert speeds(straight_road) > 15.0


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
        # free fall, and 3 % of the speed a second
        drag = -0.03 * 0.1 * before[CAR["velocity"]]
        np.testing.assert_allclose(speed_change, drag + np.array([0.0, -24.8 * 0.1, 0.0]), atol=0.02)
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
    """A vertical circle of 40 m radius, entered at 90 m/s, is driven upside down, and costs some of the speed."""
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
    coasting = changed(simulator_params, engine_brake_mps2=0.0, engine_brake_per_s=0.0)
    simulator = start(track, coasting, table, along_m=150.0, speed_mps=90.0)
    rows = drive(simulator, COAST, 150)[:, 0]
    assert rows[:, CAR["rotation"]][:, 4].min() < -0.95
    assert rows[:, CAR["has_contact"]].mean() > 0.95
    assert not simulator.is_off_track[0]
    assert simulator.along_m[0] > 200.0 + 2 * np.pi * radius_m
    assert 70.0 < speeds(rows)[-1] < 88.0


def test_turbo_pad_pushes(make_track, simulator_params, table) -> None:
    plain = make_track(900.0)
    material = plain.material.copy()
    material[200:216] = 7
    pad = Track(**{**vars(plain), "material": material})
    one_gear = changed(simulator_params, push_mps2=(8.0, 8.0, 8.0, 8.0), shift_ms=0.0, shift_rpm_per_s=1e9)
    on_plain, on_pad = (
        speeds(drive(start(t, one_gear, table, along_m=90.0, speed_mps=50.0), GAS, 20))[-1, 0] for t in (plain, pad)
    )
    # 8 m of pad at 50 m/s and more take 0.15 s, then the turbo lasts for 0.25 s more
    gained = 8.0 * (simulator_params.physics.turbo_factor - 1.0)
    assert on_pad - on_plain == pytest.approx(gained * (0.15 + 0.25), rel=0.07)


def test_brakes_lock_the_wheels_and_a_slide_is_remembered(make_track, simulator_params, table) -> None:
    """At 40 m/s all four slide at once, off the brake as long as the rear ones ask for more than sliding ones hold."""
    track = make_track(900.0, width_m=200.0)
    simulator = start(track, simulator_params, table, along_m=50.0, speed_mps=40.0)
    braked = drive(simulator, (1.0, 1.0, 1.0), 4)[:, 0]
    assert braked[:, CAR["is_sliding"]].all()
    saved = simulator.save()
    released = drive(simulator, (1.0, 1.0, 0.0), 2)[:, 0]
    assert released[:, CAR["is_sliding"]].all()
    assert not drive(simulator, (0.0, 0.0, 0.0), 40)[-1, 0, CAR["is_sliding"]].any()
    saved[:, columns.SLIDES : columns.SLIDES + 4] = 0.0  # the same car, but for its memory
    simulator.restore(saved)
    held = drive(simulator, (1.0, 1.0, 0.0), 1)[-1, 0]
    assert not held[CAR["is_sliding"]].any()
    below = start(track, simulator_params, table, along_m=50.0, speed_mps=10.0)
    assert not drive(below, BRAKE, 2)[:, 0, CAR["is_sliding"]].any()


def test_a_slide_turns_the_car_as_grip_does(make_track, simulator_params, table) -> None:
    track = make_track(900.0, width_m=300.0)
    yaw = []
    for material in (16, 6):
        ground = Track(**{**vars(track), "material": np.full(track.num_zones, material, np.uint8)})
        rows = drive(start(ground, simulator_params, table, along_m=50.0, speed_mps=40.0), (-1.0, 1.0, 0.0), 6)[:, 0]
        yaw.append(rows[-1, CAR["angular_velocity"]][1])
        assert rows[-1, CAR["is_sliding"]].all() == (material == 6)
    assert yaw[1] == pytest.approx(yaw[0], rel=0.1)


def test_over_a_gap_the_car_falls_by_the_gravity_of_the_air(make_track, simulator_params, table) -> None:
    """10 m at 50 m/s take 0.2 s, in which it falls by 24.8 / 2 * 0.2^2 = 0.5 m; 60 m are too far."""
    for length_m, lands in ((10.0, True), (60.0, False)):
        plain = make_track(600.0)
        material = plain.material.copy()
        material[200 : 200 + int(2 * length_m)] = NO_GROUND
        track = Track(**{**vars(plain), "material": material})
        simulator = start(track, simulator_params, table, along_m=80.0, speed_mps=50.0)
        rows = drive(simulator, COAST, 60)[:, 0]
        in_air = ~(rows[:, CAR["has_contact"]] > 0.5).any(axis=1)
        assert in_air.any()
        assert (rows[in_air][:, CAR["material"]] == 0).all()
        fallen_m = rows[0, CAR["position"]][1] - rows[in_air][:, CAR["position"]][:, 1]
        if lands:
            assert fallen_m.max() == pytest.approx(0.5, abs=0.2)
            assert not simulator.is_off_track[0]
            assert simulator.along_m[0] > 130.0
        else:
            assert simulator.is_off_track[0]


def test_turbo_pushes_on_while_the_gear_changes(make_track, simulator_params, table) -> None:
    """6 times the push on the pad, 5 times during the change from gear 3 to 4 at 65.3 m/s: 6.97 * 5 = 34.9 m/s2."""
    plain = make_track(900.0)
    pad = Track(**{**vars(plain), "material": np.full(plain.num_zones, 7, np.uint8)})
    simulator = start(pad, simulator_params, table, along_m=50.0, speed_mps=60.0)
    rows = drive(simulator, GAS, 12)[:, 0]
    gained = np.diff(speeds(rows)) / 0.05
    shifting = rows[1:, CAR["gearbox_state"]].ravel() == 1
    within = shifting & np.roll(shifting, 1) & np.roll(shifting, -1)
    assert gained[within] == pytest.approx(5 * 6.97, rel=0.02)
    assert gained[~shifting][:1] == pytest.approx(6 * 6.97, rel=0.02)


def test_a_place_changes_by_the_velocity_before_the_forces(make_track, simulator_params) -> None:
    """As recorded cars do: after a tick at 15.9 m/s2 from rest the car has 0.159 m/s and has not moved."""
    simulator = start(make_track(), simulator_params, action_table(1))
    rows = drive(simulator, GAS, 2)
    assert speeds(rows)[:, 0] == pytest.approx([0.159, 0.318], abs=1e-4)
    assert simulator.along_m[0] == pytest.approx(0.00159, abs=1e-5)


def flying(track: Track, params: SimulatorParams, table: ActionTable, **rates: float) -> Simulator:
    """A car high above the road, wheels straight, turning about its axes at some rates."""
    simulator = start(track, changed(params, fall_m=500.0), table, along_m=50.0, speed_mps=40.0)
    saved = simulator.save()
    saved[0, columns.Y] += 200.0
    saved[0, columns.CONTACT] = 0.0
    for name, rate in rates.items():
        saved[0, getattr(columns, name)] = rate
    simulator.restore(saved)
    return simulator


@pytest.mark.parametrize(("steer", "kept"), [(0.0, np.exp(-0.25)), (-1.0, 1.0), (1.0, np.exp(-1.5))])
def test_in_the_air_steering_the_way_it_turns_keeps_the_yaw_rate(
    make_track, simulator_params, table, steer: float, kept: float
) -> None:
    """Recorded flights: a second takes 0.25 of it, nothing with the wheels turned as it turns, 1.5 against them."""
    simulator = flying(make_track(900.0), simulator_params, table, YAW=0.5, STEER=steer)
    drive(simulator, (steer, 1.0, 0.0), 20)
    assert simulator.save()[0, columns.YAW] == pytest.approx(0.5 * kept, rel=0.02)


def test_in_the_air_roll_fades_and_the_brake_stops_pitching(make_track, simulator_params, table) -> None:
    for brake, pitch in ((0.0, 0.4 * np.exp(-0.25)), (1.0, 0.0)):
        simulator = flying(make_track(900.0), simulator_params, table, PITCH=0.4, ROLL=0.2)
        drive(simulator, (0.0, 1.0, brake), 20)
        found = simulator.save()[0]
        assert found[columns.PITCH] == pytest.approx(pitch, rel=0.02)
        assert found[columns.ROLL] == pytest.approx(0.2 * np.exp(-0.65), rel=0.02)


def test_a_slide_is_remembered_in_the_air(make_track, simulator_params, table) -> None:
    simulator = flying(make_track(900.0), simulator_params, table, SLIDES=1.0)
    row = drive(simulator, COAST, 10)[-1, 0]
    assert row[CAR["is_sliding"]].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert not row[CAR["has_contact"]].any()


@pytest.mark.parametrize(("material", "share"), [(16, 1.0), (6, "dirt_slide"), (2, "grass_grip")])
def test_what_sliding_tyres_hold_by_hand(
    make_track, simulator_params, table, material: int, share: str | float
) -> None:
    """Straight ahead at 60 m/s with 15 m/s aside: the curve at 60 m/s, and what comes through of the excess."""
    physics = simulator_params.physics
    plain = make_track(900.0, width_m=400.0)
    track = Track(**{**vars(plain), "material": np.full(plain.num_zones, material, np.uint8)})
    simulator = start(track, simulator_params, table, along_m=50.0, speed_mps=60.0)
    saved = simulator.save()
    saved[0, columns.SLIDES : columns.SLIDES + 4] = 1.0
    saved[0, columns.VX : columns.VX + 3] += 15.0 * road_array(track)[100, columns.LEFT : columns.LEFT + 3]
    simulator.restore(saved)
    simulator.step_controls(np.array([[0.0, 1.0, 0.0]], np.float32))
    after = simulator.save()[0]
    side_mps = after[columns.VX : columns.VX + 3] @ road_array(track)[100, columns.LEFT : columns.LEFT + 3]
    held = np.interp(60.0, *np.array(physics.slide_grip_mps2).T)
    held *= getattr(physics, share) if isinstance(share, str) else share
    asked = 4.0 * physics.stiffness_per_s * side_mps
    assert abs(after[columns.PULL]) == pytest.approx(held + physics.excess_grip * (asked - held), rel=0.02)


def test_steered_wheels_never_push(make_track, simulator_params, table) -> None:
    """Off the gas, at full lock, from walking pace to speed: the car only ever slows."""
    for speed_mps in (3.0, 8.0, 15.0, 30.0, 60.0):
        track = make_track(900.0, width_m=400.0)
        simulator = start(track, simulator_params, table, along_m=50.0, speed_mps=speed_mps)
        along_road = speeds(drive(simulator, (1.0, 0.0, 0.0), 40))[:, 0]
        assert (np.diff(along_road) < 1e-3).all()


def test_a_variant_drives_as_a_car_of_that_physics(make_track, simulator_params, table) -> None:
    track, other = make_track(900.0, width_m=200.0), changed(simulator_params, push_mps2=(20.0, 15.0, 10.0, 8.0))
    cars = Simulator(track, 3, simulator_params, table, [simulator_params.physics, other.physics])
    cars.set_variant(np.array([False, True, True]), np.array([0, 1, 2]))
    rows = drive(cars, (0.3, 1.0, 0.0), 40)
    saved = cars.save()
    for car, params in enumerate((simulator_params, simulator_params, other)):
        alone = drive(start(track, params, table), (0.3, 1.0, 0.0), 40)[:, 0]
        np.testing.assert_array_equal(rows[:, car], alone)
    expected = drive(cars, GAS, 5)[-1]
    cars.restore(saved)
    np.testing.assert_array_equal(drive(cars, GAS, 5)[-1], expected)
    cars.reset(np.ones(3, bool))
    assert len({row.tobytes() for row in drive(cars, GAS, 5)[-1]}) == 1, "a reset gives a car back its own physics"
    with pytest.raises(SimulatorError, match="from 0 to 2"):
        cars.set_variant(np.ones(3, bool), 3)
    with pytest.raises(SimulatorError, match="beyond the 1 that"):
        Simulator(track, 3, simulator_params, table).restore(saved)


find_ground = njit(columns.find_ground)


def test_kernels_and_tracks_locate_alike(params) -> None:
    """The search in the physics kernels is that of `rulka.tracks.progress`, held together by this test."""
    track = generate_track(**params.track.model_dump())
    rng, zones, frames, road = np.random.default_rng(0), track.exact_zones, zone_frames(track), road_array(track)
    car, below, c = np.zeros(columns.NUM_STATE), np.zeros(columns.NUM_SCRATCH), np.zeros(columns.NUM_CONSTANTS)
    c[columns.SPACING_M] = 0.5
    for zone in range(5, track.num_zones - 5, 7):
        position = zones[zone] + rng.uniform(-3, 3, 3)
        car[columns.X : columns.X + 3], car[columns.ZONE] = position, max(zone - 20, 0)
        find_ground(car, road, c, below)
        index, along, lateral, height = locate(position, zones, frames, max(zone - 20, 0), 64, 0.5)
        assert car[columns.ZONE] == index
        found = car[[columns.ALONG, columns.LATERAL, columns.HEIGHT]]
        np.testing.assert_allclose(found, [along, lateral, height], atol=1e-3)
