"""Further processes of a population on the nodes of a cluster: each is `rulka population FILE` in the same folder.

They know each other by the locks in that folder, which all nodes share, and end when all turns are done.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rulka.cluster import ActorFailedError, ActorLostError, Node, RayCluster
from rulka.processes import start_group

END_GRACE_S = 30.0
"""How long those on other nodes may take to see that all is done."""
_LOOK_S = 0.5


class NodeProcesses:
    """Processes on one node, an actor of the cluster; they end with its process."""

    def work(self, command: Sequence[str], folder: Path, count: int) -> str:
        """Runs processes to their end, and returns what went wrong, or nothing."""
        try:
            with Path(os.devnull).open("wb") as nowhere:
                started = [start_group(command, os.environ, nowhere, folder) for _ in range(count)]
                codes = tuple(process.wait() for process in started)
        except OSError as error:
            return f"{error.strerror}: {error.filename}"
        return f"processes ended with {codes}" if any(codes) else ""


def command_of(file: Path) -> list[str]:
    """Returns what each process runs."""
    return [sys.executable, "-m", "rulka.cli", "population", file.as_posix()]


def deal(nodes: Sequence[Node], members: int, *, is_serial: bool) -> list[tuple[Node, int]]:
    """Returns how many further processes each node gets: one for each CPU where turns are serial, else one a node.

    Args:
        nodes: of the cluster; this process is one on its own node.
        members: no more processes than these have anything to do.
        is_serial: whether a turn takes one CPU.
    """
    left, dealt = members - 1, []
    for node in nodes:
        count = min(left, (node.num_cpus if is_serial else 1) - node.is_own)
        if count > 0:
            dealt.append((node, count))
            left -= count
    return dealt


@contextmanager
def helped(
    cluster: RayCluster, command: Sequence[str], dealt: Sequence[tuple[Node, int]], say: Callable[[str], None]
) -> Iterator[None]:
    """Has further processes at work while the block runs, and says of those that failed.

    Args:
        cluster: with the nodes; closed at the end.
        command: that each process runs, in this folder.
        dealt: how many on which node.
        say: gets lines for people.
    """
    names: dict[Any, str] = {}
    try:
        for node, count in dealt:
            say(f"{count} more process{'es' if count > 1 else ''} on node {node.name}")
            actor = cluster.start(node, count, NodeProcesses)
            names[cluster.call(actor, "work", command, Path.cwd(), count)] = node.name
        yield
        give_up_s = time.monotonic() + END_GRACE_S
        while names and time.monotonic() < give_up_s:
            for answer in cluster.wait(list(names), _LOOK_S):
                name = names.pop(answer)
                try:
                    problem = cluster.get(answer)
                except (ActorLostError, ActorFailedError) as error:
                    problem = str(error)
                if problem:
                    say(f"node {name}: {problem}")
        for name in names.values():
            say(f"node {name}: its processes did not end, and are ended now")
    finally:
        cluster.close()
