"""A learner with all that is its own: collectors, experience, and the versions that it publishes to its collectors.

A run has one of them, or several that learn as one. `LearnerLoop` has all of them do the same at the same time: the
first one in its own process, the others by `rulka.runtime.ranks`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rulka.agents.learner import Learner
from rulka.agents.quantisation import Quantiser
from rulka.device import weights_on_host
from rulka.errors import UserError
from rulka.runtime.collectors import Collectors
from rulka.runtime.experience_files import ExperienceFiles
from rulka.runtime.messages import BlockFilled
from rulka.runtime.metrics import Activity, Spent
from rulka.runtime.specs import RunSpec


class DivergedError(UserError):
    """Weights are not numbers any more."""


class Standing(NamedTuple):
    """How far a learner is.

    Attributes:
        num_env_steps: that it has taken in.
        num_allowed_env_steps: that it allows.
        num_under_way: blocks that its collectors may fill and have not filled yet.
        is_ready: whether an update would learn now.
        num_restarts: how often a process of its collectors was started again.
    """

    num_env_steps: int
    num_allowed_env_steps: int
    num_under_way: int
    is_ready: bool
    num_restarts: int


class Taken(NamedTuple):
    """What a learner has taken in.

    Attributes:
        blocks: of each, who filled it, by its number in all of the run; its facts; and the version of the learner's
            weights when it came.
        standing: how far it is now.
        spent_s: seconds that a further learner spent since its last turn, by activity.
    """

    blocks: list[tuple[int, BlockFilled, int]]
    standing: Standing
    spent_s: Mapping[str, float]


class Rank:
    """One learner and what is its own.

    Attributes:
        learner: of the agent.
        quantiser: makes of its versions what its collectors get.
        collectors: its own.
        experience: its files.
        spending: counts the time of a block of code by activity; the loop has its own for the first rank.
    """

    def __init__(
        self,
        spec: RunSpec,
        learner: Learner,
        quantiser: Quantiser,
        collectors: Collectors,
        experience: ExperienceFiles,
    ) -> None:
        self._spec = spec
        self.learner, self.quantiser, self.collectors, self.experience = learner, quantiser, collectors, experience
        self._published = -1
        self._spent = Spent()
        self.spending: Callable[[Activity], AbstractContextManager[None]] = self._spent.spending

    def take(self, most_env_steps: int, wait_s: float, budget_share: float, env_steps_elsewhere: int) -> Taken:
        """Inserts all blocks that are there, waiting a moment for one, and gives permission for further ones.

        Args:
            most_env_steps: as many its collectors may have begun in all, however many more it would allow.
            wait_s: longest wait for a block.
            budget_share: of the run that is used.
            env_steps_elsewhere: that the other learners have taken in.
        """
        allowed = min(self.learner.num_allowed_env_steps(), most_env_steps)
        with self.spending("waiting"):
            deliveries = self.collectors.collect(allowed, wait_s, budget_share, env_steps_elsewhere)
        blocks = []
        for delivery in deliveries:
            with self.spending("inserting"):
                self.learner.insert(delivery.block, delivery.collector, delivery.facts.version)
                self.quantiser.observe(delivery.block)
                self.collectors.release(delivery)
            collector = self._spec.first_collector + delivery.collector
            blocks.append((collector, delivery.facts, self.learner.version))
        return Taken(blocks, self.standing(), self._spent.take())

    def learn(self, budget_share: float, env_steps_elsewhere: int) -> dict[str, float] | None:
        """Makes an update, together with all other ranks if there are any, and publishes it.

        Args:
            budget_share: of the run that is used.
            env_steps_elsewhere: that the other learners have taken in.

        Returns:
            See `Learner.update`.

        Raises:
            DivergedError: if the weights are not finite.
        """
        self.learner.set_budget_share(budget_share, env_steps_elsewhere)
        with self.spending("updating"):
            values = self.learner.update()
        if values is not None:
            with self.spending("publishing"):
                self.publish()
        return values

    def publish(self) -> Mapping[str, Tensor]:
        """Gives the weights of now to the collectors if they have them not yet; returns what they got.

        Raises:
            DivergedError: if the weights are not finite.
        """
        version = self.learner.version
        if version == self._published:
            return {}
        tensors = weights_on_host(self.learner.network)
        wrong = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
        if wrong:
            message = f"training diverged: after update {version}, {wrong[0]!r} holds NaN or infinity"
            raise DivergedError(message, hint="Lower the learning rate; the last checkpoint is from before.")
        published = self.quantiser.quantise(version, tensors)
        self.collectors.publish(version, published)
        self._published = version
        return published

    def standing(self) -> Standing:
        """Returns how far it is."""
        learner = self.learner
        return Standing(
            num_env_steps=learner.num_env_steps,
            num_allowed_env_steps=learner.num_allowed_env_steps(),
            num_under_way=self.collectors.num_under_way,
            is_ready=learner.is_ready(),
            num_restarts=self.collectors.num_restarts,
        )

    def checksum(self) -> int:
        """Returns the CRC-32 of the weights."""
        checksum = 0
        for tensor in weights_on_host(self.learner.network).values():
            content = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
            checksum = zlib.crc32(content.data, checksum)
        return checksum

    def save(self) -> dict[str, Any]:
        """Writes what is new of the experience, and returns what a checkpoint holds of the rank.

        Of a further learner that is only what the first one's state has not.
        """
        with self.spending("saving"):
            learner = self.learner.state_dict()
            if self._spec.rank > 0:
                learner = {name: value for name, value in learner.items() if name in self.learner.OWN_STATE}
            return {
                "learner": learner,
                "experience": self._save_experience(),
                "quantiser": self.quantiser.state_dict(),
                "collectors": self.collectors.state_dict(),
            }

    def forget_unsaved(self) -> None:
        """Removes experience that no checkpoint needs, once the one with what was saved last is on the disk."""
        self.experience.forget_others()

    def _save_experience(self) -> dict[str, Any] | None:
        """Writes what is new of the experience, and returns what a checkpoint says of all of it."""
        if self._spec.train.experience == "rebuilt":
            return None
        experience = self.learner.experience()
        return {"state": experience.state, "names": self.experience.write(experience.pieces)}


def permitted(most_env_steps: int, block_steps: int, standings: Sequence[Standing]) -> list[int]:
    """Returns how many environment steps each rank's collectors may have begun, so that all together are enough.

    What is left of the budget is given out in whole blocks, so that it ends as that of one learner does. While there
    are enough, each rank may begin as many further ones; the last ones go to ranks that cannot learn without them, for
    the others wait for those.

    Args:
        most_env_steps: of all ranks.
        block_steps: environment steps of a block.
        standings: of the ranks.
    """
    begun = [one.num_env_steps + one.num_under_way * block_steps for one in standings]
    num_blocks = max(0, -(-(most_env_steps - sum(begun)) // block_steps))
    each, further = divmod(num_blocks, len(standings))
    by_need = sorted(range(len(standings)), key=lambda rank: (standings[rank].is_ready, begun[rank]))
    return [begun[rank] + (each + (by_need.index(rank) < further)) * block_steps for rank in range(len(standings))]
