"""A Ray cluster that pretends to have several nodes, on loopback: for benchmarks and tests."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rulka.cluster import load_ray

HOST = "127.0.0.1"


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
    own = {"num_cpus": cpus, "object_store_memory": object_store_mb << 20, "node_ip_address": HOST}
    with tempfile.TemporaryDirectory(prefix="rulka-ray-", ignore_cleanup_errors=True) as folder:
        try:
            cluster.add_node(**own, include_dashboard=False, temp_dir=folder)
            for _ in range(1, nodes):
                cluster.add_node(**own)
            yield cluster
        finally:
            cluster.shutdown()
