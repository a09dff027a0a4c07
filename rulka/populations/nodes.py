"""Further processes of a population on the nodes of a cluster: each is `rulka population FILE` in the same folder.

They know each other by the locks in that folder, which all nodes share, and end when all turns are done.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rulka.cluster.post import Gone, Node, Place, Post, Share
from rulka.processes import start_group

END_GRACE_S = 30.0
"""How long those on other nodes may take to see that all is done."""
_LOOK_S = 0.5


@dataclass(frozen=True)
class Ended:
    """From a node: its processes have ended.

    Attributes:
        codes: with which.
        reason: why they could not be started, or nothing.
    """

    codes: tuple[int, ...]
    reason: str = ""


class NodeProcesses:
    """Processes on one node; see `rulka.cluster.post.Far`. They end with the thread that has started them."""

    def __init__(self, command: Sequence[str], folder: Path, count: int) -> None:
        self._command, self._folder, self._count = command, folder, count
        self._said: list[tuple[Any, Any]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def tell(self, message: Any, content: Any = None) -> None:
        """Has nothing to be told."""

    def listen(self, timeout_s: float) -> list[tuple[Any, Any]]:
        """Returns how they ended, once."""
        self._thread.join(timeout_s)
        said, self._said = self._said, []
        return said

    def _run(self) -> None:
        try:
            with Path(os.devnull).open("wb") as nowhere:
                started = [start_group(self._command, os.environ, nowhere, self._folder) for _ in range(self._count)]
                ended = Ended(tuple(process.wait() for process in started))
        except OSError as error:
            ended = Ended((), f"{error.strerror}: {error.filename}")
        self._said.append((ended, None))


def make_processes(command: Sequence[str], folder: Path, count: int, place: Place, share: Share) -> NodeProcesses:
    """Starts processes on a node; see `rulka.cluster.post.MakeFar`."""
    del place, share
    return NodeProcesses(command, folder, count)


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
    post: Post, command: Sequence[str], dealt: Sequence[tuple[Node, int]], say: Callable[[str], None]
) -> Iterator[None]:
    """Has further processes at work while the block runs, and says of those that failed.

    Args:
        post: to the nodes; closed at the end.
        command: that each process runs, in this folder.
        dealt: how many on which node.
        say: gets lines for people.
    """
    folder, names = Path.cwd(), {number: node.name for number, (node, _) in enumerate(dealt)}
    try:
        for number, (node, count) in enumerate(dealt):
            say(f"{count} more process{'es' if count > 1 else ''} on node {node.name}")
            post.start(Place(number, 0), node, count, partial(make_processes, command, folder, count))
        yield
        give_up_s = time.monotonic() + END_GRACE_S
        while names and time.monotonic() < give_up_s:
            for place, message, _ in post.hear(_LOOK_S):
                if isinstance(message, Ended | Gone) and place.number in names:
                    name = names.pop(place.number)
                    if problem := _problem(message):
                        say(f"node {name}: {problem}")
        for name in names.values():
            say(f"node {name}: its processes did not end, and are ended now")
    finally:
        post.close()


def _problem(message: Ended | Gone) -> str:
    if isinstance(message, Gone) or message.reason:
        return message.reason
    return f"processes ended with {message.codes}" if any(message.codes) else ""
