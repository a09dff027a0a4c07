"""What waiting for each other costs: exact order against free order, and synchronous against decoupled runtimes.

    python -m benchmarks.order [--env-steps N] [--rounds N] [--uneven-ms MS] [--json]

**Order**, with two collector processes. Each round trains PPO and IQN from random weights on the track of params.yaml,
for the same number of environment steps in either order; which goes first alternates. Reports environment and gradient
steps per CPU second of all processes, and environment steps per second of wall time, all from the first experience on;
the share of time that collectors wait; the staleness of experience in weights versions; and the peak memory of all
processes. In free order IQN's collectors run ahead of learning, limited by `start_steps`, so a short run ends with
fewer gradient steps.

**Figure 2 of IMPALA** (Espeholt et al. 2018, arXiv:1802.01561), with `--uneven-ms`: four environments of 16 cars, each
of whose steps also takes a random time elsewhere, exponential with mean MS, as a game or a renderer does. All learn
from 1,024 decisions in one gradient step. *Synchronous steps*: one forward pass for all, which waits for the slowest
environment each time.
*Synchronous trajectories*: every environment has a collector, and all wait for the update (`presets/a2c.yaml`).
*Decoupled*: IMPALA in free order.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from benchmarks.harness import show
from benchmarks.runtime import run_spec
from rulka.agents.impala.params import NoCorrectionParams
from rulka.agents.params import Algorithm
from rulka.contracts.step_results import StepResult
from rulka.machine.precision import raise_malloc_thresholds
from rulka.params import Params, read_params
from rulka.runtime.collector import CarBatch
from rulka.runtime.connect import train_run
from rulka.runtime.metrics_log import METRICS_FILE, read_metrics
from rulka.runtime.specs import MakeCars
from rulka.tracks.generate import generate_track

ORDERS = ("exact", "free")
ALGORITHMS: tuple[Algorithm, ...] = ("ppo", "iqn")
LOOK_S = 0.5
NUM_UNEVEN, UNEVEN_CARS, UNEVEN_STEPS = 4, 16, 16
"""Environments of figure 2, cars of each, and decisions of a trajectory."""
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


class UnevenCars:
    """Cars whose every step waits for the slowest of some environments."""

    def __init__(self, cars: CarBatch, num_environments: int, mean_s: float, seed: int) -> None:
        self._cars, self._shape, self._mean_s = cars, num_environments, mean_s
        self._rng = np.random.default_rng(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cars, name)

    def step_into(self, *arrays: NDArray) -> StepResult:
        """Waits, and steps all cars."""
        time.sleep(self._rng.exponential(self._mean_s, self._shape).max())
        return self._cars.step_into(*arrays)


def make_uneven(
    make_cars: MakeCars, num_environments: int, mean_s: float, seed: int, num_cars: int, *, at_line: bool
) -> CarBatch:
    """Builds `UnevenCars`, in a collector's process."""
    return cast(CarBatch, UnevenCars(make_cars(num_cars, at_line=at_line), num_environments, mean_s, seed))


def uneven(cars_of: Callable[[int], MakeCars], num_environments: int, mean_s: float, collector: int) -> MakeCars:
    """Returns the factory of a collector's uneven cars."""
    return partial(make_uneven, cars_of(collector), num_environments, mean_s, collector)


def turn(
    params: Params, track: Path, algorithm: Algorithm, num_steps: int, uneven_ms: float = 0.0, **own: object
) -> dict[str, float]:
    """Trains once and returns its metrics; `own` are keys of section `train`."""
    limits = {"max_env_steps": num_steps, "max_minutes": None, "num_checks": 1, "check_races": 1, "checkpoint_s": 60.0}
    train = params.train.model_copy(update=limits | {"num_collectors": 2, "final_check_races": 1} | own)
    memory = Memory()
    with tempfile.TemporaryDirectory() as folder:
        run = run_spec(params.model_copy(update={"train": train}), track, algorithm, Path(folder))
        if uneven_ms:
            num_each = NUM_UNEVEN // train.num_collectors
            run = replace(run, cars_of=partial(uneven, run.cars_of, num_each, uneven_ms / 1000.0))
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


def figure_2(params: Params, track: Path, num_steps: int, mean_ms: float) -> dict[str, dict[str, float]]:
    """Returns the metrics of IMPALA's figure 2, see above."""
    size = NUM_UNEVEN * UNEVEN_CARS * UNEVEN_STEPS
    learning = {"steps_per_update": size, "batch_size": size, "value_warmup_steps": 0}
    a2c = {"correction": NoCorrectionParams(), "max_versions_behind": 0}
    apart = {"num_collectors": NUM_UNEVEN, "cars_per_collector": UNEVEN_CARS}
    ways = {
        "synchronous steps": (a2c, {"num_collectors": 1, "cars_per_collector": NUM_UNEVEN * UNEVEN_CARS}),
        "synchronous trajectories": (a2c, apart),
        "decoupled": ({}, apart | {"order": "free"}),
    }
    found = {}
    for name, (own, train) in ways.items():
        settings = params.algorithms["impala"].model_copy(update=learning | own)
        changed = params.model_copy(update={"impala": settings})
        waits = {"block_steps": UNEVEN_STEPS, "blocks_ahead": 1 if own else 2}
        found[name] = turn(changed, track, "impala", num_steps, mean_ms, **waits, **train)
    return found


def _mean(lines: Any, name: str) -> float:
    return statistics.fmean(line[name] for line in lines if line.get(name) is not None)


def main() -> None:
    """Measures, and prints a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-steps", type=int, default=65_536)
    parser.add_argument("--rounds", type=int, default=3, help="of the comparison of orders; 0 leaves it out")
    parser.add_argument("--uneven-ms", type=float, default=0.0, help="of a step in figure 2; 0 leaves it out")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    raise_malloc_thresholds()
    params, result = read_params(), {}
    with tempfile.TemporaryDirectory() as folder:
        track = Path(folder) / "track.npz"
        generate_track(**params.track.model_dump()).save(track)
        for algorithm in ALGORITHMS if arguments.rounds else ():
            rounds = []
            for number in range(arguments.rounds):
                orders = ORDERS if number % 2 == 0 else ORDERS[::-1]
                rounds.append(
                    {order: turn(params, track, algorithm, arguments.env_steps, order=order) for order in orders}
                )
            for order in ORDERS:
                names = rounds[0][order]
                result[f"{algorithm}, {order}"] = {
                    name: statistics.median(each[order][name] for each in rounds) for name in names
                }
            result[f"{algorithm}, exact beside free"] = {
                name: statistics.median(each["exact"][name] / each["free"][name] for each in rounds)
                for name in COMPARED
            }
        if arguments.uneven_ms:
            result |= figure_2(params, track, arguments.env_steps, arguments.uneven_ms)
    show(result, arguments.json)


if __name__ == "__main__":
    main()
