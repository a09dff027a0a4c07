"""Catch64, a small cheap pixel task: a ball falls through an 8 x 8 grid drawn in 64 x 64 grey pixels, a paddle catches.

Source of the rules: Mnih et al. 2014, arXiv:1406.6247; bsuite's Catch (Osband et al. 2020, arXiv:1908.03568), there
with one ball in a race. The same world is a gymnasium environment here, `benchmarks.qrdqn.catch:rulka/Catch64-v0`, and
a batch of cars for Rulka's runtime.
Dimensions: N games, F floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from rulka.schedule import Moment
from rulka.step_results import StepResult

GRID, CELL_PIXELS, NUM_BALLS, NUM_ACTIONS = 8, 8, 5, 3
SIZE = GRID * CELL_PIXELS
BALL, PADDLE = 255, 160
NUM_FLOATS = 4
"""All zero but the clock of the mini-race, which the learner itself writes."""
EPISODE_STEPS = (GRID - 1) * NUM_BALLS


class CatchGame:
    """One game: actions are left, stay and right; five balls, each worth 1 if caught and -1 if not."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._row = self._column = self._paddle = self._num_balls = 0

    def seed(self, seed: list[int]) -> None:
        """Starts the source of chance."""
        self._rng = np.random.default_rng(seed)

    def reset(self) -> None:
        """Puts the paddle in the middle and lets the first ball fall."""
        self._paddle, self._num_balls = GRID // 2, 0
        self._drop()

    def step(self, action: int) -> tuple[float, bool]:
        """Moves paddle and ball; returns the reward and whether this was the last ball."""
        self._paddle = min(max(self._paddle + action - 1, 0), GRID - 1)
        self._row += 1
        if self._row < GRID - 1:
            return 0.0, False
        reward = 1.0 if self._column == self._paddle else -1.0
        self._num_balls += 1
        is_over = self._num_balls == NUM_BALLS
        if not is_over:
            self._drop()
        return reward, is_over

    def draw(self, image_out: NDArray[np.uint8]) -> None:
        """Writes what is to be seen [64, 64]; the paddle hides a ball in its cell."""
        image_out[:] = 0
        _fill(image_out, self._row, self._column, BALL)
        _fill(image_out, GRID - 1, self._paddle, PADDLE)

    def _drop(self) -> None:
        self._row, self._column = 0, int(self._rng.integers(GRID))


class CatchEnv(gymnasium.Env[NDArray[np.uint8], Any]):
    """One game as a gymnasium environment; observations are [1, 64, 64] uint8."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (1, SIZE, SIZE), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(NUM_ACTIONS)
        self._game = CatchGame()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Starts a game; see gymnasium's `Env.reset`."""
        super().reset(seed=seed, options=options)
        if seed is not None:
            self._game.seed([seed, 0])
        self._game.reset()
        return self._observe(), {}

    def step(self, action: Any) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Takes one decision; see gymnasium's `Env.step`."""
        reward, is_over = self._game.step(int(action))
        return self._observe(), reward, is_over, False, {}

    def _observe(self) -> NDArray[np.uint8]:
        image = np.empty((1, SIZE, SIZE), np.uint8)
        self._game.draw(image[0])
        return image


class CatchCars:
    """N games as a batch of cars; see `rulka.runtime.collector.CarBatch`."""

    def __init__(self, num_games: int) -> None:
        self._games = [CatchGame() for _ in range(num_games)]
        self._is_over = np.zeros(num_games, np.bool_)

    def reset_into(
        self,
        image_out: NDArray[np.uint8],
        floats_out: NDArray[np.float32],
        potential_out: NDArray[np.float32],
        seed: int,
    ) -> None:
        """Starts all games anew; game k takes its chance from the seed and k."""
        for index, game in enumerate(self._games):
            game.seed([seed, index])
            game.reset()
        self._is_over[:] = False
        self._write(image_out, floats_out, potential_out)

    def step_into(
        self,
        actions: NDArray[np.int64],
        image_out: NDArray[np.uint8],
        floats_out: NDArray[np.float32],
        potential_out: NDArray[np.float32],
    ) -> StepResult:
        """Takes one decision in every game; one that is over is reset instead."""
        count = len(self._games)
        is_reset, reward = self._is_over.copy(), np.zeros(count, np.float32)
        for index, game in enumerate(self._games):
            if is_reset[index]:
                game.reset()
                self._is_over[index] = False
            else:
                reward[index], self._is_over[index] = game.step(int(actions[index]))
        self._write(image_out, floats_out, potential_out)
        over, none = self._is_over.copy(), np.zeros(count, np.bool_)
        nothing = np.zeros(count, np.float32)
        return StepResult(
            reward=reward,
            terminated=over,
            truncated=none,
            is_reset=is_reset,
            progress_m=nothing,
            start_m=nothing,
            race_time_ms=np.zeros(count, np.int64),
            is_finished=over,
            is_off_track=none,
            is_full_race=~none,
        )

    def set_moment(self, moment: Moment) -> None:
        """Changes nothing: the rewards have no schedule."""

    def cars(self) -> None:
        """Returns nothing: there is no track."""

    def state_dict(self) -> None:
        """Says that a run cannot go on from here."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Refuses, as there is no state."""
        raise NotImplementedError

    def close(self) -> None:
        """Lets go of nothing."""

    def _write(
        self, image_out: NDArray[np.uint8], floats_out: NDArray[np.float32], potential_out: NDArray[np.float32]
    ) -> None:
        for game, image in zip(self._games, image_out, strict=True):
            game.draw(image[0])
        floats_out[:], potential_out[:] = 0.0, 0.0


gymnasium.register("rulka/Catch64-v0", entry_point="benchmarks.qrdqn.catch:CatchEnv")


def _fill(image_out: NDArray[np.uint8], row: int, column: int, grey: int) -> None:
    top, left = row * CELL_PIXELS, column * CELL_PIXELS
    image_out[top : top + CELL_PIXELS, left : left + CELL_PIXELS] = grey
