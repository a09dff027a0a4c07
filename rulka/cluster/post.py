"""Letters between a process and what it has started on the nodes of a cluster; `ray_post` carries them with Ray.

A letter is a small picklable message and, beside it, at most one content: arrays, which travel apart and are read where
they arrive, without another copy. Ray pickles both; they go between processes of ours and are never read from a file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class Place(NamedTuple):
    """Who writes: what was started as this number, and how often before. A successor is never taken for it."""

    number: int
    incarnation: int


class Node(NamedTuple):
    """A machine of the cluster.

    Attributes:
        key: as the cluster names it; one that comes back has another.
        name: for people.
        num_cpus: that it offers.
        store_bytes: memory that it offers for contents.
        is_own: this process is there.
    """

    key: str
    name: str
    num_cpus: int
    store_bytes: int
    is_own: bool


@dataclass(frozen=True)
class Gone:
    """In the place of a message: its writer is no more.

    Attributes:
        reason: in words.
        is_unplaced: it could not be started at all, as its node is no more, or is taken.
    """

    reason: str
    is_unplaced: bool = False


class Letter(NamedTuple):
    """A message with its writer and what came beside it."""

    place: Place
    message: Any
    content: Any = None


class Far(Protocol):
    """What is started on a node. Its methods are called by different threads."""

    def tell(self, message: Any, content: Any) -> None:
        """Takes a letter; returns at once."""
        ...

    def listen(self, timeout_s: float) -> list[tuple[Any, Any]]:
        """Returns messages with what `Share` made of their contents, as soon as there are any; none after a while."""
        ...


Share = Callable[[Any], Any]
"""Lays arrays where whoever gets the returned parcel can read them; they may be overwritten after that."""

MakeFar = Callable[[Place, Share], Far]
"""A module-level function, or a `functools.partial` of one."""


class Post(Protocol):
    """The way to what is started on nodes, and back."""

    def nodes(self) -> Sequence[Node]:
        """Returns the nodes that are there now, always in the same order."""
        ...

    def num_free_cpus(self) -> int:
        """Returns how many CPUs of all nodes nobody has taken."""
        ...

    def start(self, place: Place, node: Node, num_cpus: int, make: MakeFar) -> None:
        """Starts something on a node and on no other; returns at once."""
        ...

    def share(self, content: Any) -> Any:
        """Returns a parcel of arrays, which may go with any number of letters, and lives as long as somebody has it."""
        ...

    def tell(self, place: Place, message: Any, parcel: Any = None) -> None:
        """Sends a letter; returns at once, and what becomes of it `hear` tells at most."""
        ...

    def hear(self, timeout_s: float) -> list[Letter]:
        """Waits until something is heard or the time is over, and returns all that is there."""
        ...

    def end(self, place: Place) -> None:
        """Ends something, whatever it does, and hears no more of it; may be called again."""
        ...

    def close(self) -> None:
        """Ends everything; may be called again."""
        ...
