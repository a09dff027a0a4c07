"""Races that are held out of learning.

Dimensions: T decisions of a block, N cars.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rulka.buffers.experience import ExperienceBlock


class RaceSplit:
    """Randomly holds out races: they measure predictions of returns and are never learned from.

    Whole races, not decisions: neighbouring decisions are nearly the same, so learning from one leaks into the next.
    The draws depend only on the seed and the number of decisions so far.
    """

    def __init__(self, share: float, seed: int) -> None:
        """Takes the share of races to hold out, 0 to 1, and the seed of the draws."""
        self.share, self._seed = share, seed
        self._is_held_out: dict[int, NDArray[np.bool_]] = {}

    def state_dict(self) -> dict[str, Any]:
        """Returns the side of each stream's current races."""
        return {"is_held_out": {stream: torch.from_numpy(cars) for stream, cars in self._is_held_out.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a `state_dict`."""
        self._is_held_out = {int(stream): cars.numpy() for stream, cars in state["is_held_out"].items()}

    def split(self, block: ExperienceBlock, stream: int, num_env_steps: int) -> NDArray[np.bool_]:
        """Returns the mask [T, N] of a block's decisions in held-out races.

        Args:
            block: the next one of its stream.
            stream: source of the block; a race that continues from the stream's last block stays on its side.
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
