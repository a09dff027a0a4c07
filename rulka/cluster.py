"""Several machines as one: where the cluster is, and Ray's actors on its nodes. Nobody else knows of Ray.

Where it is, is a fact of the machine, from the environment or the file `.env`, never a parameter:

    RULKA_CLUSTER   host:port of its head, as 127.0.0.1:6379

A variable of the environment goes before the file. This machine has to be one of the cluster's nodes: blocks of
experience are read where Ray lays them, in the memory of a node. Actors are called directly, and never restarted by
Ray: whoever has started one watches it, and knows what its end means.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple

from dotenv import dotenv_values

from rulka.errors import UserError
from rulka.ports import ANSWER_TIMEOUT_S, HIGHEST_PORT, LOOPBACK, LOWEST_PORT

CLUSTER_VARIABLE = "RULKA_CLUSTER"
_START = "docs/cluster.md has the command that starts one on this machine."
_HINT = f"{CLUSTER_VARIABLE}=127.0.0.1:6379, in the environment or in .env; {_START}"
JOIN_LIMIT_S = 600.0
"""How long a cluster may take to answer a process that joins; Ray itself would ask for ever.

An idle machine answers in seconds, but Ray's processes load a few seconds' worth of Python first, each; where a dozen
others share two cores that alone is minutes.
"""
JOIN_NOTICE_S = 20.0
"""From then on it is said that the cluster does not answer yet."""
_LOGGER = logging.getLogger(__name__)
KEY_SHOWN = 8
BESIDE = "beside"
"""Concurrency group of the calls that an actor answers whatever else it does."""


class ClusterError(UserError):
    """There is no cluster to work with, or it does not do what it has to."""


def check_package() -> None:
    """Makes sure that Ray is installed; does not import it.

    Raises:
        ClusterError: if it is not; the hint says how to install it.
    """
    if find_spec("ray") is None:
        message = "a cluster needs Ray, which is not installed"
        raise ClusterError(message, hint="pip install 'rulka[ray]'")


def chosen_address() -> str | None:
    """Returns where the cluster's head is, as `host:port`; None where nothing says so.

    Raises:
        ClusterError: if what says so is no such address.
    """
    address = os.environ.get(CLUSTER_VARIABLE) or dotenv_values(".env").get(CLUSTER_VARIABLE)
    if address:
        split_address(address)
    return address or None


def split_address(address: str) -> tuple[str, int]:
    """Returns host and port of an address.

    Raises:
        ClusterError: if it is none.
    """
    host, _, port = address.rpartition(":")
    if "/" in address:
        message = f"{address!r} is no address of a cluster's head: blocks are read in the memory of a node"
        raise ClusterError(message, hint=f"Train on a node of the cluster, with {_HINT}")
    if not host or not port.isdecimal() or not LOWEST_PORT <= int(port) <= HIGHEST_PORT:
        message = f"{address!r} is no address of a cluster's head, which is host:port"
        raise ClusterError(message, hint=f"Set {_HINT}")
    return host, int(port)


def find_cluster() -> str:
    """Returns the address of a cluster that can be worked with, as far as one can tell without Ray.

    Raises:
        ClusterError: if Ray is not installed, no address is given, or nobody listens there.
    """
    check_package()
    address = chosen_address()
    if address is None:
        message = f"nothing says where the cluster is: {CLUSTER_VARIABLE} is not set"
        raise ClusterError(message, hint=f"Set {_HINT}")
    try:
        socket.create_connection(split_address(address), timeout=ANSWER_TIMEOUT_S).close()
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"there is no cluster at {address}, which {CLUSTER_VARIABLE} names: {reason}"
        raise ClusterError(message, hint=_START) from error
    return address


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
    """A call brings no answer, as its actor is gone or could not be started."""


class ActorFailedError(Exception):
    """A call ended by an error; the message is its traceback."""


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
        thread.join(JOIN_NOTICE_S)
        if thread.is_alive():
            _LOGGER.warning("the cluster at %s does not answer yet; it has %.0f s to do so", address, JOIN_LIMIT_S)
            thread.join(JOIN_LIMIT_S - JOIN_NOTICE_S)
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
        found = []
        for each in self._ray.nodes():
            if each["Alive"]:
                key, resources = each["NodeID"], each["Resources"]
                name = f"{each['NodeManagerAddress']} ({key[:KEY_SHOWN]})"
                cpus, store_bytes = resources.get("CPU", 0.0), resources.get("object_store_memory", 0.0)
                found.append(Node(key, name, int(cpus), int(store_bytes), key == self._own))
        return sorted(found, key=lambda node: (not node.is_own, node.key))

    def num_free_cpus(self) -> int:
        """Returns how many CPUs of all nodes nobody has taken."""
        return int(self._ray.available_resources().get("CPU", 0.0))

    def start(self, kind: type) -> Any:
        """Starts an actor of a class, which takes one CPU; returns at once.

        Ray spreads them over the nodes, and waits for one that has room.
        """
        # Whoever started it watches it, so Ray restarts none.
        options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", "max_restarts": 0, "max_task_retries": 0}
        actor = self._ray.remote(**options, concurrency_groups={BESIDE: 1})(kind).remote()
        self._actors.append(actor)
        return actor

    def call(self, actor: Any, method: str, *arguments: Any, is_beside: bool = False) -> Any:
        """Calls a method and returns a reference to its answer; a reference as argument is opened there.

        An actor answers calls one after the other, in their order; those that are `is_beside` in a thread of theirs.
        """
        called = getattr(actor, method)
        return (called.options(concurrency_group=BESIDE) if is_beside else called).remote(*arguments)

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
            ActorFailedError: if the call ended by an error.
            UserError: the same, of an error that a person can act on.
        """
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except errors.RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise error.cause from None
            raise ActorFailedError(error.traceback_str.strip()) from error
        except errors.RayError as error:  # also of a network that failed
            raise ActorLostError(next(iter(str(error).strip().splitlines()), type(error).__name__)) from error

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
