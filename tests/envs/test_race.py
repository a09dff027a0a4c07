"""The single environment: gymnasium's contract, ends of races, rewards, pictures, bad input."""

import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded

GAS, GAS_LEFT, COAST = 0, 1, 3


def drive(env, action: int, limit: int = 2000) -> tuple[float, bool, bool, dict]:
    """Holds one action until the race ends; returns the sum of rewards and the last step's facts."""
    total = 0.0
    for _ in range(limit):
        _, reward, terminated, truncated, info = env.step(action)
        total += reward
        if terminated or truncated:
            return total, terminated, truncated, info
    pytest.fail("the race did not end")


def test_the_first_info(make_env) -> None:
    _, info = make_env().reset(seed=1)
    assert info == dict.fromkeys(("progress_m", "start_m", "time_ms", "is_finished", "is_off_track", "potential"), 0)
    assert [type(value) for value in info.values()] == [float, float, int, bool, bool, float]


def test_pictures(make_env) -> None:
    env = make_env(render_mode="rgb_array")
    env.reset(seed=0)
    before = env.render()
    env.step(GAS_LEFT)
    after = env.render()
    assert before.shape == after.shape == (480, 640, 3)
    assert before.dtype == np.uint8
    hud = [picture[-60:, -170:].astype(int) for picture in (before, after)]
    assert np.abs(hud[0] - hud[1]).max() > 50, "the key for left lights up"
    clock = [picture[:45, -180:].astype(int) for picture in (before, after)]
    assert np.abs(clock[0] - clock[1]).max() > 50, "the clock runs"
    assert make_env().render() is None


def test_steps_out_of_order_say_what_to_do(make_env) -> None:
    env = make_env(max_race_s=0.1)
    with pytest.raises(ResetNeeded, match="reset the environment before stepping it"):
        env.step(GAS)
    env.reset(seed=0)
    drive(env, GAS)
    with pytest.raises(ResetNeeded, match="the race has ended"):
        env.step(GAS)
    env.reset()
    env.step(GAS)
    env.close()
    env.close()
    for call in (lambda: env.step(GAS), env.reset, env.render):
        with pytest.raises(ClosedEnvironmentError, match="closed"):
            call()
