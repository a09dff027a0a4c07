"""Blocks on the device, until a policy has learned from them.

Dimensions: T decisions of a block, N cars, L frames seen at once, H x W pixels, F floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rulka.agents.advantages import Endings
from rulka.buffers.experience import Experience, ExperienceBlock, Piece
from rulka.device import CPU, on_host, upload, upload_copy


class Segment(NamedTuple):
    """The columns of blocks that policies learn from; see `rulka.buffers.experience`.

    Attributes:
        image: [T + 1, N, L, H, W] uint8.
        floats: [T + 1, N, F] float32 raw.
        potential: [T + 1, N] float32.
        action: [T, N] int64, or [T, N, K]; float32 where decisions are numbers.
        log_prob: [T, N] float32 of the action when it was chosen.
        reward: [T, N] float32, without shaping.
        terminated: [T, N] bool.
        truncated: [T, N] bool.
        is_reset: [T, N] bool.
    """

    image: Tensor
    floats: Tensor
    potential: Tensor
    action: Tensor
    log_prob: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    is_reset: Tensor

    @property
    def endings(self) -> Endings:
        """How each decision ended."""
        return Endings(self.terminated, self.truncated, self.is_reset)

    def shaped_reward(self, discount: float) -> Tensor:
        """Returns rewards [T, N] with potential-based shaping, Ng et al. 1999: gamma phi(s') - phi(s) is added.

        phi(s') is 0 where a race ended for good.
        """
        following = torch.where(self.terminated, 0.0, self.potential[1:])
        return self.reward + discount * following - self.potential[:-1]


def keep_block(block: ExperienceBlock, device: torch.device = CPU) -> Segment:
    """Copies those columns of a block to a device."""
    action = block.action if block.spec.continuous else block.action.astype(np.int64)
    seen, ends = (block.image, block.floats, block.potential), (block.terminated, block.truncated, block.is_reset)
    arrays = (*seen, action, block.log_prob, block.reward, *ends)
    return upload_copy(Segment(*(torch.from_numpy(array) for array in arrays)), device)


def join_segments(segments: Sequence[Segment]) -> Segment:
    """Returns segments of equally many decisions as one, with all their cars side by side."""
    return Segment(*(torch.cat(columns, dim=1) for columns in zip(*segments, strict=True)))


class WaitingBlocks:
    """Blocks that wait to be learned from, each once, oldest first.

    Attributes:
        num_decisions: in them, resets included.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._segments: dict[int, Segment] = {}  # by the number of the block
        self._versions: dict[int, int] = {}
        self._num_inserted = 0
        self.num_decisions = 0

    def insert(self, block: ExperienceBlock, collector: int, version: int) -> None:
        """Takes a block that was made with weights of a version; copies it."""
        del collector
        self._segments[self._num_inserted] = keep_block(block, self._device)
        self._versions[self._num_inserted] = version
        self._num_inserted += 1
        self.num_decisions += block.is_reset.size

    def take(self, num_decisions: int) -> tuple[Segment, float]:
        """Takes the oldest blocks out, as many as have so many decisions.

        Returns:
            These side by side, and the mean version of the weights that made them.
        """
        taken: list[Segment] = []
        versions: list[int] = []
        num_taken = 0
        while num_taken < num_decisions:
            number = next(iter(self._segments))
            taken.append(self._segments.pop(number))
            versions.append(self._versions.pop(number))
            num_taken += taken[-1].is_reset.numel()
        self.num_decisions -= num_taken
        return join_segments(taken), float(np.mean(versions))

    def forget(self) -> None:
        """Forgets them."""
        self._segments, self._versions, self.num_decisions = {}, {}, 0

    def experience(self) -> Experience:
        """Returns them for a checkpoint; see `rulka.agents.learner.Learner`."""
        state: dict[str, Any] = {
            "num_inserted": self._num_inserted,
            "num_decisions": self.num_decisions,
            "versions": dict(self._versions),
        }
        return Experience(state, {number: as_piece(segment) for number, segment in self._segments.items()})

    def load_experience(self, experience: Experience) -> None:
        """Resumes from an `experience`; copies it."""
        state = experience.state
        self._num_inserted, self.num_decisions = int(state["num_inserted"]), int(state["num_decisions"])
        self._versions = {int(number): int(version) for number, version in state["versions"].items()}
        self._segments = {
            number: from_piece(piece, self._device) for number, piece in sorted(experience.pieces.items())
        }


def from_piece(piece: Piece, device: torch.device) -> Segment:
    """Returns the segment that `as_piece` made arrays of, on a device."""
    return upload(Segment(**{name: torch.from_numpy(column) for name, column in piece.items()}), device)


def as_piece(segment: Segment) -> Piece:
    """Returns a segment as arrays, for a checkpoint."""
    return dict(zip(segment._fields, (column.numpy() for column in on_host(*segment)), strict=True))
