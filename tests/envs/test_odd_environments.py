"""Environments that nobody expects: each is used, or refused in a sentence that names it."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rulka.contracts.actions import Choices
from rulka.envs import episodes
from rulka.envs.episodes import Episodes, measure_normalisation, read_facts
from rulka.machine.errors import UserError
from tests.conftest import sees

sys.path.insert(0, str(Path(__file__).parent))
small = importlib.import_module("small_environments")

NUM_ENVS, NUM_STEPS = 2, 6
VECTOR, IMAGE, THREE = spaces.Box(-1.0, 1.0, (3,)), spaces.Box(0, 255, (9, 7, 3), np.uint8), spaces.Discrete(3)
ODD = {
    "observation": (
        IMAGE,
        spaces.Box(-np.inf, np.inf, (), np.float64),
        spaces.Box(-5, 5, (2,), np.int64),
        spaces.Box(0.0, 1.0, (0,)),
        spaces.Box(0.0, 1.0, (2, 2)),
        spaces.Box(0, 255, (0, 4), np.uint8),
        spaces.Dict(a=VECTOR, b=IMAGE, c=spaces.Box(0.0, 1.0, (0,))),
        spaces.Dict({" [x]\n": VECTOR}),
        spaces.Dict(),
        spaces.Tuple((VECTOR, VECTOR)),
    ),
    "action": (
        spaces.Discrete(2, start=-4),
        spaces.Discrete(1),
        spaces.Box(-1.0, 1.0, (2, 2)),
        spaces.Box(0.0, 3.0, (), np.float64),
        spaces.Box(-1.0, 1.0, (0,)),
        spaces.Box(-1e300, 1e300, (1,), np.float64),
        spaces.Box(-1.0, np.inf, (1,)),
    ),
    "shown": (None, "text", np.full(3, np.nan), [1e39, 0.0, 0.0], np.zeros((3, 3)), np.zeros(2), {}, {"a": 1}, 7),
    "reward": (None, "text", np.nan, np.inf, 1e300, np.zeros(1), np.zeros(2), [1.0, 2.0], 1 + 2j, True, 10**400),
    "is_over": (None, True),
    "num_results": (3,),
    "fails": ("constructor", "reset", "step"),
}


class Odd(gymnasium.Env[Any, Any]):
    """Odd in one way, and in what it shows, pays or says only from a step on."""

    def __init__(
        self,
        observation: spaces.Space[Any] = VECTOR,
        action: spaces.Space[Any] = THREE,
        shown: Any = ...,
        reward: Any = 1.0,
        is_over: Any = False,
        num_results: int = 5,
        fails: str = "",
        first: int = 0,
    ) -> None:
        self.observation_space, self.action_space = observation, action
        self._shown, self._told, self._num_results = shown, (reward, is_over), num_results
        self._fails, self._first, self._count = fails, first, 0
        self._fail("constructor")

    def _fail(self, where: str) -> None:
        if self._fails == where:
            message = f"no {where}\nat all"
            raise RuntimeError(message)

    def _seen(self) -> Any:
        return self.observation_space.sample() if self._shown is ... or self._count < self._first else self._shown

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._fail("reset")
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._count += 1
        self._fail("step")
        told = self._told if self._count > self._first else (1.0, False)
        return (self._seen(), *told, False, {})[: self._num_results]


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
@pytest.mark.parametrize("way", ODD)
@pytest.mark.parametrize("first", [0, 5])
def test_any_environment_is_used_or_refused_by_name(way: str, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "RANDOM_STEPS", 4)
    for number, what in enumerate(ODD[way]):
        environment = small.register_with(f"{way}{first}{number}", Odd, **{way: what, "first": first})
        said = ""
        try:
            drive(environment)
        except UserError as error:
            said = str(error)
        assert not said or environment in said


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
            ({"fails": "reset"}, "{} fails in its first random steps: RuntimeError: no reset"),
        )
    ):
        environment = small.register_with(f"Said{number}", Odd, **keywords)
        with pytest.raises(UserError, match=said.format(re.escape(environment))) as refused:
            drive(environment)
        assert "line " in refused.value.hint
