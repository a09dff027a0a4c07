"""`rulka cluster up`, `status` and `down`: a Ray cluster of one machine, on loopback, for trying things and for tests.

It has no dashboard and tells nobody that it is used. The process of `up` owns all others: they end with it.
"""

from __future__ import annotations

import getpass
import logging
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from rulka.cluster.ray_cluster import RayCluster, load_ray
from rulka.cluster.settings import CLUSTER_VARIABLE, ClusterError, check_reachable
from rulka.ports import check_port, holder
from rulka.stage import interrupt_on_signals

HOST = "127.0.0.1"
LOOK_S = 0.5
DOWN_LIMIT_S = 60.0
LEAST_STORE_MB = 80
"""Ray takes no less."""


def up(port: int, nodes: int, cpus: int | None, object_store_mb: int, say: Callable[[str], None]) -> None:
    """Runs a cluster until Ctrl-C, SIGTERM or `down`.

    Args:
        port: where its head listens.
        nodes: that it pretends to have.
        cpus: that each of them offers; None parts those of the machine.
        object_store_mb: memory of each for blocks and weights.
        say: gets lines for people.

    Raises:
        ClusterError: if it cannot be, or is there already.
    """
    check_port(port)
    cpus = max(1, (os.cpu_count() or 1) // max(nodes, 1)) if cpus is None else cpus
    if nodes < 1 or cpus < 1 or object_store_mb < LEAST_STORE_MB:
        message = f"a cluster of {nodes} nodes with {cpus} CPUs and {object_store_mb} MB of object store cannot be"
        raise ClusterError(message, hint=f"Take at least 1, 1 and {LEAST_STORE_MB}.")
    address = f"{HOST}:{port}"
    with _held(port):
        if occupant := holder(HOST, port):
            message = f"port {port} is taken by {occupant}"
            raise ClusterError(message, hint="Choose another with --port.")
        interrupt_on_signals()
        with suppress(KeyboardInterrupt), pretended_cluster(nodes, cpus, object_store_mb, port):
            say(f"a cluster of {nodes} node{'s' if nodes > 1 else ''} with {cpus} CPUs each is up (Ctrl-C ends it)")
            say(f"{CLUSTER_VARIABLE}={address}")
            while True:
                time.sleep(LOOK_S)
    say("stopped")


@contextmanager
def pretended_cluster(nodes: int, cpus: int, object_store_mb: int, port: int | None = None) -> Iterator[Any]:
    """Runs a cluster of several nodes on this machine, on loopback, and yields Ray's object of it, with its address.

    Args:
        nodes: how many.
        cpus: that each offers.
        object_store_mb: memory of each for blocks and weights.
        port: where its head listens; None takes any free one.

    Raises:
        ClusterError: if it does not start.
    """
    load_ray(f"{HOST}:1")
    from ray.cluster_utils import Cluster

    logging.getLogger("ray").setLevel(logging.CRITICAL)
    cluster = Cluster()
    # Ray also notes the address in its own folder for all programs, and fails where nobody has made that yet.
    Path(os.environ.get("RAY_TMPDIR", tempfile.gettempdir()), "ray").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rulka-ray-", ignore_cleanup_errors=True) as folder:
        try:
            for number in range(nodes):
                _add_node(cluster, cpus, object_store_mb, (folder, port) if number == 0 else None)
            yield cluster
        finally:
            cluster.shutdown()


def _add_node(cluster: Any, cpus: int, object_store_mb: int, head: tuple[str, int | None] | None) -> None:
    own: dict[str, Any] = {"num_cpus": cpus, "object_store_memory": object_store_mb << 20, "node_ip_address": HOST}
    if head is not None:
        own |= {"include_dashboard": False, "temp_dir": head[0]}
        own |= {} if head[1] is None else {"gcs_server_port": head[1]}
    try:
        cluster.add_node(**own)
    except Exception as error:  # Ray has no other for it
        message = f"a node of Ray did not start: {' '.join(str(error).split())}"
        raise ClusterError(message, hint="It gives a node 30 s: end what else keeps this machine busy.") from error


def down(port: int, say: Callable[[str], None]) -> None:
    """Ends the `up` of a port that this user has started, and waits for its end.

    Raises:
        ClusterError: if it does not end.
    """
    pid = _owner(port)
    if pid is None:
        say(f"no `rulka cluster up` runs at port {port}")
        return
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
    give_up_s = time.monotonic() + DOWN_LIMIT_S
    while _owner(port) == pid:
        if time.monotonic() > give_up_s:
            message = f"process {pid} did not end within {DOWN_LIMIT_S:.0f} s"
            raise ClusterError(message, hint=f"`kill -9 {pid}` ends it, and all that it has started.")
        time.sleep(LOOK_S)
    say("stopped")


def status(address: str) -> dict[str, Any]:
    """Returns nodes and CPUs of the cluster at an address, as plain JSON.

    Raises:
        ClusterError: if a cluster is there that cannot be joined.
    """
    found: dict[str, Any] = {"address": address, "is_up": False, "nodes": [], "free_cpus": 0}
    try:
        check_reachable(address)
    except ClusterError:
        return found
    cluster = RayCluster(address)
    try:
        nodes = [
            {"name": node.name, "cpus": node.num_cpus, "object_store_mb": node.store_bytes >> 20, "is_own": node.is_own}
            for node in cluster.nodes()
        ]
        return found | {"is_up": True, "nodes": nodes, "free_cpus": cluster.num_free_cpus()}
    finally:
        cluster.close()


def status_text(found: dict[str, Any]) -> str:
    """Returns the same for people."""
    if not found["is_up"]:
        return f"there is no cluster at {found['address']}"
    total = sum(node["cpus"] for node in found["nodes"])
    count = len(found["nodes"])
    nodes = f"{count} node{'s' if count > 1 else ''}"
    lines = [f"{found['address']}: {nodes}, {found['free_cpus']} of {total} CPUs free"]
    for node in found["nodes"]:
        here = ", this machine" if node["is_own"] else ""
        lines.append(f"  {node['name']}: {node['cpus']} CPUs, object store {node['object_store_mb']} MB{here}")
    return "\n".join(lines)


def _file(port: int, ending: str) -> Path:
    folder = Path(tempfile.gettempdir()) / f"rulka-cluster-{getpass.getuser()}"
    folder.mkdir(exist_ok=True)
    return folder / f"{port}.{ending}"


@contextmanager
def _held(port: int) -> Iterator[None]:
    """Keeps the port's other `up` out; the system takes the lock of a process that dies."""
    lock = FileLock(_file(port, "lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        message = f"it is up: process {_owner(port)} runs a cluster at port {port}"
        raise ClusterError(message, hint="`rulka cluster down` ends it.") from error
    try:
        _file(port, "pid").write_text(str(os.getpid()), encoding="utf-8")
        yield
    finally:
        _file(port, "pid").unlink(missing_ok=True)
        lock.release()


def _owner(port: int) -> int | None:
    """Returns the process that runs `up` at a port, of this user; None where none does."""
    lock = FileLock(_file(port, "lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout:
        try:
            pid = int(_file(port, "pid").read_text(encoding="utf-8"))
        except (OSError, ValueError):  # it has only just begun, or is just ending
            return None
        return pid if psutil.pid_exists(pid) else None
    lock.release()
    return None
