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
from rulka.runtime.cluster import CLUSTER_VARIABLE
from rulka.runtime.connect import train_run


def kill_node(folder: Path) -> None:
    while not saved_env_steps(folder):  # the first checkpoint may be saved before there is a block
        time.sleep(0.1)
    for process in psutil.Process().children():
        if process.name() == "raylet":
            process.kill()


if __name__ == "__main__":
    runs = Path(sys.argv[1])
    with pretended_cluster(nodes=1, cpus=1, object_store_mb=100) as cluster:
        os.environ[CLUSTER_VARIABLE] = cluster.address
        threading.Thread(target=kill_node, args=(runs,), daemon=True).start()
        train = {"cluster": "ray", "num_collectors": 1, "max_env_steps": 10**9, "checkpoint_s": 1.0}
        train_run(fake_run(runs, **train, cars={"step_s": 0.002}))
