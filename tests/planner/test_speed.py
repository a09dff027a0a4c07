import numpy as np
import pytest

from rulka.planner.speed import BRAKE_SHARE, CREST_SHARES, LOCK_SHARE, bends, speed_plan


def test_bends_of_a_circle_and_a_hill(make_track) -> None:
    turn, rise = bends(make_track(200.0, curvature=lambda s: np.full_like(s, -1 / 50)))
    np.testing.assert_allclose(turn[20:380], -1 / 50, rtol=2e-3)  # to the right
    np.testing.assert_allclose(rise, 0.0, atol=1e-9)
    _turn, rise = bends(make_track(100.0, slope=lambda s: 0.002 * s))
    np.testing.assert_allclose(rise[20:150], 0.002, rtol=0.03)


def test_speed_plan_by_hand(make_track, params) -> None:
    """Straight, then a circle of 53 m from 300 m on, in a car that turns at 1.1 rad/s at any speed.

    With 0.88 of the lock the circle is 46.64 m at the limit, which is driven at 1.1 * 46.64 = 51.3 m/s.
    """
    assert LOCK_SHARE == 0.88
    changes = {"turn_rate_rps": ((0.0, 1.1), (255.0, 1.1)), "engine_brake_per_s": 0.3, "locked_brake_mps2": 30.0}
    physics = params.simulator.physics.model_copy(update=changes)
    track = make_track(600.0, curvature=lambda s: np.where((s > 300.0) & (s < 480.0), 1 / 53, 0.0))
    plan = speed_plan(track, physics)
    assert plan[800] == pytest.approx(51.3, abs=0.3)
    # 10 m earlier on the straight it may be faster by what 10 m of 0.75 * 30 m/s2 and of the engine brake take away
    assert BRAKE_SHARE == 0.75
    gained = 2 * 10 * (22.5 + 0.3 * plan[550])
    assert plan[540] ** 2 - plan[560] ** 2 == pytest.approx(gained, rel=0.01)


def test_a_crest_before_a_bend_leaves_grip(make_track, params) -> None:
    """A hill's top of 1/100 m curvature from 300 to 330 m; the car may fly over it, but not into a bend."""
    assert CREST_SHARES == (3.0, 1.0)
    physics = params.simulator.physics
    down = {"slope": lambda s: -0.01 * (s - 300.0).clip(0.0, 30.0)}
    straight = speed_plan(make_track(600.0, **down), physics)
    assert straight[630] == pytest.approx(np.sqrt(3.0 * physics.gravity_mps2 * 100.0), rel=0.02)
    bend_at_335_m = {"curvature": lambda s: np.where((s > 335.0) & (s < 400.0), 1 / 140, 0.0)}
    before_a_bend = speed_plan(make_track(600.0, **down, **bend_at_335_m), physics)
    assert before_a_bend[640] == pytest.approx(np.sqrt(physics.gravity_mps2 * 100.0), rel=0.02)
    late_bend = {"curvature": lambda s: np.where((s > 365.0) & (s < 400.0), 1 / 140, 0.0)}
    np.testing.assert_allclose(speed_plan(make_track(600.0, **down, **late_bend), physics)[600:630], straight[600:630])
