"""Letters by Ray: an actor for each correspondent, calls one way, and one call that waits for an answer the other way.

Ray restarts nothing here: whoever has started something watches it, and knows what its end means.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from rulka.cluster.post import Gone, Letter, MakeFar, Node, Place
from rulka.cluster.settings import ClusterError, check_package, split_address
from rulka.ports import LOOPBACK

LISTEN_S = 1.0
"""How long a correspondent that has nothing to say lets a call wait."""
JOIN_LIMIT_S = 120.0
"""How long a cluster may take to answer a process that joins; Ray itself would ask for ever.

An idle machine answers in seconds; one with ten processes at work on two cores took more than a minute.
"""
KEY_SHOWN = 8
_TELLING, _LISTENING = "telling", "listening"


def load_ray(address: str) -> ModuleType:
    """Imports Ray, which takes a second or two; it tells nobody that it is used.

    Args:
        address: of the cluster that it is for.

    Raises:
        ClusterError: if it is not installed.
    """
    check_package()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if split_address(address)[0] in LOOPBACK:
        # Ray otherwise takes the address of a network card in its place, where nobody listens.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    import ray

    return ray


class Mailbox:
    """The actor around a correspondent; its methods run in threads of their own."""

    def __init__(self, make: MakeFar, place: Place) -> None:
        import ray

        self._far = make(place, lambda content: [ray.put(content)])

    def tell(self, message: Any, content: Any = None) -> None:
        """Hands a letter on; Ray has replaced the parcel by what is in it."""
        self._far.tell(message, content)

    def listen(self, timeout_s: float) -> list[tuple[Any, Any]]:
        """Returns what is said, with parcels."""
        return self._far.listen(timeout_s)


class RayPost:
    """See `rulka.cluster.post.Post`."""

    def __init__(self, address: str) -> None:
        """Connects to a cluster, of which this machine is a node.

        Raises:
            ClusterError: if that cannot be done.
        """
        self._ray = ray = load_ray(address)
        self._actors: dict[Place, Any] = {}
        self._listening: dict[Any, Place] = {}
        self._coming: dict[Any, Letter] = {}
        self._join(address)
        self._own = ray.get_runtime_context().get_node_id()
        self._mailbox = ray.remote(concurrency_groups={_TELLING: 1, _LISTENING: 1})(Mailbox)

    def _join(self, address: str) -> None:
        logging.getLogger("ray").setLevel(logging.ERROR)
        # In a thread of its own: there Ray leaves the signals of this process alone, and can be given up.
        failures: list[BaseException] = []
        thread = threading.Thread(target=self._init, args=(address, failures), daemon=True)
        thread.start()
        thread.join(JOIN_LIMIT_S)
        if thread.is_alive():
            reason = f"who listens there does not answer as Ray does within {JOIN_LIMIT_S:.0f} s"
        elif failures:
            reason = next(iter(str(failures[0]).strip().splitlines()), type(failures[0]).__name__)
        else:
            return
        message = f"the cluster at {address} cannot be joined: {reason}"
        hint = "This machine has to be one of its nodes (`ray start --address=...`), with the same Ray and Python."
        raise ClusterError(message, hint=hint)

    def _init(self, address: str, failures: list[BaseException]) -> None:
        try:
            self._ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
        except BaseException as error:  # whatever it is: the other thread says so
            failures.append(error)

    def nodes(self) -> Sequence[Node]:
        """Returns the nodes that are there now, this process's first."""
        found = [_node(each, self._own) for each in self._ray.nodes() if each["Alive"]]
        return sorted(found, key=lambda node: (not node.is_own, node.key))

    def num_free_cpus(self) -> int:
        """Returns how many CPUs of all nodes nobody has taken."""
        return int(self._ray.available_resources().get("CPU", 0.0))

    def start(self, place: Place, node: Node, num_cpus: int, make: MakeFar) -> None:
        """Starts something on a node and on no other."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where = NodeAffinitySchedulingStrategy(node_id=node.key, soft=False)
        actor = self._mailbox.options(num_cpus=num_cpus, max_restarts=0, max_task_retries=0, scheduling_strategy=where)
        self._actors[place] = actor.remote(make, place)
        self._listen(place)

    def share(self, content: Any) -> Any:
        """Puts arrays into the memory of this node; Ray moves them where they are read."""
        return [self._ray.put(content)]

    def tell(self, place: Place, message: Any, parcel: Any = None) -> None:
        """Calls the actor; what is in the parcel is there when the call begins."""
        actor = self._actors.get(place)
        if actor is not None:
            actor.tell.options(concurrency_group=_TELLING).remote(message, *(parcel or ()))

    def hear(self, timeout_s: float) -> list[Letter]:
        """Waits until something is heard or the time is over."""
        waiting = [*self._listening, *self._coming]
        if not waiting:
            time.sleep(timeout_s)
            return []
        if not self._ray.wait(waiting, timeout=timeout_s)[0]:
            return []
        heard: list[Letter] = []
        for ref in self._ready(self._listening):
            heard += self._answer(ref, self._listening.pop(ref))
        for ref in self._ready(self._coming):
            heard.append(self._opened(ref, self._coming.pop(ref)))
        return heard

    def end(self, place: Place) -> None:
        """Kills an actor, and forgets what it has said and nobody has heard."""
        actor = self._actors.pop(place, None)
        self._listening = {ref: writer for ref, writer in self._listening.items() if writer != place}
        self._coming = {ref: letter for ref, letter in self._coming.items() if letter.place != place}
        if actor is not None:
            self._ray.kill(actor, no_restart=True)

    def close(self) -> None:
        """Ends all actors and leaves the cluster."""
        for place in list(self._actors):
            self.end(place)
        self._ray.shutdown()

    def _listen(self, place: Place) -> None:
        ref = self._actors[place].listen.options(concurrency_group=_LISTENING).remote(LISTEN_S)
        self._listening[ref] = place

    def _ready(self, refs: Mapping[Any, Any]) -> list[Any]:
        """Returns those whose values lie on this node; others are fetched meanwhile."""
        return self._ray.wait(list(refs), num_returns=len(refs), timeout=0)[0] if refs else []

    def _answer(self, ref: Any, place: Place) -> Iterator[Letter]:
        """Yields what a call has brought but for what comes later, and waits for more by the next call."""
        errors = self._ray.exceptions
        try:
            said = self._ray.get(ref)
        except (errors.ActorUnschedulableError, errors.ActorPlacementGroupRemoved) as error:
            yield Letter(place, Gone(_first_line(error), is_unplaced=True))
            return
        except errors.RayError as error:  # also of a network that failed: what the call would have brought is lost
            yield Letter(place, Gone(_first_line(error)))
            return
        for message, parcel in said:
            if parcel is None:
                yield Letter(place, message)
            else:
                self._coming[parcel[0]] = Letter(place, message)
        self._listen(place)

    def _opened(self, ref: Any, letter: Letter) -> Letter:
        try:
            return letter._replace(content=self._ray.get(ref))
        except self._ray.exceptions.RayError as error:
            return Letter(letter.place, Gone(f"what it sent is lost: {_first_line(error)}"))


def _node(facts: Mapping[str, Any], own: str) -> Node:
    resources = facts["Resources"]
    return Node(
        key=facts["NodeID"],
        name=f"{facts['NodeManagerAddress']} ({facts['NodeID'][:KEY_SHOWN]})",
        num_cpus=int(resources.get("CPU", 0.0)),
        store_bytes=int(resources.get("object_store_memory", 0.0)),
        is_own=facts["NodeID"] == own,
    )


def _first_line(error: BaseException) -> str:
    """Returns what an error of Ray says, without the facts that follow; of one of ours, its own words."""
    cause = getattr(error, "cause", None)
    shown = error if cause is None else cause
    lines = [line.strip() for line in str(shown).splitlines() if line.strip()]
    text = lines[0] if lines else type(shown).__name__
    return f"{type(shown).__name__}: {text}"
