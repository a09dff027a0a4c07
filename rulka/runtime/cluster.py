"""Ray clusters: the address of the head, and Ray actors on the nodes. No other module uses Ray.

The address is a fact of the machine, from the environment or the file `.env`, never a parameter:

    RULKA_CLUSTER   host:port of its head, as 127.0.0.1:6379

The environment takes precedence over the file. This machine has to be one of the cluster's nodes: blocks of experience
are read in place, from a node's memory. Actors are called directly, and never restarted by Ray: the code that starts
one supervises it, and knows what its end means.
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

from rulka.machine.errors import UserError
from rulka.machine.ports import ANSWER_TIMEOUT_S, HIGHEST_PORT, LOOPBACK, LOWEST_PORT

CLUSTER_VARIABLE = "RULKA_CLUSTER"
_START = "docs/cluster.md has the command that starts one on this machine."
_HINT = f"{CLUSTER_VARIABLE}=127.0.0.1:6379, in the environment or in .env; {_START}"
JOIN_LIMIT_S = 600.0
"""Timeout of joining a cluster; Ray itself would ask forever.

An idle machine answers in seconds, but each of Ray's processes first loads a few seconds' worth of Python; with a dozen
others on two cores, that alone takes minutes.
"""
JOIN_NOTICE_S = 20.0
"""After this time a warning says that the cluster does not answer yet."""
_LOGGER = logging.getLogger(__name__)
KEY_SHOWN = 8
BESIDE = "beside"
"""Concurrency group of the calls that an actor answers while it runs others."""


def check_package() -> None:
    """Checks that Ray is installed, without importing it.

    Raises:
        UserError: if it is not; the hint says how to install it.
    """
    if find_spec("ray") is None:
        raise UserError("a cluster needs Ray, which is not installed", hint="pip install 'rulka[ray]'")


def chosen_address() -> str | None:
    """Returns the address of the cluster's head, `host:port`; None if it is not set.

    Raises:
        UserError: if the address is invalid.
    """
    address = os.environ.get(CLUSTER_VARIABLE) or dotenv_values(".env").get(CLUSTER_VARIABLE)
    if address:
        split_address(address)
    return address or None


def split_address(address: str) -> tuple[str, int]:
    """Returns host and port of an address.

    Raises:
        UserError: if it is invalid.
    """
    host, _, port = address.rpartition(":")
    if "/" in address:
        message = f"{address!r} is no address of a cluster's head: blocks are read in the memory of a node"
        raise UserError(message, hint=f"Train on a node of the cluster, with {_HINT}")
    if not host or not port.isdecimal() or not LOWEST_PORT <= int(port) <= HIGHEST_PORT:
        raise UserError(f"{address!r} is no address of a cluster's head, which is host:port", hint=f"Set {_HINT}")
    return host, int(port)


def find_cluster() -> str:
    """Returns the address of a reachable cluster, as far as can be checked without Ray.

    Raises:
        UserError: if Ray is not installed, no address is set, or nothing listens there.
    """
    check_package()
    address = chosen_address()
    if address is None:
        raise UserError(f"nothing says where the cluster is: {CLUSTER_VARIABLE} is not set", hint=f"Set {_HINT}")
    try:
        socket.create_connection(split_address(address), timeout=ANSWER_TIMEOUT_S).close()
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"there is no cluster at {address}, which {CLUSTER_VARIABLE} names: {reason}"
        raise UserError(message, hint=_START) from error
    return address


class Node(NamedTuple):
    """A machine of the cluster.

    Attributes:
        key: the cluster's name for it; a node that comes back has another.
        name: for messages.
        num_cpus: that it offers.
        store_bytes: size of its object store.
        is_own: this process runs on it.
    """

    key: str
    name: str
    num_cpus: int
    store_bytes: int
    is_own: bool


class ActorLostError(Exception):
    """A call gets no answer, because its actor is gone or could not be started."""


class ActorFailedError(Exception):
    """A call raised an error; the message is its traceback."""


def load_ray(address: str) -> ModuleType:
    """Imports Ray, which takes a second or two, with its usage statistics off.

    Args:
        address: of the cluster to join.

    Raises:
        UserError: if Ray is not installed.
    """
    check_package()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if split_address(address)[0] in LOOPBACK:
        # Ray would otherwise replace it with the address of a network card, where nothing listens.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    import ray

    return ray


class RayCluster:
    """A cluster of which this machine is a node. References are Ray's, to the result of a call."""

    def __init__(self, address: str) -> None:
        """Joins a cluster, of which this machine is a node.

        Raises:
            UserError: if joining fails.
        """
        self._ray = ray = load_ray(address)
        self._actors: list[Any] = []
        self._join(address)
        self._own = ray.get_runtime_context().get_node_id()

    def _join(self, address: str) -> None:
        logging.getLogger("ray").setLevel(logging.ERROR)
        # In a separate thread, where Ray leaves this process's signal handlers alone and can be abandoned.
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
        raise UserError(message, hint=hint)

    def _init(self, address: str, failures: list[BaseException]) -> None:
        try:
            self._ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
        except BaseException as error:  # whatever it is: the waiting thread reports it
            failures.append(error)

    def nodes(self) -> Sequence[Node]:
        """Returns the live nodes in a fixed order, this one first."""
        found = []
        for each in self._ray.nodes():
            if each["Alive"]:
                key, resources = each["NodeID"], each["Resources"]
                name = f"{each['NodeManagerAddress']} ({key[:KEY_SHOWN]})"
                cpus, store_bytes = resources.get("CPU", 0.0), resources.get("object_store_memory", 0.0)
                found.append(Node(key, name, int(cpus), int(store_bytes), key == self._own))
        return sorted(found, key=lambda node: (not node.is_own, node.key))

    def num_free_cpus(self) -> int:
        """Returns the number of unused CPUs of all nodes."""
        return int(self._ray.available_resources().get("CPU", 0.0))

    def start(self, kind: type) -> Any:
        """Starts an actor of a class, which takes one CPU; returns at once.

        Ray spreads actors over the nodes, and waits until one has room.
        """
        # The caller supervises it, so Ray restarts none.
        options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", "max_restarts": 0, "max_task_retries": 0}
        actor = self._ray.remote(**options, concurrency_groups={BESIDE: 1})(kind).remote()
        self._actors.append(actor)
        return actor

    def call(self, actor: Any, method: str, *arguments: Any, is_beside: bool = False) -> Any:
        """Calls a method and returns a reference to its result; Ray resolves references among the arguments.

        An actor runs calls one at a time, in order; calls with `is_beside` run in a thread of their own.
        """
        called = getattr(actor, method)
        return (called.options(concurrency_group=BESIDE) if is_beside else called).remote(*arguments)

    def put(self, content: Any) -> Any:
        """Puts arrays into this node's object store, once for all calls, and returns a reference to them."""
        return self._ray.put(content)

    def wait(self, references: Sequence[Any], timeout_s: float) -> list[Any]:
        """Waits for a result until the timeout; returns the references of all results that are here."""
        if not references:
            time.sleep(timeout_s)
            return []
        waiting = list(references)
        if not self._ray.wait(waiting, timeout=timeout_s)[0]:
            return []
        return self._ray.wait(waiting, num_returns=len(waiting), timeout=0)[0]

    def get(self, reference: Any) -> Any:
        """Returns a result that is here; its arrays are in the object store and read-only.

        Raises:
            ActorLostError: if there will be none.
            ActorFailedError: if the call raised an error.
            UserError: if that was an error that the user can act on.
        """
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except errors.RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise error.cause from None
            raise ActorFailedError(error.traceback_str.strip()) from error
        except errors.RayError as error:  # also after a network failure
            raise ActorLostError(next(iter(str(error).strip().splitlines()), type(error).__name__)) from error

    def end(self, actor: Any) -> None:
        """Kills an actor, whatever it does; idempotent."""
        if actor in self._actors:
            self._actors.remove(actor)
            self._ray.kill(actor, no_restart=True)

    def close(self) -> None:
        """Ends all actors and leaves the cluster; idempotent."""
        for actor in list(self._actors):
            self.end(actor)
        self._ray.shutdown()
