"""Catch64, a small cheap pixel task: a paddle catches balls that fall through an 8 x 8 grid of 64 x 64 grey pixels.

`benchmarks.qrdqn.catch:rulka/Catch64-v0`. Source of the rules: Mnih et al. 2014, arXiv:1406.6247; bsuite's Catch
(Osband et al. 2020, arXiv:1908.03568), there with one ball per episode.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

GRID, CELL_PIXELS, NUM_BALLS, NUM_ACTIONS = 8, 8, 5, 3
SIZE = GRID * CELL_PIXELS
BALL, PADDLE = 255, 160
EPISODE_STEPS = (GRID - 1) * NUM_BALLS


class CatchEnv(gymnasium.Env[NDArray[np.uint8], Any]):
    """Five balls, each worth 1 if caught and -1 if not.

    Actions are left, stay and right; observations are [1, 64, 64] uint8, in which the paddle hides a ball in its cell.
    """

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (1, SIZE, SIZE), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(NUM_ACTIONS)
        self._rng = np.random.default_rng(0)
        self._row = self._column = self._paddle = self._num_balls = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Puts the paddle in the middle and drops the first ball; see gymnasium's `Env.reset`."""
        super().reset(seed=seed, options=options)
        if seed is not None:
            self._rng = np.random.default_rng([seed, 0])
        self._paddle, self._num_balls = GRID // 2, 0
        self._drop()
        return self._observe(), {}

    def step(self, action: Any) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Moves paddle and ball; see gymnasium's `Env.step`."""
        self._paddle = min(max(self._paddle + int(action) - 1, 0), GRID - 1)
        self._row += 1
        reward, is_over = 0.0, False
        if self._row == GRID - 1:
            reward = 1.0 if self._column == self._paddle else -1.0
            self._num_balls += 1
            is_over = self._num_balls == NUM_BALLS
            if not is_over:
                self._drop()
        return self._observe(), reward, is_over, False, {}

    def _drop(self) -> None:
        self._row, self._column = 0, int(self._rng.integers(GRID))

    def _observe(self) -> NDArray[np.uint8]:
        cells = np.zeros((GRID, GRID), np.uint8)
        cells[self._row, self._column] = BALL
        cells[GRID - 1, self._paddle] = PADDLE
        return cells.repeat(CELL_PIXELS, axis=0).repeat(CELL_PIXELS, axis=1)[None]


gymnasium.register("rulka/Catch64-v0", entry_point="benchmarks.qrdqn.catch:CatchEnv")
