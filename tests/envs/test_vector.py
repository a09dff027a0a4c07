"""The vector environment: gymnasium's contract, autoreset, and bit-equality with the single one."""

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, InvalidAction, ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import rulka  # noqa: F401 registers the environment
from rulka.envs.race import RaceEnv
from rulka.envs.settings import SettingsError
from rulka.envs.vector import RaceVectorEnv
from rulka.observation import NUM_FLOATS

GAS, BRAKE = 0, 6


def buffers(num_cars: int, poison: int = 7) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    image = np.full((num_cars, 1, 64, 64), poison, np.uint8)
    return image, np.full((num_cars, NUM_FLOATS), np.nan, np.float32), np.full(num_cars, np.nan, np.float32)


@pytest.mark.filterwarnings("error")
def test_make_vec_gives_one_environment_for_all_cars() -> None:
    env = gymnasium.make_vec("rulka/Race-v0", num_envs=16)
    assert isinstance(env.unwrapped, RaceVectorEnv)
    assert env.num_envs == 16
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    observation, info = env.reset(seed=0)
    assert observation in env.observation_space
    env.action_space.seed(0)
    for _ in range(5):
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        assert observation in env.observation_space
        assert (reward.dtype, terminated.dtype, truncated.dtype) == (np.float32, np.bool_, np.bool_)
        assert reward.shape == terminated.shape == truncated.shape == (16,)
    assert set(info) == {"progress_m", "start_m", "time_ms", "is_finished", "is_off_track", "potential"}
    assert all(values.shape == (16,) for values in info.values())
    env.close()


def test_spaces_are_those_of_gymnasiums_own_vector(straight) -> None:
    ours = RaceVectorEnv(3, straight)
    theirs = SyncVectorEnv([lambda: RaceEnv(straight)] * 3)
    for name in ("observation_space", "action_space", "single_observation_space", "single_action_space"):
        assert getattr(ours, name) == getattr(theirs, name)


def test_it_behaves_as_gymnasiums_own_vector(straight) -> None:
    """Same seeds, same actions, through several resets: observation, reward, ends and info are equal to the bit."""
    options = {"start_anywhere": 0.5, "start_lateral_m": 2.0, "start_heading_deg": 5.0, "max_race_s": 2.0}
    ours = RaceVectorEnv(4, straight, **options)
    theirs = SyncVectorEnv([lambda: RaceEnv(straight, **options)] * 4)
    rng = np.random.default_rng(0)
    results = [env.reset(seed=11) for env in (ours, theirs)]
    num_ends = 0
    for _ in range(120):
        for name in ("image", "floats"):
            assert np.array_equal(results[0][0][name], results[1][0][name])
        for name, values in results[0][-1].items():
            assert np.array_equal(values, results[1][-1][name]), name
        actions = rng.choice([0, 0, 0, 1, 2, 6], size=4)
        results = [env.step(actions) for env in (ours, theirs)]
        for place in (2, 3):
            assert np.array_equal(results[0][place], results[1][place])
        assert np.array_equal(results[0][1], results[1][1].astype(np.float32))
        num_ends += int((results[0][2] | results[0][3]).sum())
    assert num_ends >= 8


def test_a_race_ends_with_its_own_observation_and_is_reset_by_the_next_step(make_vector, make_env) -> None:
    env = make_vector(2, max_race_s=0.2)
    env.reset(seed=3)
    for _ in range(3):
        _, _, terminated, truncated, info = env.step(np.array([GAS, GAS]))
        assert not truncated.any()
    last, reward, terminated, truncated, info = env.step(np.array([GAS, GAS]))
    assert truncated.all()
    assert not terminated.any()
    assert (info["time_ms"] == 200).all()
    alone = make_env(max_race_s=0.2)
    alone.reset(seed=4)
    for _ in range(4):
        true_last, *_ = alone.step(GAS)
    assert np.array_equal(last["image"][1], true_last["image"])
    first, reward, terminated, truncated, info = env.step(np.array([GAS, GAS]))
    assert not (terminated | truncated).any()
    assert (reward == 0).all()
    assert (info["time_ms"] == 0).all()
    true_first, _ = alone.reset()
    assert np.array_equal(first["floats"][1], true_first["floats"])


def test_one_car_resets_while_others_drive_on(make_vector) -> None:
    """Car 0 brakes and is cut; car 1's path is the same as if car 0 had never been."""
    env, twin = make_vector(2, no_progress_s=0.3), make_vector(2, no_progress_s=0.3)
    env.reset(seed=0)
    twin.reset(seed=0)
    for t in range(20):
        seen, _, _, cut, _ = env.step(np.array([BRAKE, GAS]))
        expected, *_ = twin.step(np.array([GAS, GAS]))
        assert np.array_equal(seen["floats"][1], expected["floats"][1])
        assert cut[0] == (t % 7 == 5), "0.3 s after each start: 6 decisions, then one for the reset"


