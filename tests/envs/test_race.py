"""The single environment: gymnasium's contract, ends of races, rewards, pictures, bad input."""

import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded

from rulka.observation import CAR
from rulka.params import reference_params

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


def test_spaces_and_info(make_env) -> None:
    env = make_env()
    observation, info = env.reset(seed=1)
    assert env.observation_space["image"].shape == (1, 64, 64)
    assert env.observation_space["floats"].shape == (184,)
    assert env.action_space.n == 12
    assert observation in env.observation_space
    assert info == {
        "progress_m": 0.0,
        "start_m": 0.0,
        "time_ms": 0,
        "is_finished": False,
        "is_off_track": False,
        "potential": 0.0,
    }
    assert [type(value) for value in info.values()] == [float, float, int, bool, bool, float]


def test_a_finished_race_is_worth_its_length_and_time(make_env) -> None:
    """The rewards add up: for each of the 80 m, each second to the millisecond of the finish, and the speed there."""
    env = make_env(start_lateral_m=0.0, start_heading_deg=0.0)
    env.reset(seed=0)
    total, terminated, truncated, info = drive(env, GAS)
    weights = reference_params().rewards
    assert terminated
    assert not truncated
    assert info["is_finished"]
    assert info["progress_m"] == pytest.approx(80.0)
    assert 3000 < info["time_ms"] < 6000
    way = weights.per_metre * 80.0 + weights.per_second * info["time_ms"] / 1000.0
    speed_mps = np.linalg.norm(env.batch.simulator.cars[0, CAR["velocity"]])
    finish = weights.finish_as_seconds * (weights.per_metre * speed_mps + weights.per_second)
    assert finish > 0.0
    assert total == pytest.approx(way + finish, abs=1e-4)


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
