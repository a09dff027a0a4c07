"""A stage made of fakes on a node of Ray, which is killed under it: `ray_main.py FOLDER`."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import psutil
from runtime_fakes import fake_run

from rulka.cluster.local import pretended_cluster
from rulka.cluster.settings import CLUSTER_VARIABLE
from rulka.runtime.checkpoint import Checkpoints
from rulka.runtime.connect import train_run

FOLDER = Path(sys.argv[1])


def kill_node() -> None:
    # On a busy machine the first one may be saved before there is a block; its name says how many steps it has.
    while not any(int(file.stem.rpartition("-")[2]) for file in Checkpoints(FOLDER).files()):
        time.sleep(0.1)
    for process in psutil.Process().children():
        if Path(process.cmdline()[0]).name == "raylet":
            process.kill()


with pretended_cluster(nodes=1, cpus=1, object_store_mb=100) as cluster:
    os.environ[CLUSTER_VARIABLE] = cluster.address
    threading.Thread(target=kill_node, daemon=True).start()
    train_run(
        fake_run(
            FOLDER,
            cluster="ray",
            num_collectors=1,
            max_env_steps=10**9,
            max_minutes=30.0,
            checkpoint_s=1.0,
            cars={"step_s": 0.002},
        )
    )
