"""A Ray cluster that pretends to have several nodes, on loopback: for benchmarks and tests."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from rulka.cluster import load_ray

# See `rulka.cluster.load_ray`; here already, as benchmarks import torchrl, and with it Ray, before they ask for a
# cluster.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
HOST = "127.0.0.1"
BARE = {"node_ip_address": HOST, "include_log_monitor": False}
"""A node without what shows people its logs, which takes longer to import than all the rest of it."""
NUM_TRIES = 20


@contextmanager
def pretended_cluster(nodes: int, cpus: int, object_store_mb: int) -> Iterator[Any]:
    """Runs a cluster of several nodes on this machine, and yields Ray's object of it, with its address.

    Args:
        nodes: how many.
        cpus: that each offers.
        object_store_mb: memory of each for blocks and weights.
    """
    load_ray(f"{HOST}:1")
    from ray.cluster_utils import Cluster

    logging.getLogger("ray").setLevel(logging.CRITICAL)
    cluster = Cluster()
    # Ray also notes the address in its own folder for all programs, and fails where nobody has made that yet.
    Path(os.environ.get("RAY_TMPDIR", tempfile.gettempdir()), "ray").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rulka-ray-", ignore_cleanup_errors=True) as folder:
        try:
            head = {"include_dashboard": False, "no_monitor": True, "temp_dir": folder}
            add_node(cluster, cpus, object_store_mb, **head)
            for _ in range(1, nodes):
                add_node(cluster, cpus, object_store_mb)
            yield cluster
        finally:
            cluster.shutdown()


def add_node(cluster: Any, cpus: int, object_store_mb: int, **settings: Any) -> Any:
    """Adds a node; where it does not start in time, ends what it leaves and tries again.

    Ray gives a node 30 s, which on a busy machine is enough only now and then, and then forgets its processes: they
    would slow down all that follow.
    """
    node = BARE | {"num_cpus": cpus, "object_store_memory": object_store_mb << 20} | settings
    for number in range(NUM_TRIES):
        before = set(psutil.Process().children(recursive=True))
        try:
            return cluster.add_node(**node)
        except Exception:  # Ray has no narrower one for it
            for process in set(psutil.Process().children(recursive=True)) - before:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            if number + 1 == NUM_TRIES:
                raise
    return None
