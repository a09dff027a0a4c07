"""Autoreset modes against gymnasium's own vector of single environments; continuous actions."""

import gymnasium
import numpy as np
import pytest
from gymnasium.error import InvalidAction
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rulka.envs.race import RaceEnv
from rulka.envs.settings import SettingsError
from rulka.envs.vector import RaceVectorEnv

OPTIONS = {"start_anywhere": 0.5, "start_lateral_m": 2.0, "start_heading_deg": 5.0, "max_race_s": 1.0}


def assert_same(ours, theirs, where: str) -> None:
    """Compares what two environments returned, keys of info included as far as ours has them."""
    if isinstance(ours, tuple):
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other, where)
    elif isinstance(ours, dict):
        assert set(ours) <= set(theirs), where
        for name, value in ours.items():
            assert_same(value, theirs[name], f"{where} {name}")
    elif isinstance(ours, np.ndarray) and ours.dtype == object:
        for k, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(one, other, f"{where} {k}")
    elif ours is None:
        assert theirs is None, where
    else:
        assert np.array_equal(np.asarray(ours), np.asarray(theirs).astype(np.asarray(ours).dtype)), where


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("continuous", [False, True])
def test_every_mode_is_gymnasiums(straight, mode: AutoresetMode, continuous: bool) -> None:
    ours = RaceVectorEnv(4, straight, autoreset_mode=mode, continuous=continuous, **OPTIONS)
    makers = [lambda: RaceEnv(straight, continuous=continuous, **OPTIONS)] * 4
    theirs = SyncVectorEnv(makers, autoreset_mode=mode)
    assert ours.metadata["autoreset_mode"] is mode
    assert ours.action_space == theirs.action_space
    assert_same(ours.reset(seed=11), theirs.reset(seed=11), "reset")
    ours.action_space.seed(3)
    num_ends = 0
    for t in range(90):
        actions = ours.action_space.sample()
        results = [env.step(actions) for env in (ours, theirs)]
        for name, one, other in zip(
            ("observation", "reward", "terminated", "truncated", "info"), *results, strict=True
        ):
            assert_same(one, other, f"{name} {t}")
        is_over = results[0][2] | results[0][3]
        num_ends += int(is_over.sum())
        if mode is AutoresetMode.SAME_STEP and is_over.any():
            assert set(results[1][-1]) - set(results[0][-1]) <= {f"_{name}" for name in results[0][-1]}
            assert "final_obs" in results[0][-1]
        if mode is AutoresetMode.DISABLED and is_over.any():
            # gymnasium takes the mask out of the options, and tells of the cars of the mask alone.
            seen = [env.reset(options={"reset_mask": is_over.copy()})[0] for env in (ours, theirs)]
            assert_same(*seen, f"reset {t}")
    assert num_ends >= 8


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_mode_goes_by_its_name_and_by_its_value(straight, mode: AutoresetMode) -> None:
    for text in (mode.name, mode.value, mode.name.lower()):
        assert RaceVectorEnv(1, straight, autoreset_mode=text).autoreset_mode is mode


def test_a_mode_that_is_none_is_refused(straight) -> None:
    for mode in ("sometimes", None):
        with pytest.raises(SettingsError, match=r"one of \['NextStep', 'SameStep', 'Disabled'\]"):
            RaceVectorEnv(1, straight, autoreset_mode=mode)  # pyright: ignore[reportArgumentType] a wrong one


def test_buffers_are_for_the_next_step_mode(straight) -> None:
    env = RaceVectorEnv(1, straight, autoreset_mode=AutoresetMode.SAME_STEP)
    env.reset(seed=0)
    with pytest.raises(SettingsError, match="NextStep"):
        env.step_into(np.zeros(1, np.int64), np.empty((1, 1, 64, 64), np.uint8), np.empty((1, 184)), np.empty(1))


@pytest.mark.filterwarnings("error")
def test_gymnasiums_checker_takes_continuous_actions() -> None:
    check_env(gymnasium.make("rulka/Race-v0", disable_env_checker=True, continuous=True).unwrapped)


def test_full_controls_are_the_keys(make_env) -> None:
    """Gas and full lock to the left, analog and by key: the same race to the bit, keys in the floats included."""
    keys, analog = make_env(), make_env(continuous=True)
    assert analog.action_space == gymnasium.spaces.Box(np.array([-1, 0, 0], np.float32), np.ones(3, np.float32))
    keys.reset(seed=1)
    analog.reset(seed=1)
    for _ in range(15):
        one, other = keys.step(1), analog.step(np.array([-1.0, 1.0, 0.0], np.float32))
        assert np.array_equal(one[0]["floats"], other[0]["floats"])
        assert one[1:] == other[1:]


@pytest.mark.parametrize(
    "action",
    [[np.nan, 0, 0], [0, np.nan, 0], [0, 0, np.inf], [1.01, 0, 0], [0, -0.1, 0], [0, 0, 1.5], [0, 0], 3, "left", None],
)
def test_controls_that_are_none_are_refused(make_env, make_vector, action) -> None:
    env, vector = make_env(continuous=True), make_vector(2, continuous=True)
    env.reset(seed=0)
    before = env.batch.simulator.save()
    with pytest.raises(InvalidAction, match="steer in \\[-1, 1\\]"):
        env.step(action)
    assert np.array_equal(env.batch.simulator.save(), before)
    vector.reset(seed=0)
    if isinstance(action, list):
        with pytest.raises(InvalidAction, match="2 rows of steer"):
            vector.step(np.array([[0.0, 1.0, 0.0][: len(action)], action]))
        assert (vector.batch.simulator.time_ms == 0).all(), "no car has moved"
