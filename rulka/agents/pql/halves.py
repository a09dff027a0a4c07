"""Interfaces of a learner split over two processes, between `rulka.agents.pql.learner` and the runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from rulka.buffers.experience import ExperienceBlock
from rulka.contracts.schedule import Moment


class HalfHandle(Protocol):
    """Handle to the half in another process."""

    @property
    def num_restarts(self) -> int:
        """Restarts of its process so far."""
        ...

    def send_blocks(self, numbers: range, copy: Callable[[int, ExperienceBlock], None]) -> None:
        """Sends it the blocks that it has not seen, as far as there is room.

        Args:
            numbers: of all stored blocks.
            copy: copies observations and resets of the block with a number into another block.
        """

    def allow_updates(self, num_updates: int, moment: Moment) -> None:
        """Publishes this half's tensors to it and permits updates up to a total of `num_updates`."""

    def poll(self, timeout_s: float) -> None:
        """Waits for its messages and passes its updates to `LearnsInHalves.take_half`."""


@runtime_checkable
class LearnsInHalves(Protocol):
    """A learner that can run one half in its own process; `HalfHandle.allow_updates` enforces the update ratio."""

    def make_half(self) -> Callable[[], Any] | None:
        """Returns a picklable builder of that half, a `RemotePolicyHalf`; None if one process runs both."""
        ...

    def own_tensors(self) -> dict[str, Tensor]:
        """Returns the tensors of this half, which the other half reads; always the same names and shapes."""
        ...

    def half_tensors(self) -> dict[str, Tensor]:
        """Returns this process's copy of the other half's tensors."""
        ...

    def take_half(self, num_updates: int, tensors: Mapping[str, Tensor], metrics: Mapping[str, float]) -> None:
        """Installs the other half's tensors after `num_updates` updates (copied)."""

    def attach_remote(self, handle: HalfHandle) -> None:
        """Hands that half over to another process."""
