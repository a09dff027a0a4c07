"""A learner with all that is its own: collectors, experience, and the versions that it publishes to its collectors.

A run has one of them, or several that learn as one. The first is in the process of the stage, where `LearnerLoop` tells
it what to do; the others are told the same by messages, see `rulka.runtime.rank_process`.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor

from rulka.agents.learner import Learner
from rulka.agents.quantisation import Quantiser, make_quantiser
from rulka.agents.ranks import ALONE, Ranks
from rulka.agents.spec import LearnsInHalves, LearnsInRanks
from rulka.buffers.experience import Experience
from rulka.cluster.ray_post import RayPost
from rulka.cluster.settings import find_cluster
from rulka.device import weights_on_host
from rulka.errors import UserError
from rulka.runtime.cluster_collectors import ClusterCollectors
from rulka.runtime.collectors import CollectorProcesses, Collectors, SerialCollectors, driven_block
from rulka.runtime.experience_files import DamagedExperienceError, ExperienceFiles
from rulka.runtime.messages import Learn, Standing, Taken, TakenBlock, TakeTurn
from rulka.runtime.metrics import Activity
from rulka.runtime.other_half import OtherHalfProcess
from rulka.runtime.specs import RunSpec

Spending = Callable[[Activity], AbstractContextManager[None]]
"""Counts the time of a block of code."""

_LOGGER = logging.getLogger(__name__)


class DivergedError(UserError):
    """Weights are not numbers any more."""


class Rank:
    """One learner and what is its own.

    Attributes:
        learner: of the agent.
        quantiser: makes of its versions what its collectors get.
        collectors: its own.
        experience: its files.
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

    def take(self, turn: TakeTurn, spending: Spending) -> Taken:
        """Inserts all blocks that are there, waiting a moment for one, and gives permission for further ones."""
        allowed = min(self.learner.num_allowed_env_steps(), turn.most_env_steps)
        with spending("waiting"):
            deliveries = self.collectors.collect(allowed, turn.wait_s, turn.budget_share, turn.env_steps_elsewhere)
        blocks = []
        for delivery in deliveries:
            with spending("inserting"):
                self.learner.insert(delivery.block, delivery.collector, delivery.facts.version)
                self.quantiser.observe(delivery.block)
                self.collectors.release(delivery)
            collector = self._spec.first_collector + delivery.collector
            blocks.append(TakenBlock(collector, delivery.facts, self.learner.version))
        return Taken(tuple(blocks), self.standing(), tuple(self.collectors.take_inference_times()))

    def learn(self, order: Learn, spending: Spending) -> dict[str, float] | None:
        """Makes an update, together with all other ranks if there are any; returns what `Learner.update` does."""
        self.learner.set_budget_share(order.budget_share, order.env_steps_elsewhere)
        with spending("updating"):
            return self.learner.update()

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
            is_ready=self._spec.num_ranks == 1 or (isinstance(learner, LearnsInRanks) and learner.is_ready()),
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
        """Writes what is new of the experience, and returns what a checkpoint holds of the rank."""
        return {
            "learner": self.learner.state_dict(),
            "experience": self._save_experience(),
            "quantiser": self.quantiser.state_dict(),
            "collectors": self.collectors.state_dict(),
        }

    def save_own(self) -> dict[str, Any]:
        """Does the same for a further rank: of the learner it returns only what the first one's state has not."""
        saved, own = self.save(), self.learner
        assert isinstance(own, LearnsInRanks)
        return saved | {"learner": {name: value for name, value in saved["learner"].items() if name in own.OWN_STATE}}

    def _save_experience(self) -> dict[str, Any] | None:
        """Writes what is new of the experience, and returns what a checkpoint says of all of it."""
        if self._spec.train.experience == "rebuilt":
            return None
        experience = self.learner.experience()
        return {"state": experience.state, "names": self.experience.write(experience.pieces)}


def build_rank(
    spec: RunSpec, saved: Mapping[str, Any] | None, num_starts: int, stack: ExitStack, ranks: Ranks = ALONE
) -> Rank:
    """Builds a rank, and goes on from what was saved of it; its collectors are started.

    Args:
        spec: of the rank, see `RunSpec.of_rank`.
        saved: what a checkpoint holds of it, see `saved_of`; None begins anew.
        num_starts: how often the run was started before.
        stack: takes it down again.
        ranks: all of them.
    """
    learner = spec.make_learner()
    if ranks.size > 1:
        assert isinstance(learner, LearnsInRanks)
        learner.join(ranks)
    experience = ExperienceFiles(spec.folder, num_starts)
    if saved:
        learner.load_state_dict(saved["learner"])
        restore_experience(learner, experience, saved["experience"])
    else:
        experience.clear()
    tensors = weights_on_host(learner.network)
    quantiser = make_quantiser(learner.network, spec.train.acting_precision)
    if saved:
        quantiser.load_state_dict(saved["quantiser"])
    if quantiser.needs_frames:
        quantiser.observe(driven_block(spec, tensors))
    collectors: CollectorProcesses | ClusterCollectors | SerialCollectors
    if spec.train.num_collectors:
        half = _other_half(spec, learner, stack)
        published = quantiser.quantise(learner.version, tensors)
        if spec.train.cluster == "ray":
            post = RayPost(find_cluster())
            stack.callback(post.close)
            collectors = ClusterCollectors(spec, published, learner.num_env_steps, num_starts, post, other_half=half)
        else:
            collectors = CollectorProcesses(spec, published, learner.num_env_steps, num_starts, other_half=half)
        stack.callback(collectors.stop)
        collectors.start()
    else:
        collectors = SerialCollectors(spec, learner.num_env_steps, num_starts)
        stack.callback(collectors.stop)
    if saved and saved["collectors"] is not None:
        collectors.load_state_dict(saved["collectors"])
    return Rank(spec, learner, quantiser, collectors, experience)


def _other_half(spec: RunSpec, learner: Learner, stack: ExitStack) -> OtherHalfProcess | None:
    """Returns the way to the other half of a learner that has one elsewhere; its process is not started yet."""
    if not isinstance(learner, LearnsInHalves) or learner.make_half() is None:
        return None
    half = OtherHalfProcess(learner, spec.block)
    stack.callback(half.stop)
    learner.part_with(half)
    return half


def saved_of(state: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """Returns what a checkpoint holds of a rank; what all have in common is that of the first one."""
    if rank == 0:
        return dict(state)
    own = state["others"][rank - 1]
    return own | {"learner": state["learner"] | own["learner"]}


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


def restore_experience(learner: Learner, files: ExperienceFiles, saved: Mapping[str, Any] | None) -> None:
    """Gives a learner its experience back; where there is none, or it cannot be read, it gathers it anew."""
    try:
        if saved is not None:
            learner.load_experience(Experience(saved["state"], files.pieces(saved["names"])))
            files.go_on_from(saved["names"])
            return
    except DamagedExperienceError as error:
        _LOGGER.warning("%s; going on with these weights, and gathering experience anew", error)
    learner.forget_experience()