def test_step_into_writes_where_it_is_told(make_vector) -> None:
    env, twin = make_vector(3, max_race_s=0.3), make_vector(3, max_race_s=0.3)
    image, floats, potential = buffers(3)
    env.reset_into(image, floats, potential, seed=5)
    observation, _ = twin.reset(seed=5)
    assert np.array_equal(image, observation["image"])
    assert np.array_equal(floats, observation["floats"])
    assert np.isfinite(potential).all()
    for t in range(9):
        block = buffers(3, poison=9)
        result = env.step_into(np.zeros(3, np.int64), *block)
        observation, reward, terminated, truncated, info = twin.step(np.zeros(3, np.int64))
        assert np.array_equal(block[0], observation["image"])
        assert np.array_equal(block[1], observation["floats"])
        assert np.array_equal(block[2], info["potential"])
        assert np.array_equal(result.reward, reward)
        assert np.array_equal(result.truncated, truncated)
        assert np.array_equal(result.terminated, terminated)
        assert np.array_equal(result.progress_m, info["progress_m"])
        assert np.array_equal(result.race_time_ms, info["time_ms"])
        assert result.is_reset.all() == (t == 6)
        assert result.is_full_race.all()
        kinds = {name: getattr(result, name).dtype for name in ("reward", "progress_m", "race_time_ms", "is_reset")}
        assert kinds == {"reward": np.float32, "progress_m": np.float32, "race_time_ms": np.int64, "is_reset": np.bool_}


def test_reset_without_a_seed_goes_on_with_each_cars_chance(straight) -> None:
    env = RaceVectorEnv(3, straight, start_anywhere=1.0)
    first, _ = env.reset(seed=1)
    second, _ = env.reset()
    assert not np.array_equal(first["floats"], second["floats"])
    alone = RaceEnv(straight, start_anywhere=1.0)
    alone.reset(seed=3)
    assert np.array_equal(alone.reset()[0]["floats"], second["floats"][2])


def test_a_batch_does_not_change_a_car(straight) -> None:
    """Car 2 of 3 and car 2 of 40: equal to the bit."""
    few, many = RaceVectorEnv(3, straight), RaceVectorEnv(40, straight)
    few.reset(seed=8)
    many.reset(seed=8)
    for _ in range(30):
        a = few.step(np.full(3, GAS))[0]
        b = many.step(np.full(40, GAS))[0]
    for name in ("image", "floats"):
        assert np.array_equal(a[name][2], b[name][2])


@pytest.mark.parametrize(
    "actions", [np.zeros(2, np.int64), np.zeros(3), np.array([0, 12, 0]), np.array([0, -1, 0]), np.full(3, np.nan)]
)
def test_actions_that_are_none_are_refused(make_vector, actions) -> None:
    env = make_vector(3)
    env.reset(seed=0)
    with pytest.raises(InvalidAction, match="3 whole numbers from 0 to 11"):
        env.step(actions)


def test_out_of_order_calls_say_what_to_do(make_vector) -> None:
    env = make_vector(1)
    with pytest.raises(ResetNeeded):
        env.step(np.zeros(1, np.int64))
    env.close()
    env.close()
    with pytest.raises(ClosedEnvironmentError, match="closed"):
        env.step(np.zeros(1, np.int64))
    with pytest.raises(ClosedEnvironmentError, match="closed"):
        env.reset()


def test_pictures_of_all_cars(make_vector) -> None:
    env = make_vector(2, render_mode="rgb_array")
    env.reset(seed=0)
    pictures = env.render()
    assert len(pictures) == 2
    assert pictures[0].shape == (480, 640, 3)


def test_a_list_of_seeds_is_one_for_each_car(straight) -> None:
    """As in gymnasium's own vectors; None lets a car's source of chance go on."""
    options = {"start_anywhere": 0.5, "start_lateral_m": 2.0, "start_heading_deg": 5.0}
    ours, theirs = RaceVectorEnv(3, straight, **options), SyncVectorEnv([lambda: RaceEnv(straight, **options)] * 3)
    for seed in ([1, 2, 3], [5, None, 5], np.array([7, 1, 9]).tolist(), 4, [None, None, 0]):
        seen, expected = ours.reset(seed=seed)[0], theirs.reset(seed=seed)[0]
        assert np.array_equal(seen["floats"], expected["floats"]), seed
    assert np.array_equal(ours.reset(seed=np.array([1, 2, 3]))[0]["floats"], theirs.reset(seed=[1, 2, 3])[0]["floats"])


def test_seeds_where_no_car_has_one_yet(straight) -> None:
    env = RaceVectorEnv(3, straight, start_lateral_m=3.0)
    floats = env.reset(seed=[8, None, None])[0]["floats"]
    assert np.array_equal(floats[0], RaceEnv(straight, start_lateral_m=3.0).reset(seed=8)[0]["floats"])
    assert not np.array_equal(floats[1], floats[2]), "cars without a seed differ"


@pytest.mark.parametrize(
    "seed", [[1, 2], [1, 2, 3, 4], [1, 2, -3], [1, 2, 0.5], [1, 2, True], -1, 1.5, "123", [[1, 2, 3]]]
)
def test_wrong_seeds_are_named_and_nothing_moves(straight, seed) -> None:
    env = RaceVectorEnv(3, straight, start_lateral_m=3.0)
    before = env.reset(seed=0)[0]["floats"]
    with pytest.raises(SettingsError, match="seed is a whole number from 0, or a list of 3"):
        env.reset(seed=seed)
    assert np.array_equal(env.reset(seed=0)[0]["floats"], before)
