"""Gymnasium environments as a batch of cars."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from rulka.contracts.actions import Choices, Intervals
from rulka.contracts.observation_params import MIN_PIXELS
from rulka.envs import episodes
from rulka.envs.episodes import REACH, Episodes, measure_normalisation, read_facts
from rulka.machine.errors import UserError
from tests.conftest import sees

sys.path.insert(0, str(Path(__file__).parent))
small = importlib.import_module("small_environments")


class Seen:
    """Memory for what N environments show, and what they showed."""

    def __init__(self, environment: str, num_envs: int, observation=None) -> None:
        facts = read_facts(environment)
        observation = facts.seen(observation or sees(64, 64))
        self.episodes = Episodes(environment, num_envs, observation)
        self.image = np.full((num_envs, *observation.image_shape), 7, np.uint8)
        self.floats = np.full((num_envs, facts.num_floats), np.nan, np.float32)
        self.potential = np.full(num_envs, np.nan, np.float32)

    def reset(self, seed: int):
        self.episodes.reset_into(self.image, self.floats, self.potential, seed)

    def step(self, actions):
        return self.episodes.step_into(np.array(actions), self.image, self.floats, self.potential)


@pytest.mark.filterwarnings("ignore:.*Using the latest versioned environment")
def test_facts_of_a_vector_and_choices() -> None:
    """An ID without a version is the newest."""
    facts = read_facts("CartPole")
    assert (facts.environment, facts.image, facts.num_floats, facts.actions) == ("CartPole-v1", None, 5, Choices(2))
    seen = facts.seen(sees(64, 64))
    assert (seen.height, seen.width, seen.frames, seen.shows_image) == (MIN_PIXELS, MIN_PIXELS, 1, False)


def test_facts_of_all_parts_and_numbers() -> None:
    facts = read_facts("small/Pictures-v0")
    assert (facts.image, facts.numbers, facts.num_floats) == ("camera", ("speed", "place"), 1 + 3)
    assert read_facts("small/Target-v0").actions == Intervals((-1.0, 0.0), (3.0, 10.0))
    race = read_facts("rulka/Race-v0")
    assert (race.image, race.num_floats, race.actions) == ("image", 1 + 184, Choices(12))


def test_an_episode_by_hand() -> None:
    """Three decisions, then a decision that a reset swallows; the last observation is the true one."""
    seen = Seen("small/Counting-v0", 2)
    seen.reset(10)
    np.testing.assert_array_equal(seen.floats, [[0, 0, 10, -1], [0, 0, 11, -1]])
    assert not seen.image.any()
    results = [seen.step([1, 2]) for _ in range(3)]
    np.testing.assert_array_equal(seen.floats, [[0, 3, 10, 1], [0, 3, 11, 2]])
    assert [result.reward.tolist() for result in results] == [[2.0, 2.0], [3.0, 3.0], [4.0, 4.0]]
    assert [result.terminated.tolist() for result in results] == [[False, False], [False, False], [True, True]]
    reset = seen.step([1, 2])
    assert reset.is_reset.all()
    assert not reset.terminated.any()
    assert reset.reward.tolist() == [0.0, 0.0]
    np.testing.assert_array_equal(seen.floats, [[0, 0, 10, -1], [0, 0, 11, -1]])
    assert not seen.step([0, 0]).is_reset.any()
    assert not seen.potential.any()
    assert not reset.is_full_race.any(), "no figures of races come of it"


def test_a_limit_is_no_end() -> None:
    """A cut keeps its future; what ends for good and by a limit at once has none."""
    for end, is_terminated in (("truncated", False), ("terminated and truncated", True)):
        environment = small.register_with(f"Cut{is_terminated}", small.Counting, length=1, end=end)
        seen = Seen(environment, 1)
        seen.reset(0)
        result = seen.step([0])
        assert (result.terminated[0], result.truncated[0]) == (is_terminated, not is_terminated)
        assert seen.step([0]).is_reset[0]


def test_actions_that_do_not_begin_at_0() -> None:
    environment = small.register_with("Shifted", small.Counting, start=3)
    assert read_facts(environment).actions == Choices(4)
    seen = Seen(environment, 1)
    seen.reset(0)
    seen.step([2])
    assert seen.floats[0, -1] == 5


def test_numbers_take_the_shape_of_the_box_and_stay_within_it() -> None:
    seen = Seen("small/Target-v0", 2)
    seen.reset(0)
    result = seen.step(np.array([[2.0, 3.0], [99.0, 1.0]], np.float32))
    assert result.reward.tolist() == [-4.0, -1.0]


def test_pictures_become_grey_and_of_one_size() -> None:
    for shape in ((48, 60), (48, 60, 1), (48, 60, 3), (1, 48, 60), (3, 48, 60)):
        environment = small.register_with(f"Pictures{len(shape)}{shape[0]}{shape[-1]}", small.Pictures, shape=shape)
        seen = Seen(environment, 1, sees(40, 36))
        seen.reset(0)
        seen.step([0])
        assert seen.image.shape == (1, 1, 40, 36)
        np.testing.assert_allclose(seen.image, 20, atol=1)
        np.testing.assert_allclose(seen.floats, [[0.0, 1.0, 0.1, -0.1]], rtol=1e-6)


def test_frames_are_stacked_and_the_first_stands_for_those_before() -> None:
    seen = Seen("small/Pictures-v0", 1, sees(64, 64).model_copy(update={"frames": 3}))
    shown = []
    seen.reset(0)
    for _ in range(5):
        shown.append(seen.image[0, :, 0, 0].tolist())
        seen.step([0])
    assert shown == [[10, 10, 10], [10, 10, 20], [10, 20, 30], [20, 30, 40], [10, 10, 10]]


def test_normalisation_of_random_steps() -> None:
    """Of `Counting`, decisions are 0 to 3 evenly, far from the bounds; the clock is as in races; it repeats."""
    facts = read_facts("small/Counting-v0")
    found = measure_normalisation(facts, 3)
    assert (found.mean[0], found.std[0]) == (70.0, 70.0)
    assert found.mean[1] == pytest.approx(1.5)
    assert found.std[1] == pytest.approx(REACH * np.sqrt(1.25), rel=1e-3)
    again = measure_normalisation(facts, 3)
    assert (found.mean.tolist(), found.std.tolist()) == (again.mean.tolist(), again.std.tolist())


def test_numbers_are_expected_as_far_as_their_bounds_allow() -> None:
    """Of CartPole, place and angle have bounds, of which half is 2.4 m and 0.209 rad; the speeds have none."""
    found, facts = {}, read_facts("CartPole-v1")
    for reach in (1.0, REACH, 1000.0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(episodes, "REACH", reach)
            found[reach] = measure_normalisation(facts, 1).std[1:]
    np.testing.assert_allclose(found[1000.0][[0, 2]], [2.4, np.deg2rad(12.0)], rtol=1e-5)
    np.testing.assert_allclose(found[REACH][0], REACH * found[1.0][0], rtol=1e-5)
    np.testing.assert_allclose(found[REACH][2], np.deg2rad(12.0), rtol=1e-5)
    assert (found[REACH][[1, 3]] == found[1.0][[1, 3]]).all()
    still = measure_normalisation(read_facts("small/Target-v0"), 0)
    assert (still.mean[1], still.std[1]) == (0.0, 1.0), "0 all the time, between -1 and 1"


def test_what_is_not_there_is_said_in_gymnasiums_words() -> None:
    for environment, said in (
        ("CartPol-v1", "CartPol-v1 cannot be made: .*Did you mean: `CartPole`"),
        ("CartPole-v9", "CartPole-v9 cannot be made: .*It provides versioned environments"),
        ("no_such_module:A-v0", "cannot be made: No module named 'no_such_module'"),
    ):
        with pytest.raises(UserError, match=said):
            read_facts(environment)


_PICTURE = spaces.Box(0, 255, (64, 64, 3), np.uint8)


def test_spaces_that_are_not_supported_are_named() -> None:
    nested, two = spaces.Dict(a=spaces.Dict(b=_PICTURE)), spaces.Dict(a=_PICTURE, b=_PICTURE)
    for number, (part, space, said) in enumerate(
        (
            ("observation", spaces.Discrete(5), r"what small/\S+ shows is Discrete\(5\), which is no image"),
            ("observation", spaces.Box(0.0, 1.0, (64, 64)), "which is no image and no vector"),
            ("observation", nested, r"the part 'a' of what small/\S+ shows is Dict"),
            ("observation", two, "shows 2 images, a, b, and agents see"),
            ("observation", spaces.Dict(), "shows nothing"),
            ("observation", spaces.Box(0.0, 1.0, (0,)), "shows nothing"),
            ("action", spaces.MultiBinary(3), r"takes actions of MultiBinary\(3\)"),
            ("action", spaces.Box(0, 9, (2,), np.int64), "choose from Discrete or from a Box of floats"),
            ("action", spaces.Discrete(256), "has 256 actions, and there may be at most 255"),
            ("action", spaces.Box(-np.inf, 1.0, (2,)), "agents choose within finite bounds"),
            ("action", spaces.Box(1.0, 1.0, (2,)), "agents choose within finite bounds"),
        )
    ):
        environment = small.register_with(f"Odd{number}", small.Odd, **{part: space})
        with pytest.raises(UserError, match=said):
            read_facts(environment)


def test_an_environment_that_resets_in_another_way_is_refused() -> None:
    environment = small.register_with("SameStep", small.Odd)
    small.gymnasium.registry[environment].vector_entry_point = _same_step
    with pytest.raises(UserError, match=r"resets its episodes in the mode .*SAME_STEP") as caught:
        read_facts(environment)
    assert "autoreset_mode=AutoresetMode.NEXT_STEP" in caught.value.hint


def _same_step(num_envs: int, **_: object) -> object:
    mode = small.gymnasium.vector.AutoresetMode.SAME_STEP
    return small.gymnasium.vector.SyncVectorEnv([small.Counting] * num_envs, autoreset_mode=mode)


def test_what_can_be_withheld() -> None:
    catch = "benchmarks.qrdqn.catch:rulka/Catch64-v0"
    for environment, change, said in (
        ("CartPole-v1", {"withheld": ("waypoints",)}, "withheld names waypoints, which is a part of races"),
        ("CartPole-v1", {"waypoints": 20}, "waypoints is about races, and CartPole-v1 has none"),
        (catch, {"withheld": ("image",)}, "withheld leaves nothing to see"),
    ):
        with pytest.raises(UserError, match=said):
            read_facts(environment).seen(sees(64, 64).model_copy(update=change))
    seen = Seen("small/Pictures-v0", 1, sees(64, 64).model_copy(update={"withheld": ("image",)}))
    seen.reset(0)
    assert not seen.image.any()
