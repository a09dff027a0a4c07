"""Gymnasium environments whose every number can be told in advance; importing this registers them."""

from __future__ import annotations

import signal
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Counting(gymnasium.Env[Any, Any]):
    """Shows (decisions, seed mod 1000, pick of the last decision); episodes end after `length` of them."""

    def __init__(self, length: int = 3, end: str = "terminated", start: int = 0) -> None:
        self.observation_space = spaces.Box(-1000.0, 1000.0, (3,), np.float64)
        self.action_space = spaces.Discrete(4, start=start)
        self._length, self._end = length, end
        self._seed = self._count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._seed, self._count = self._seed if seed is None else seed % 1000, 0
        return self._seen(-1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self._count += 1
        is_over = self._count == self._length
        ends = {end: is_over and end in self._end for end in ("terminated", "truncated")}
        return self._seen(int(action)), 1.0 + self._count, ends["terminated"], ends["truncated"], {}

    def _seen(self, action: int) -> np.ndarray:
        return np.array([self._count, self._seed, action], np.float64)


class Recorded(Counting):
    """Brings recordings of whole episodes and of a part of one."""

    recordings = ((1, [3, 3, 3]), (2, [0, 1]))


class RecordedTooLong(Counting):
    """Brings one that it does not go on for."""

    recordings = ((2, [0, 1, 2, 3]),)


class Pictures(Counting):
    """Shows a picture whose grey is ten times the count, and numbers in two parts, one of them a single one."""

    def __init__(self, shape: tuple[int, ...] = (48, 60, 3)) -> None:
        super().__init__()
        self.observation_space = spaces.Dict(
            speed=spaces.Box(0.0, 9.0, (), np.float32),
            camera=spaces.Box(0, 255, shape, np.uint8),
            place=spaces.Box(-1.0, 1.0, (2,), np.float32),
        )

    def _seen(self, action: int) -> Any:
        shape = self.observation_space["camera"].shape
        place = np.array([self._count / 10.0, -self._count / 10.0], np.float32)
        camera = np.full(shape, 10 * (self._count + 1), np.uint8)
        return {"speed": np.array(self._count, np.float32), "camera": camera, "place": place}


class Paid(Counting):
    """Shows nothing, and pays 2 for its first decision."""

    def __init__(self, length: int = 3, end: str = "terminated") -> None:
        super().__init__(length, end)
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def _seen(self, action: int) -> np.ndarray:
        return np.zeros(1, np.float32)


class Target(gymnasium.Env[Any, Any]):
    """One decision of two numbers, in [-1, 3] and [0, 10]; what they miss 2 and 1 by costs its square."""

    TARGET = np.array([2.0, 1.0], np.float32)

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Box(np.float32([[-1.0, 0.0]]), np.float32([[3.0, 10.0]]))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        return np.zeros(1, np.float32), -float(np.square(action[0] - self.TARGET).sum()), True, False, {}


class Interrupted(Counting):
    """Sends its process Ctrl-C once, at the given decision of all of them together: 6,144 measure the normalisation."""

    num_decisions, at = 0, 6500

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Interrupted.num_decisions += 1
        if Interrupted.num_decisions == self.at:
            signal.raise_signal(signal.SIGINT)
        return super().step(action)


class Odd(Counting):
    """Has the spaces that it is told to have; nothing steps it."""

    def __init__(self, observation: spaces.Space[Any] | None = None, action: spaces.Space[Any] | None = None) -> None:
        super().__init__()
        self.observation_space = self.observation_space if observation is None else observation
        self.action_space = self.action_space if action is None else action


for made in (Counting, Recorded, RecordedTooLong, Pictures, Target, Interrupted, Odd):
    gymnasium.register(f"small/{made.__name__}-v0", entry_point=made, disable_env_checker=True)


def register_with(name: str, made: type[gymnasium.Env[Any, Any]], **keywords: Any) -> str:
    """Registers an environment with keywords of its own and returns its ID."""
    gymnasium.register(f"small/{name}-v0", entry_point=made, kwargs=keywords, disable_env_checker=True)
    return f"small/{name}-v0"
