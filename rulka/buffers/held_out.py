"""Which races are held out: kept for measuring how well returns are predicted, never learned from.

Whole races, not decisions: neighbouring decisions are nearly the same, and what was learned from one is known of the
next. Chance depends on the seed and the number of decisions so far alone.
Dimensions: T decisions, N cars.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rulka.buffers.experience import ExperienceBlock


class RaceSplit:
    """Draws for every race whether it is held out."""

    def __init__(self, share: float, seed: int) -> None:
        """Takes the share of races to hold out, 0 to 1, and the seed of the draws."""
        self.share, self._seed = share, seed
        self._is_held_out: dict[int, NDArray[np.bool_]] = {}

    def state_dict(self) -> dict[str, Any]:
        """Returns on which side each stream's present races are."""
        return {"is_held_out": {stream: torch.from_numpy(cars) for stream, cars in self._is_held_out.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` returned."""
        self._is_held_out = {int(stream): cars.numpy() for stream, cars in state["is_held_out"].items()}

    def split(self, block: ExperienceBlock, stream: int, num_env_steps: int) -> NDArray[np.bool_]:
        """Returns [T, N] which decisions of a block belong to races that are held out.

        Args:
            block: the next one of its stream.
            stream: who made it; a race that goes on from the stream's last block stays on its side.
            num_env_steps: decisions of all streams before this block.
        """
        rng = np.random.default_rng((self._seed, num_env_steps))
        now = self._is_held_out.get(stream)
        if now is None or len(now) != block.spec.num_cars:
            now = rng.random(block.spec.num_cars) < self.share
        result = np.empty(block.is_reset.shape, np.bool_)
        drawn = rng.random(block.is_reset.shape) < self.share
        for step in range(block.spec.num_steps):
            now = np.where(block.is_reset[step], drawn[step], now)  # a reset begins the next race
            result[step] = now
        self._is_held_out[stream] = now
        return result
