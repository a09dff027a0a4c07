"""Cost of collectors on the nodes of a Ray cluster, compared with plain processes, on one machine.

    python -m benchmarks.cluster [--algorithm ppo] [--blocks N] [--rounds N] [--json]

Two collectors drive without a learner. This process copies each block as a learner would, and publishes new weights
after every update's worth of blocks. Both variants stay running and take turns of several blocks while the other
idles. On the cluster, which this process starts, each of two nodes runs one collector. The rate is environment steps
per CPU second of the collectors and this process, from the first permission of a turn to its last block. The CPU time
of Ray's daemons, as a share of that, has its own column.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from benchmarks.harness import show
from benchmarks.ray_nodes import pretended_cluster
from benchmarks.runtime import run_spec
from rulka.agents.params import Algorithm
from rulka.buffers.experience import new_block
from rulka.machine.device import weights_on_host
from rulka.machine.precision import raise_malloc_thresholds
from rulka.params import Params, read_params
from rulka.runtime.cluster import RayCluster
from rulka.runtime.collectors import CollectLimits, CollectorProcesses
from rulka.runtime.ray_collectors import RayCollectors
from rulka.runtime.specs import RunSpec
from rulka.tracks.generate import generate_track

NUM_NODES = 2
STORE_MB = 400
PARTS = ("learner", "collectors", "daemons")
PLAIN = {"order": "free", "precision": "float32"}
LIMIT_S = 900.0
_TITLE = "ray::RemoteCollector"


def cpu_by_part(plain: Sequence[int], *, on_cluster: bool) -> dict[str, float]:
    """Returns the CPU seconds so far of this process, the collectors and Ray's daemons.

    Args:
        plain: process ids of the plain collectors.
        on_cluster: True to count Ray's collectors, and this process with Ray's threads in it; False to count the plain
            collectors, and this thread only.
    """
    me = psutil.Process()
    spent_s: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    spent_s["learner"] = time.process_time() if on_cluster else time.thread_time()
    for process in me.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times, title = process.cpu_times(), " ".join(process.cmdline())
            part = "daemons"
            if title.startswith(_TITLE) or process.pid in plain:
                part = "collectors"
            elif "multiprocessing" in title:  # multiprocessing's idle resource tracker
                continue
            if part == "daemons" or (process.pid in plain) != on_cluster:
                spent_s[part] += times.user + times.system
    return spent_s


class Setup:
    """Collectors of either kind; they drive for a given number of blocks."""

    def __init__(self, spec: RunSpec, collectors: CollectorProcesses | RayCollectors, per_version: int) -> None:
        self._spec, self._collectors, self._per_version = spec, collectors, per_version
        self._tensors = weights_on_host(spec.make_learner().network)
        self._ring, self._version, self._count = new_block(spec.block), 0, 0
        collectors.publish(0, self._tensors)

    def drive(self, num_blocks: int) -> int:
        """Collects and copies `num_blocks` blocks; returns their environment steps."""
        goal, give_up_s = self._count + num_blocks, time.monotonic() + LIMIT_S
        while self._count < goal:
            assert time.monotonic() < give_up_s
            for delivery in self._collectors.collect(CollectLimits(goal * self._spec.block.num_env_steps, 1.0)):
                for name in self._spec.block.layout():
                    np.copyto(getattr(self._ring, name), getattr(delivery.block, name))
                self._collectors.release(delivery)
                self._count += 1
                if self._count % self._per_version == 0:
                    self._version += 1
                    self._collectors.publish(self._version, self._tensors)
        return num_blocks * self._spec.block.num_env_steps


def turn(setup: Setup, plain: Sequence[int], num_blocks: int, *, on_cluster: bool) -> dict[str, float]:
    """Runs one turn of one variant, and returns its rates and CPU shares."""
    before, start_s = cpu_by_part(plain, on_cluster=on_cluster), time.monotonic()
    env_steps = setup.drive(num_blocks)
    wall_s = time.monotonic() - start_s
    spent_s = {part: after - before[part] for part, after in cpu_by_part(plain, on_cluster=on_cluster).items()}
    own_s = sum(spent_s.values()) - spent_s["daemons"]
    shares = {f"{part}_share": seconds / own_s for part, seconds in spent_s.items()}
    return {"env_steps_per_cpu_s": env_steps / own_s, "env_steps_per_s": env_steps / wall_s, **shares}


def measure(
    params: Params, track: Path, algorithm: Algorithm, num_rounds: int, num_blocks: int
) -> list[dict[str, Any]]:
    """Returns the rates and CPU shares of each round, for both variants."""
    with ExitStack() as stack:
        address = stack.enter_context(pretended_cluster(NUM_NODES, 1, STORE_MB)).address
        setups: dict[str, Setup] = {}
        plain: list[int] = []
        for cluster in ("none", "ray"):
            train = params.train.model_copy(update={"num_collectors": NUM_NODES, "cluster": cluster} | PLAIN)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            spec = run_spec(params.model_copy(update={"train": train}), track, algorithm, folder)
            tensors = weights_on_host(spec.make_learner().network)
            collectors: CollectorProcesses | RayCollectors
            if cluster == "ray":
                collectors = RayCollectors(spec, tensors, 0, 0, RayCluster(address))
            else:
                collectors = CollectorProcesses(spec, tensors, 0, 0)
            stack.callback(collectors.stop)
            collectors.start()
            plain = plain or (collectors.pids if isinstance(collectors, CollectorProcesses) else [])
            update_steps = params.model_dump()["ppo"]["steps_per_update"]
            setup = Setup(spec, collectors, max(1, update_steps // spec.block.num_env_steps))
            setup.drive(3 * NUM_NODES)  # warm-up: kernels are compiled, all collectors have started
            setups["cluster" if cluster == "ray" else "processes"] = setup
        rounds = []
        for number in range(num_rounds):
            order = list(setups) if number % 2 == 0 else list(reversed(setups))
            rounds.append({name: turn(setups[name], plain, num_blocks, on_cluster=name == "cluster") for name in order})
        return rounds


def main() -> None:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", default="ppo", choices=("ppo", "impala", "iqn"), help="whose actors drive")
    parser.add_argument("--blocks", type=int, default=8, help="of a turn")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each setup")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    raise_malloc_thresholds()
    logging.disable(logging.WARNING)
    os.environ["OMP_NUM_THREADS"] = "1"
    params = read_params()
    with tempfile.TemporaryDirectory() as folder:
        track = Path(folder) / "track.npz"
        generate_track(**params.track.model_dump()).save(track)
        rounds = measure(params, track, arguments.algorithm, arguments.rounds, arguments.blocks)
    result: dict[str, Any] = {
        setup: {name: statistics.median(each[setup][name] for each in rounds) for name in rounds[0][setup]}
        for setup in ("processes", "cluster")
    }
    rate = "env_steps_per_cpu_s"
    ratios = [each["cluster"][rate] / each["processes"][rate] for each in rounds]
    result["env steps per CPU s, cluster beside processes"] = statistics.median(ratios)
    show(result, arguments.json)


if __name__ == "__main__":
    main()
