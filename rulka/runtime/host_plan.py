"""How the collectors of a run are dealt to the nodes of a cluster, and what that takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rulka.cluster.post import Node
from rulka.cluster.settings import ClusterError
from rulka.params import TrainParams


class ClusterTooSmallError(ClusterError):
    """The nodes have less than the run needs; the message holds both."""


@dataclass(frozen=True)
class HostShare:
    """What one host has of a run, whichever node it is on.

    Attributes:
        number: of the host.
        first_collector: its first one's number in all of the run.
        num_collectors: one CPU each.
        policy_workers: of central inference, which take turns with the collectors and so no CPU.
    """

    number: int
    first_collector: int
    num_collectors: int
    policy_workers: int


def deal(train: TrainParams, nodes: Sequence[Node], num_free_cpus: int) -> list[tuple[HostShare, Node]]:
    """Deals the collectors one by one to the node that has the fewest of them and a CPU left, each node one host.

    Args:
        train: `num_collectors` are dealt, and where inference is central `policy_workers`, at least one a host.
        nodes: that there are.
        num_free_cpus: of all of them, that nobody has taken.

    Returns:
        The hosts with their nodes; a node without a collector has none.

    Raises:
        ClusterTooSmallError: if there are too few CPUs, or too few policy workers.
    """
    wanted, there = train.num_collectors, sum(node.num_cpus for node in nodes)
    if wanted > min(there, num_free_cpus):
        each = ", ".join(f"{node.name} {node.num_cpus}" for node in nodes)
        taken = f", of which others have taken {there - num_free_cpus}" if num_free_cpus < there else ""
        message = f"train.num_collectors {wanted} take a CPU each, and the cluster has {there}{taken}: {each}"
        raise ClusterTooSmallError(message, hint="Lower train.num_collectors, or add nodes: docs/cluster.md.")
    counts = [0] * len(nodes)
    for _ in range(wanted):
        able = [index for index, node in enumerate(nodes) if counts[index] < node.num_cpus]
        counts[min(able, key=lambda index: (counts[index], index))] += 1
    counts = [count for count in counts if count]  # nodes without CPUs can be anywhere among them
    used = [node for node in nodes if node.num_cpus]
    workers = _deal_workers(train, counts)
    firsts = [sum(counts[:number]) for number in range(len(counts))]
    return [
        (HostShare(number, firsts[number], counts[number], workers[number]), used[number])
        for number in range(len(counts))
    ]


def _deal_workers(train: TrainParams, counts: Sequence[int]) -> list[int]:
    if train.inference == "local":
        return [1] * len(counts)
    if train.policy_workers < len(counts):
        message = f"train.policy_workers {train.policy_workers} are too few for {len(counts)} nodes with collectors"
        raise ClusterTooSmallError(message, hint="Each node needs one of its own: they act through shared memory.")
    workers = [1] * len(counts)
    for _ in range(train.policy_workers - len(counts)):
        able = [index for index, count in enumerate(counts) if workers[index] < count]
        workers[max(able, key=lambda index: (counts[index] / workers[index], -index))] += 1
    return workers


def check_stores(hosts: Sequence[tuple[HostShare, Node]], own: Node, block_bytes: int, weights_bytes: int) -> None:
    """Makes sure that blocks and weights on their way have room in the nodes' object stores, or Ray would use the disk.

    Args:
        hosts: with their nodes.
        own: the learner's node, where the blocks of all arrive.
        block_bytes: of all the blocks that one collector may have under way.
        weights_bytes: of the versions that may be under way.

    Raises:
        ClusterTooSmallError: naming the node and both figures.
    """
    needed: dict[Node, int] = {own: weights_bytes}
    for share, node in hosts:
        for where in {node, own}:
            needed[where] = needed.get(where, weights_bytes) + share.num_collectors * block_bytes
    for node, num_bytes in needed.items():
        if num_bytes > node.store_bytes:
            message = (
                f"the object store of node {node.name} has {node.store_bytes >> 20} MiB, and the blocks and weights on "
                f"their way may take {-(-num_bytes // (1 << 20))} MiB"
            )
            hint = "Start Ray there with a larger --object-store-memory, or lower train.block_steps."
            raise ClusterTooSmallError(message, hint=hint)
