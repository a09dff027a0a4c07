"""Queue of blocks for policy learners, on the device.

Dimensions: T decisions of a block, N cars, L frames seen at once, H x W pixels, F floats, K actions of a decision.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rulka.agents.shared.advantages import Endings
from rulka.buffers.experience import ExperienceBlock, StoredExperience
from rulka.machine.device import CPU, on_host, upload, upload_copy


class Segment(NamedTuple):
    """The columns of blocks that policy learners use; see `rulka.buffers.experience`.

    Attributes:
        image: [T + 1, N, L, H, W] uint8.
        floats: [T + 1, N, F] float32 raw.
        potential: [T + 1, N] float32.
        action: [T, N, K] int64; float32 if decisions are continuous.
        log_prob: [T, N] float32 of the action under the policy that acted.
        reward: [T, N] float32, without shaping.
        terminated: [T, N] bool.
        is_reset: [T, N] bool.
    """

    image: Tensor
    floats: Tensor
    potential: Tensor
    action: Tensor
    log_prob: Tensor
    reward: Tensor
    terminated: Tensor
    is_reset: Tensor

    @property
    def endings(self) -> Endings:
        """End flags of each decision."""
        return Endings(self.terminated, self.is_reset)

    def shaped_reward(self, discount: float) -> Tensor:
        """Returns rewards [T, N] with potential-based shaping, Ng et al. 1999: gamma phi(s') - phi(s) is added.

        phi(s') is 0 after a terminal decision.
        """
        following = torch.where(self.terminated, 0.0, self.potential[1:])
        return self.reward + discount * following - self.potential[:-1]

    def kept_rows(self, num_kept: int) -> Tensor:
        """Returns the rows [M] of [T N] that are no resets; a mask would have to wait for the device to tell M."""
        return self.is_reset.flatten().int().argsort(stable=True)[:num_kept]


def keep_block(block: ExperienceBlock, device: torch.device = CPU) -> Segment:
    """Copies the columns of a block that a `Segment` has to a device."""
    action = block.action if block.spec.continuous else block.action.astype(np.int64)
    seen = block.image, block.floats, block.potential
    arrays = (*seen, action, block.log_prob, block.reward, block.terminated, block.is_reset)
    return upload_copy(Segment(*(torch.from_numpy(array) for array in arrays)), device)


class _Queued(NamedTuple):
    segment: Segment
    version: int
    num_kept: int


class QueuedBlocks:
    """Queue of blocks, oldest first; each is learned from once.

    Attributes:
        num_decisions: available to learn from, resets included.
    """

    def __init__(self, device: torch.device = CPU) -> None:
        self._device = device
        self._num_inserted = 0
        self.forget()

    def forget(self) -> None:
        """Drops all blocks."""
        self._blocks: dict[int, _Queued] = {}  # by block number
        self.num_decisions = 0

    def insert(self, block: ExperienceBlock, collector: int, version: int) -> None:
        """Copies a block that `collector` recorded with weights of `version`."""
        del collector
        self._add(block, version)
        self.num_decisions += block.is_reset.size

    def take(self, num_decisions: int) -> tuple[Segment, int, float]:
        """Removes the oldest blocks, until they have at least `num_decisions` decisions.

        Returns:
            The blocks concatenated along cars, the number of decisions without resets, and the mean version of the
            weights that recorded them.
        """
        taken: list[_Queued] = []
        num_left = self.num_decisions - num_decisions
        while self.num_decisions > num_left:
            taken.append(self._blocks.pop(next(iter(self._blocks))))
            self.num_decisions -= taken[-1].segment.is_reset.numel()
        segments, versions, kept = zip(*taken, strict=True)
        side_by_side = Segment(*(torch.cat(columns, dim=1) for columns in zip(*segments, strict=True)))
        return side_by_side, sum(kept), float(np.mean(versions))

    def experience(self) -> StoredExperience:
        """Returns the whole queue for a checkpoint; see `rulka.agents.shared.learner.Learner`."""
        state: dict[str, Any] = {
            "num_inserted": self._num_inserted,
            "num_decisions": self.num_decisions,
            "versions": {number: queued.version for number, queued in self._blocks.items()},
        }
        pieces = {
            number: dict(zip(Segment._fields, (column.numpy() for column in on_host(*queued.segment)), strict=True))
            for number, queued in self._blocks.items()
        }
        return StoredExperience(state, pieces)

    def load_experience(self, experience: StoredExperience) -> None:
        """Resumes from an `experience`; copies it."""
        state = experience.state
        self._num_inserted, self.num_decisions = int(state["num_inserted"]), int(state["num_decisions"])
        self._blocks = {}
        for number, piece in sorted(experience.pieces.items()):
            segment = Segment(**{name: torch.from_numpy(array) for name, array in piece.items()})
            num_kept = int((~segment.is_reset).sum())
            self._blocks[number] = _Queued(upload(segment, self._device), int(state["versions"][number]), num_kept)

    def _add(self, block: ExperienceBlock, version: int) -> int:
        """Copies a block and returns its number."""
        number, self._num_inserted = self._num_inserted, self._num_inserted + 1
        self._blocks[number] = _Queued(keep_block(block, self._device), version, block.num_transitions)
        return number
