"""A cluster in this process: nodes that are only named, and hosts that are stepped by threads of their own.

Blocks are filled by a collector of fakes in the thread of its host, weights are copied; what a test wants to go wrong
it does to the post: nodes that go, hosts that die, fall silent, are cut off and come back, letters that are spoilt.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rulka.cluster.post import Gone, Letter, MakeFar, Node, Place
from rulka.runtime.cluster_collectors import ClusterCollectors
from rulka.runtime.collectors import Collectors, SerialCollectors
from rulka.runtime.host import Host, HostSpec
from rulka.runtime.messages import Stop
from tests.waiting import PATIENCE_S, wait_for

STORE_BYTES = 1 << 30


def nodes(*num_cpus: int) -> list[Node]:
    """Nodes with so many CPUs; this process is on the first."""
    return [Node(f"n{k}", f"node-{k}", count, STORE_BYTES, k == 0) for k, count in enumerate(num_cpus)]


def serial(spec: HostSpec) -> Collectors:
    """Builds the collectors of a host without processes: one of them does what all should."""
    return SerialCollectors(spec.run, 0, spec.num_starts)


def until_all_work(collectors: ClusterCollectors) -> None:
    """Waits until every host has built its collectors: from then on each gets its share of the permissions."""

    def all_work() -> bool:
        collectors.collect(0, 0.05)
        return all(credit.is_working for credit in collectors._credits)

    wait_for(all_work, "all hosts to work")


@dataclass
class _There:
    host: Host
    node: Node
    is_cut_off: bool = False
    said: deque[Letter] = field(default_factory=deque)


class PostHere:
    """See `rulka.cluster.post.Post`.

    Attributes:
        there: nodes that are there.
        started: every place that was ever started, with its node.
        most_contents: the most blocks that lay in the store at once.
    """

    def __init__(self, there: Sequence[Node], make_collectors: Callable[[HostSpec], Collectors] = serial) -> None:
        self.there = list(there)
        self.started: list[tuple[Place, str]] = []
        self.taken_cpus = 0
        self.spoil: Callable[[Place, Any, Any], tuple[Any, Any]] = lambda _place, message, content: (message, content)
        self.change: Callable[[Letter], Letter] = lambda letter: letter
        self.num_parcels = 0
        self.is_closed = False
        self._make_collectors = make_collectors
        self._hosts: dict[Place, _There] = {}
        self._cut_off: list[_There] = []
        self._late: list[Letter] = []
        self._gone: list[Letter] = []
        self._lock = threading.Lock()

    # What the learner does ------------------------------------------------------------------------------------------

    def nodes(self) -> list[Node]:
        return list(self.there)

    def num_free_cpus(self) -> int:
        return sum(node.num_cpus for node in self.there) - self.taken_cpus

    def start(self, place: Place, node: Node, num_cpus: int, make: MakeFar) -> None:
        self.started.append((place, node.key))
        if node not in self.there:
            self._gone.append(Letter(place, Gone("there is no such node", is_unplaced=True)))
            return
        host = Host(place, _copied, self._make_collectors)
        host.start()
        self._hosts[place] = _There(host, node)

    def share(self, content: Any) -> Any:
        self.num_parcels += 1
        return content.copy()

    def tell(self, place: Place, message: Any, parcel: Any = None) -> None:
        if place in self._hosts and not self._hosts[place].is_cut_off:
            self._hosts[place].host.tell(*self.spoil(place, message, parcel))

    def hear(self, timeout_s: float) -> list[Letter]:
        give_up_s = time.monotonic() + timeout_s
        while True:
            heard = [*self._gone, *self._late]
            self._gone, self._late = [], []
            for place, one in list(self._hosts.items()):
                if not one.is_cut_off:
                    heard += [Letter(place, *said) for said in one.host.listen(0.0)]
            if heard or time.monotonic() > give_up_s:
                return [self.change(letter) for letter in heard]
            time.sleep(0.001)

    def end(self, place: Place) -> None:
        one = self._hosts.pop(place, None)
        if one is not None and one.is_cut_off:
            self._cut_off.append(replace(one, said=deque([Letter(place, None)])))
        elif one is not None:
            _stop(one.host)

    def close(self) -> None:
        for place in list(self._hosts):
            self.end(place)
        for one in self._cut_off:
            _stop(one.host)
        self.is_closed = True

    # What a test does -----------------------------------------------------------------------------------------------

    def kill(self, number: int) -> None:
        """Kills a host: what it has said, and nobody has heard, is lost."""
        place = self.place_of(number)
        _stop(self._hosts.pop(place).host)
        self._gone.append(Letter(place, Gone("it was killed")))

    def cut_off(self, number: int) -> None:
        """Lets a host work on, while nothing goes to it or comes from it."""
        self._hosts[self.place_of(number)].is_cut_off = True

    def bring_back(self) -> None:
        """Lets everything be heard that hosts have said while they were cut off; their learner has given them up."""
        for one in self._cut_off:
            (marker,) = one.said
            self._late += [Letter(marker.place, *said) for said in one.host.listen(0.0)]

    def remove(self, key: str) -> None:
        """Takes a node away, with all that is on it."""
        self.there = [node for node in self.there if node.key != key]
        for place, one in list(self._hosts.items()):
            if one.node.key == key:
                _stop(self._hosts.pop(place).host)
                self._gone.append(Letter(place, Gone("its node is gone")))

    def place_of(self, number: int) -> Place:
        (place,) = [place for place in self._hosts if place.number == number]
        return place


def _copied(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    copies = {name: array.copy() for name, array in arrays.items()}
    for copy in copies.values():
        copy.flags.writeable = False  # as in Ray's memory
    return copies


def _stop(host: Host) -> None:
    host.tell(Stop())
    host._thread.join(PATIENCE_S)
    assert not host._thread.is_alive()
