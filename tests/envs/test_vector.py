"""The vector environment beside gymnasium's own vector of single environments; autoreset modes and seeds."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import rulka  # noqa: F401 registers the environment
from rulka.envs.race import RaceEnv
from rulka.envs.vector import RaceVectorEnv
from rulka.machine.errors import UserError

OPTIONS = {
    "start_anywhere": 0.5,
    "start_from_earlier": 0.3,
    "start_lateral_m": 2.0,
    "start_heading_deg": 5.0,
    "max_race_s": 1.0,
}


@pytest.mark.filterwarnings("error")
def test_make_vec_gives_one_environment_for_all_cars() -> None:
    env = gymnasium.make_vec("rulka/Race-v0", num_envs=16)
    assert isinstance(env.unwrapped, RaceVectorEnv)
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    observation, info = env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(5):
        assert observation in env.observation_space
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        assert (reward.dtype, terminated.dtype, truncated.dtype) == (np.float32, np.bool_, np.bool_)
        assert reward.shape == terminated.shape == truncated.shape == (16,)
    assert set(info) == {"progress_m", "start_m", "time_ms", "is_finished", "is_off_track", "potential"}
    assert all(values.shape == (16,) for values in info.values())
    assert env.render() is None
    env.close()


def test_pictures_until_it_is_closed(make_vector) -> None:
    env = make_vector(2, render_mode="rgb_array")
    env.reset(seed=0)
    assert [picture.shape for picture in env.render()] == 2 * [(480, 640, 3)]
    env.close()
    env.close()
    for call in (lambda: env.step(np.zeros(2, np.int64)), env.reset):
        with pytest.raises(ClosedEnvironmentError, match="closed"):
            call()


def told_alike(ours: Any, theirs: Any) -> Any:
    """What theirs tells of what ours does; both as numpy compares it, part by part."""
    if isinstance(ours, dict):
        return {name: told_alike(value, theirs[name]) for name, value in ours.items()}
    if isinstance(ours, tuple):
        return tuple(told_alike(*pair) for pair in zip(ours, theirs, strict=True))
    return theirs.tolist() if isinstance(theirs, np.ndarray) and theirs.dtype.kind == "O" else theirs


def assert_same(ours: Any, theirs: Any, where: str) -> None:
    np.testing.assert_equal(told_alike(ours, ours), told_alike(ours, theirs), where)


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


def test_a_mode_goes_by_its_name_and_by_its_value(straight) -> None:
    for mode in AutoresetMode:
        for text in (mode.name, mode.value, mode.name.lower()):
            assert RaceVectorEnv(1, straight, autoreset_mode=text).autoreset_mode is mode
    for wrong in ("sometimes", None):
        with pytest.raises(UserError, match=r"one of \['NextStep', 'SameStep', 'Disabled'\]"):
            RaceVectorEnv(1, straight, autoreset_mode=wrong)  # pyright: ignore[reportArgumentType] a wrong one


def test_a_list_of_seeds_is_one_for_each_car(straight) -> None:
    """As in gymnasium's own vectors; None lets a car's source of chance go on."""
    ours, theirs = RaceVectorEnv(3, straight, **OPTIONS), SyncVectorEnv([lambda: RaceEnv(straight, **OPTIONS)] * 3)
    for seed in ([1, 2, 3], [5, None, 5], np.array([7, 1, 9]).tolist(), 4, None, [None, None, 0]):
        seen, expected = ours.reset(seed=seed)[0], theirs.reset(seed=seed)[0]
        assert np.array_equal(seen["floats"], expected["floats"]), seed
    assert np.array_equal(ours.reset(seed=np.array([1, 2, 3]))[0]["floats"], theirs.reset(seed=[1, 2, 3])[0]["floats"])
    floats = RaceVectorEnv(3, straight, **OPTIONS).reset(seed=[8, None, None])[0]["floats"]
    assert np.array_equal(floats[0], RaceEnv(straight, **OPTIONS).reset(seed=8)[0]["floats"])
    assert not np.array_equal(floats[1], floats[2]), "cars without a seed differ"


def test_wrong_seeds_are_named_and_nothing_moves(straight) -> None:
    env = RaceVectorEnv(3, straight, start_lateral_m=3.0)
    before = env.reset(seed=0)[0]["floats"]
    for seed in ([1, 2], [1, 2, 3, 4], [1, 2, -3], [1, 2, 0.5], [1, 2, True], -1, 1.5, "123", [[1, 2, 3]]):
        with pytest.raises(UserError, match="seed is a whole number from 0, or a list of 3"):
            env.reset(seed=seed)
    assert np.array_equal(env.reset(seed=0)[0]["floats"], before)
