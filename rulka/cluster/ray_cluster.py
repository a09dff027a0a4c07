"""Ray's actors on the nodes of a cluster: started on one node each, called directly, and never restarted by Ray.

Whoever has started an actor watches it, and knows what its end means. This is all that other rooms see of Ray.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from rulka.cluster.settings import ClusterError, check_package, split_address
from rulka.ports import LOOPBACK

JOIN_LIMIT_S = 120.0
"""How long a cluster may take to answer a process that joins; Ray itself would ask for ever.

An idle machine answers in seconds; one with ten processes at work on two cores took more than a minute.
"""
KEY_SHOWN = 8


class Node(NamedTuple):
    """A machine of the cluster.

    Attributes:
        key: as the cluster names it; one that comes back has another.
        name: for people.
        num_cpus: that it offers.
        store_bytes: of its object store.
        is_own: this process is there.
    """

    key: str
    name: str
    num_cpus: int
    store_bytes: int
    is_own: bool


class ActorLostError(Exception):
    """A call brings no answer, as its actor is gone or could not be started.

    Attributes:
        is_unplaced: it could not be started at all, as its node is no more, or is taken.
    """

    def __init__(self, message: str, *, is_unplaced: bool = False) -> None:
        super().__init__(message)
        self.is_unplaced = is_unplaced


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


class RayCluster:
    """A cluster of which this machine is a node. References are Ray's: to what a call will return."""

    def __init__(self, address: str) -> None:
        """Joins a cluster, of which this machine is a node.

        Raises:
            ClusterError: if that cannot be done.
        """
        self._ray = ray = load_ray(address)
        self._actors: list[Any] = []
        self._join(address)
        self._own = ray.get_runtime_context().get_node_id()

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
        """Returns the nodes that are there now, always in the same order."""
        found = [_node(each, self._own) for each in self._ray.nodes() if each["Alive"]]
        return sorted(found, key=lambda node: (not node.is_own, node.key))

    def num_free_cpus(self) -> int:
        """Returns how many CPUs of all nodes nobody has taken."""
        return int(self._ray.available_resources().get("CPU", 0.0))

    def start(self, node: Node, num_cpus: int, kind: type, *arguments: Any) -> Any:
        """Starts an actor on a node and on no other; returns at once.

        Args:
            node: where.
            num_cpus: that it takes.
            kind: class of the actor.
            arguments: of its constructor.
        """
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        actor = self._ray.remote(
            num_cpus=num_cpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node.key, soft=False),
        )(kind).remote(*arguments)
        self._actors.append(actor)
        return actor

    def call(self, actor: Any, method: str, *arguments: Any) -> Any:
        """Calls a method and returns a reference to its answer; a reference as argument is opened there.

        An actor answers the calls of one caller one after the other, in their order.
        """
        return getattr(actor, method).remote(*arguments)

    def put(self, content: Any) -> Any:
        """Lays arrays into the object store of this node, once for all calls, and returns a reference to them."""
        return self._ray.put(content)

    def wait(self, references: Sequence[Any], timeout_s: float) -> list[Any]:
        """Waits until there is an answer here, or the time is over; returns the references of all that are here."""
        if not references:
            time.sleep(timeout_s)
            return []
        waiting = list(references)
        if not self._ray.wait(waiting, timeout=timeout_s)[0]:
            return []
        return self._ray.wait(waiting, num_returns=len(waiting), timeout=0)[0]

    def get(self, reference: Any) -> Any:
        """Returns an answer that is here; its arrays lie in the object store and cannot be written.

        Raises:
            ActorLostError: if there will be none.
        """
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except (errors.ActorUnschedulableError, errors.ActorPlacementGroupRemoved) as error:
            raise ActorLostError(_first_line(error), is_unplaced=True) from error
        except errors.RayError as error:  # also of a network that failed
            raise ActorLostError(_first_line(error)) from error

    def end(self, actor: Any) -> None:
        """Kills an actor, whatever it does; may be called again."""
        if actor in self._actors:
            self._actors.remove(actor)
            self._ray.kill(actor, no_restart=True)

    def close(self) -> None:
        """Ends all actors and leaves the cluster; may be called again."""
        for actor in list(self._actors):
            self.end(actor)
        self._ray.shutdown()


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
    """Returns the message of Ray's error without the facts that follow, or that of an error which the call raised."""
    cause = getattr(error, "cause", None)
    shown = error if cause is None else cause
    lines = [line.strip() for line in str(shown).splitlines() if line.strip()]
    text = lines[0] if lines else type(shown).__name__
    return f"{type(shown).__name__}: {text}"
