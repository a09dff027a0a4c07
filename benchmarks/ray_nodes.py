"""Simulated multi-node Ray cluster on loopback, for benchmarks and tests."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from rulka.runtime.cluster import load_ray

# Set before torchrl is imported, which imports Ray; see `rulka.runtime.cluster.load_ray`.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
HOST = "127.0.0.1"
BARE = {"node_ip_address": HOST, "include_log_monitor": False}
"""Settings of a node without log monitor, which takes longer to import than the rest of the node."""
NUM_TRIES = 20


@contextmanager
def pretended_cluster(nodes: int, cpus: int, object_store_mb: int) -> Iterator[Any]:
    """Runs a cluster of several nodes on this machine, and yields Ray's `Cluster`, which has its address.

    Args:
        nodes: number of nodes.
        cpus: CPUs of each node.
        object_store_mb: object store of each node, in MiB.
    """
    load_ray(f"{HOST}:1")
    from ray.cluster_utils import Cluster

    logging.getLogger("ray").setLevel(logging.CRITICAL)
    cluster = Cluster()
    # Ray also writes the address to its global folder, and fails if that does not exist.
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
    """Adds a node; if it does not start in time, kills its processes and retries.

    Ray gives a node 30 s, often too little on a busy machine, and then forgets its processes, which would slow down all
    further attempts.
    """
    node = BARE | {"num_cpus": cpus, "object_store_memory": object_store_mb << 20} | settings
    for number in range(NUM_TRIES):
        before = set(psutil.Process().children(recursive=True))
        try:
            return cluster.add_node(**node)
        except Exception:  # Ray raises nothing narrower
            for process in set(psutil.Process().children(recursive=True)) - before:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            if number + 1 == NUM_TRIES:
                raise
    return None
