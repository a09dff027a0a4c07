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

HOST = "127.0.0.1"
BARE = {"node_ip_address": HOST, "include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
"""A node without what serves people and scales clusters: those processes take longer to import than all others."""


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
    own = BARE | {"num_cpus": cpus, "object_store_memory": object_store_mb << 20}
    with tempfile.TemporaryDirectory(prefix="rulka-ray-", ignore_cleanup_errors=True) as folder:
        try:
            cluster.add_node(**own, temp_dir=folder)
            for _ in range(1, nodes):
                cluster.add_node(**own)
            yield cluster
        finally:
            cluster.shutdown()
            _end_left(folder)


def _end_left(folder: str) -> None:
    """Ends what a node has left that did not start in time: Ray forgets it, and it would slow down all that follow."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if any(folder in word for word in process.cmdline()):
                process.kill()
                process.wait()
