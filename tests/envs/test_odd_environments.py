"""Environments that nobody expects: a fuzz of spaces, values and lengths, in the slow tier of more of them.

Each is used, and what comes of it is finite and of the right shape, or it is refused in a sentence that names it.
"""

from __future__ import annotations

import importlib
import itertools
import re
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rulka.actions import Choices
from rulka.envs import episodes
from rulka.envs.episodes import Episodes, UnfitEnvironmentError, measure_normalisation, read_facts
from tests.conftest import sees

sys.path.insert(0, str(Path(__file__).parent))
small = importlib.import_module("small_environments")

NUM_ENVS, NUM_STEPS = 2, 6
VECTOR, IMAGE = spaces.Box(-1.0, 1.0, (3,)), spaces.Box(0, 255, (9, 7, 3), np.uint8)
OBSERVATIONS = (
    VECTOR,
    IMAGE,
    spaces.Box(-np.inf, np.inf, (), np.float64),
    spaces.Box(-5, 5, (2,), np.int64),
    spaces.Box(0.0, 1.0, (0,)),
    spaces.Box(0.0, 1.0, (2, 2)),
    spaces.Box(0, 255, (0, 4), np.uint8),
    spaces.Dict(a=VECTOR, b=IMAGE, c=spaces.Box(0.0, 1.0, (0,))),
    spaces.Dict({" [x]\n": VECTOR}),
    spaces.Dict(),
    spaces.Discrete(3),
    spaces.Tuple((VECTOR, VECTOR)),
)
ACTIONS = (
    spaces.Discrete(3),
    spaces.Discrete(2, start=-4),
    spaces.Discrete(1),
    spaces.Box(-1.0, 1.0, (2, 2)),
    spaces.Box(0.0, 3.0, (), np.float64),
    spaces.Box(-1.0, 1.0, (0,)),
    spaces.Box(-1e300, 1e300, (1,), np.float64),
    spaces.Box(-1.0, np.inf, (1,)),
    spaces.MultiBinary(2),
)
ODD_SHOWN = (
    None,
    "text",
    np.full(3, np.nan),
    [1e39, 0.0, 0.0],
    np.zeros((3, 3)),
    np.zeros(2),
    {},
    {"a": 1},
    7,
    object(),
)
ODD_REWARDS = (None, "text", np.nan, np.inf, 1e300, -1e39, np.zeros(1), np.zeros(2), [1.0, 2.0], 1 + 2j, True, 10**400)


class Whatever(gymnasium.Env[Any, Any]):
    """Does what its generator draws; odd is at most one thing."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.observation_space = OBSERVATIONS[rng.integers(len(OBSERVATIONS)) if rng.random() < 0.5 else 0]
        self.action_space = ACTIONS[rng.integers(len(ACTIONS)) if rng.random() < 0.5 else 0]
        self._length = int(rng.choice([1, 2, 5, 10**9]))
        self._odd = str(rng.choice(["nothing", "shown", "reward", "ends", "reset", "step", "constructor", "result"]))
        self._shown = ODD_SHOWN[rng.integers(len(ODD_SHOWN))]
        self._reward = ODD_REWARDS[rng.integers(len(ODD_REWARDS))]
        self._from, self._count, self._resets = int(rng.integers(4)), 0, 0
        self._fail("constructor")

    def _fail(self, where: str) -> None:
        if self._odd == where:
            message = f"no {where}\nat all"
            raise RuntimeError(message)

    def _seen(self) -> Any:
        return self._shown if self._odd == "shown" and self._count >= self._from else self.observation_space.sample()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._count, self._resets = 0, self._resets + 1
        if self._resets > self._from:
            self._fail("reset")
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._count += 1
        if self._count > self._from:
            self._fail("step")
        if self._odd == "result":
            return self._seen(), 1.0, False
        is_over: Any = None if self._odd == "ends" else self._count >= self._length
        return self._seen(), self._reward if self._odd == "reward" else 1.0, is_over, False, {}


def drive(environment: str) -> None:
    facts = read_facts(environment)
    observation = facts.seen(sees(36, 36))
    normalisation = measure_normalisation(facts, 0)
    assert np.isfinite([normalisation.mean, normalisation.std]).all()
    cars, rng = Episodes(environment, NUM_ENVS, observation), np.random.default_rng(0)
    image = np.full((NUM_ENVS, *observation.image_shape), 7, np.uint8)
    floats, potential = np.full((NUM_ENVS, facts.num_floats), np.nan, np.float32), np.zeros(NUM_ENVS, np.float32)
    cars.reset_into(image, floats, potential, 0)
    if isinstance(facts.actions, Choices):
        decisions = rng.integers(facts.actions.num_choices, size=(NUM_STEPS, NUM_ENVS))
    else:
        decisions = rng.normal(size=(NUM_STEPS, NUM_ENVS, len(facts.actions.low)))
    for chosen in decisions:
        assert np.isfinite(floats).all()
        result = cars.step_into(chosen, image, floats, potential)
        assert np.isfinite(result.reward).all()
        assert {each.shape for each in (result.reward, result.terminated, result.truncated)} == {(NUM_ENVS,)}
    cars.close()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_any_environment_is_used_or_refused_by_name(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "RANDOM_STEPS", 4)
    refused = {}
    for seed in range(count):
        environment = small.register_with(f"Whatever{seed}", Whatever, seed=seed)
        try:
            drive(environment)
        except UnfitEnvironmentError as error:
            refused[environment] = str(error)
    assert all(environment in said for environment, said in refused.items())
    assert 0.2 * count < len(refused) < 0.95 * count, "some of both"


class Odd(small.Counting):
    """Counts, but for what it is told to show, to pay, and when to fail."""

    def __init__(self, shown: Any = None, reward: Any = 1.0, fails: int = -1) -> None:
        super().__init__()
        self._shown, self._reward, self._fails = shown, reward, itertools.count(-fails)

    def reset(self, **keywords: Any) -> Any:
        if next(self._fails) == 0:
            message = "the port is taken"
            raise OSError(message)
        return super().reset(**keywords)

    def step(self, action: Any) -> Any:
        seen, _, *ends = super().step(action)
        return (seen if self._shown is None else self._shown), self._reward, *ends


@pytest.mark.filterwarnings("ignore")
def test_what_is_wrong_is_said_with_array_and_count() -> None:
    for number, (keywords, said) in enumerate(
        (
            ({"reward": 1e300}, "{} fails in its step: ValueError: 2 of the 2 numbers of the reward are not finite"),
            ({"reward": "text"}, "{} fails in its first random steps: ValueError: .*"),
            (
                {"shown": np.array([1.0, np.inf, 0.0])},
                "{} fails in its first random steps: .* 16 of the 48 numbers of what it shows",
            ),
            ({"shown": np.zeros(5)}, "{} fails in its first random steps: ValueError: .*"),
            ({"fails": 0}, "{} fails in its first random steps: OSError: the port is taken"),
        )
    ):
        environment = small.register_with(f"Said{number}", Odd, **keywords)
        with pytest.raises(UnfitEnvironmentError, match=said.format(re.escape(environment))) as refused:
            drive(environment)
        assert "line " in refused.value.hint
    for number, space in enumerate((spaces.Dict(), spaces.Box(0.0, 1.0, (0,)))):
        environment = small.register_with(f"Nothing{number}", small.Odd, observation=space)
        with pytest.raises(UnfitEnvironmentError, match="shows nothing"):
            read_facts(environment)
