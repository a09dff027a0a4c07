"""A stage made of fakes on a node of Ray, which is killed under it: `ray_main.py FOLDER`."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import psutil
from runtime_fakes import fake_run, saved_env_steps

from benchmarks.ray_nodes import pretended_cluster
from rulka.cluster import CLUSTER_VARIABLE
from rulka.runtime.connect import train_run

PATIENCE = {
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_gcs_server_port_wait_time_s": "300",
    "RAY_health_check_timeout_ms": "300000",
    "RAY_prestart_worker_first_driver": "false",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_worker_niceness": "0",
}
"""Environment of what starts Ray: how long its processes wait for one that is slow; one that is gone they miss soon."""


def kill_node(folder: Path) -> None:
    # The first one may be saved before there is a block.
    while not saved_env_steps(folder):
        time.sleep(0.1)
    for process in psutil.Process().children():
        if process.name() == "raylet":
            process.kill()


def main(folder: Path) -> None:
    with pretended_cluster(nodes=1, cpus=1, object_store_mb=100) as cluster:
        os.environ[CLUSTER_VARIABLE] = cluster.address
        threading.Thread(target=kill_node, args=(folder,), daemon=True).start()
        train_run(
            fake_run(
                folder, cluster="ray", num_collectors=1, max_env_steps=10**9, checkpoint_s=1.0, cars={"step_s": 0.002}
            )
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
