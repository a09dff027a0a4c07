"""What collectors on the nodes of a Ray cluster cost beside those of plain processes, on one machine.

    python -m benchmarks.cluster [--algorithm ppo] [--seconds S] [--rounds N] [--json]

Two collectors drive without a learner, with a new version of the weights after every update's worth of blocks; each
block is copied as a learner would. Both ways take turns. On the cluster, which this process starts, each of two nodes
has one of them. Counted are environment steps per CPU second of all processes of Rulka's, the hosts (processes of Ray's
that run its code) and this one among them; what Ray's own daemons take, as a share of that, is a column of its own.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from benchmarks.runtime import run_spec
from rulka.agents.precision import raise_malloc_thresholds
from rulka.buffers.experience import new_block
from rulka.cluster.local import pretended_cluster
from rulka.cluster.ray_post import RayPost
from rulka.device import weights_on_host
from rulka.params import Algorithm, Params, read_params
from rulka.runtime.cluster_collectors import ClusterCollectors
from rulka.runtime.collectors import CollectorProcesses
from rulka.runtime.specs import RunSpec
from rulka.tracks.generate import generate_track

NUM_NODES = 2
STORE_MB = 400
NEVER = 10**9
PLAIN = {"precision": "float32"}
PARTS = ("learner", "hosts", "collectors", "daemons")
_HOST_TITLE = "ray::Mailbox"


def cpu_by_part() -> dict[str, float]:
    """Returns the CPU seconds so far of this process, of hosts, of collectors and of everything else below this one."""
    me, spent_s, hosts = psutil.Process(), dict.fromkeys(PARTS, 0.0), set[int]()
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times, title = process.cpu_times(), " ".join(process.cmdline())
            part = "daemons"
            if process.pid == me.pid:
                part = "learner"
            elif title.startswith(_HOST_TITLE):
                part = "hosts"
                hosts.add(process.pid)
            elif process.ppid() in hosts or "multiprocessing" in title:  # what tracks their memory among them
                part = "collectors"
            spent_s[part] += times.user + times.system
    return spent_s


def drive(
    spec: RunSpec, collectors: CollectorProcesses | ClusterCollectors, per_version: int, seconds: float
) -> dict[str, float]:
    """Takes blocks for a while, once every collector has filled some, and returns what that took."""
    tensors = weights_on_host(spec.make_learner().network)
    ring, version, heard = new_block(spec.block), 0, [0] * spec.train.num_collectors

    def take(count: int) -> int:
        nonlocal version
        for delivery in collectors.collect(NEVER, 1.0):
            for name in spec.block.layout():
                np.copyto(getattr(ring, name), getattr(delivery.block, name))
            heard[delivery.collector] += 1
            collectors.release(delivery)
            count += 1
            if sum(heard) % per_version == 0:
                version += 1
                collectors.publish(version, tensors)
        return count

    collectors.publish(0, tensors)
    while min(heard) < 2:
        take(0)
    before, start_s, count = cpu_by_part(), time.monotonic(), 0
    while time.monotonic() - start_s < seconds:
        count = take(count)
    wall_s = time.monotonic() - start_s
    spent_s = {part: after - before[part] for part, after in cpu_by_part().items()}
    own_s = sum(spent_s.values()) - spent_s["daemons"]
    env_steps = count * spec.block.num_env_steps
    shares = {f"{part}_share": seconds / own_s for part, seconds in spent_s.items()}
    return {"env_steps_per_cpu_s": env_steps / own_s, "env_steps_per_s": env_steps / wall_s, **shares}


def measure(params: Params, track: Path, algorithm: Algorithm, address: str, seconds: float) -> dict[str, float]:
    """Lets two collectors drive, on the cluster at an address or, where that is empty, as plain processes."""
    train = params.train.model_copy(
        update={"num_collectors": NUM_NODES, "cluster": "ray" if address else "none"} | PLAIN
    )
    params = params.model_copy(update={"train": train})
    with tempfile.TemporaryDirectory() as folder:
        spec = run_spec(params, track, algorithm, Path(folder))
        per_version = max(1, params.ppo.steps_per_update // spec.block.num_env_steps)
        tensors = weights_on_host(spec.make_learner().network)
        collectors: CollectorProcesses | ClusterCollectors
        if address:
            collectors = ClusterCollectors(spec, tensors, 0, 0, RayPost(address))
        else:
            collectors = CollectorProcesses(spec, tensors, 0, 0)
        try:
            collectors.start()
            return drive(spec, collectors, per_version, seconds)
        finally:
            collectors.stop()


def main() -> None:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", default="ppo", choices=("ppo", "impala", "iqn"), help="whose actors drive")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each kind, in turn")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    raise_malloc_thresholds()
    logging.disable(logging.WARNING)
    os.environ["OMP_NUM_THREADS"] = "1"
    params = read_params()
    rounds: list[dict[str, dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as folder, pretended_cluster(NUM_NODES, 1, STORE_MB) as cluster:
        track = Path(folder) / "track.npz"
        generate_track(**params.track.model_dump()).save(track)
        for number in range(arguments.rounds):
            ways = {"processes": "", "cluster": cluster.address}
            order = list(ways) if number % 2 == 0 else list(reversed(ways))
            rounds.append(
                {way: measure(params, track, arguments.algorithm, ways[way], arguments.seconds) for way in order}
            )
    ratios = [each["cluster"]["env_steps_per_cpu_s"] / each["processes"]["env_steps_per_cpu_s"] for each in rounds]
    result = {"algorithm": arguments.algorithm, "rounds": rounds, "ratio": statistics.median(ratios), "ratios": ratios}
    print(json.dumps(result) if arguments.json else _table(result))


def _table(result: dict[str, Any]) -> str:
    names = ("env_steps_per_cpu_s", "env_steps_per_s", *(f"{part}_share" for part in PARTS))
    lines = [
        f"{result['algorithm']:12s} {'env steps/CPU s':>16s} {'env steps/s':>12s}"
        + "".join(f"{part:>12s}" for part in PARTS)
    ]
    for way in ("processes", "cluster"):
        steps, rate, *shares = (statistics.median(each[way][name] for each in result["rounds"]) for name in names)
        lines.append(f"{way:12s} {steps:16,.0f} {rate:12,.0f}{''.join(f'{share:12.1%}' for share in shares)}")
    each = ", ".join(f"{ratio:.3f}" for ratio in result["ratios"])
    lines.append(f"cluster beside processes, env steps per CPU second: {result['ratio']:.3f} (rounds: {each})")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
