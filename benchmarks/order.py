"""Cost of reproducible training: exact order against free order, with two collector processes.

    python -m benchmarks.order [--env-steps N] [--rounds N] [--json]

Each round trains PPO and IQN from random weights on the track of params.yaml, for the same number of environment steps
in either order; which goes first alternates. Reports environment and gradient steps per CPU second of all processes,
and environment steps per second of wall time, all from the first experience on; the share of time that collectors
wait; the staleness of experience in weights versions; and the peak memory of all processes. In free order IQN's
collectors run ahead of learning, limited by `start_steps`, so a short run ends with fewer gradient steps.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import threading
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.harness import show
from benchmarks.runtime import run_spec
from rulka.agents.params import Algorithm
from rulka.machine.precision import raise_malloc_thresholds
from rulka.params import Params, read_params
from rulka.runtime.connect import train_run
from rulka.runtime.metrics_log import METRICS_FILE, read_metrics
from rulka.tracks.generate import generate_track

ORDERS = ("exact", "free")
ALGORITHMS: tuple[Algorithm, ...] = ("ppo", "iqn")
LOOK_S = 0.5
COMPARED = ("env steps per CPU s", "gradient steps per CPU s", "env steps per s", "memory, MB")
"""Metrics compared as a ratio; the others may be zero."""


class Memory(threading.Thread):
    """Samples the memory (PSS) of this process and its descendants; shared pages count once.

    Attributes:
        most_bytes: peak so far.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most_bytes, self.is_over = 0, threading.Event()

    def run(self) -> None:
        """Samples until `is_over` is set."""
        own = psutil.Process()
        while not self.is_over.wait(LOOK_S):
            total = 0
            for process in (own, *own.children(recursive=True)):
                with suppress(psutil.Error):
                    total += process.memory_full_info().pss
            self.most_bytes = max(self.most_bytes, total)


def turn(params: Params, track: Path, algorithm: Algorithm, order: str, num_steps: int) -> dict[str, float]:
    """Trains once and returns its metrics."""
    limits = {"max_env_steps": num_steps, "max_minutes": None, "num_checks": 1, "check_races": 1, "checkpoint_s": 60.0}
    own = {"order": order, "num_collectors": 2, "final_check_races": 1}
    train = params.train.model_copy(update=limits | own)
    memory = Memory()
    with tempfile.TemporaryDirectory() as folder:
        run = run_spec(params.model_copy(update={"train": train}), track, algorithm, Path(folder))
        memory.start()
        with redirect_stdout(sys.stderr):  # keeps progress out of the result
            state = train_run(run).state
        memory.is_over.set()
        memory.join()
        lines = read_metrics(Path(folder) / METRICS_FILE)
    return {
        "env steps per CPU s": state.env_steps / state.cpu_seconds,
        "gradient steps per CPU s": state.gradient_steps / state.cpu_seconds,
        "env steps per s": state.env_steps / state.seconds,
        "collectors waiting": _mean(lines, "collectors_waiting_share"),
        "versions behind": _mean(lines, "versions_behind"),
        "memory, MB": memory.most_bytes / 1e6,
    }


def _mean(lines: Any, name: str) -> float:
    return statistics.fmean(line[name] for line in lines if line.get(name) is not None)


def main() -> None:
    """Measures, and prints a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-steps", type=int, default=65_536)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    raise_malloc_thresholds()
    params, result = read_params(), {}
    with tempfile.TemporaryDirectory() as folder:
        track = Path(folder) / "track.npz"
        generate_track(**params.track.model_dump()).save(track)
        for algorithm in ALGORITHMS:
            rounds = []
            for number in range(arguments.rounds):
                orders = ORDERS if number % 2 == 0 else ORDERS[::-1]
                rounds.append({order: turn(params, track, algorithm, order, arguments.env_steps) for order in orders})
            for order in ORDERS:
                names = rounds[0][order]
                result[f"{algorithm}, {order}"] = {
                    name: statistics.median(each[order][name] for each in rounds) for name in names
                }
            result[f"{algorithm}, exact beside free"] = {
                name: statistics.median(each["exact"][name] / each["free"][name] for each in rounds)
                for name in COMPARED
            }
    show(result, arguments.json)


if __name__ == "__main__":
    main()
