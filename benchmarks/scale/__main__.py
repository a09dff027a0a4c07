"""What training would be like on more machines than are at hand: measured costs, simulated waiting.

    python -m benchmarks.scale [--algorithms ppo iqn] [--seconds S] [--rounds N] [--json]
    python -m benchmarks.scale --costs FILE [--json]

First the parts of a run are measured in serial mode, then runs with 1, 2 and 4 collectors are held against what the
simulation says of them, then it is asked about machines that are not at hand. An idle machine is needed: the runs share
its cores with whoever else computes. With costs that were measured before, as --json prints them, the last part alone
is done.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np

from benchmarks.runtime import run_for
from benchmarks.scale.costs import ALONE, Costs, measure, measure_alone
from benchmarks.scale.model import ETHERNET, NVLINK, Machines, OnPolicy, Replay, simulate
from rulka.agents.params import Algorithm
from rulka.params import Params, read_params
from rulka.tracks.generate import generate_track

REAL = (1, 2, 4)
"""Collectors of the runs that are held against the simulation."""
COLLECTORS = (8, 64, 1000)
CORES_PER_NODE = 16
AHEAD = (0, 1, 2, 4, 8, 16)
GPU = 20.0
"""An example of how many times as fast as one core a GPU computes updates."""
LEARNERS = (
    ("a core", 1, 1.0, ETHERNET),
    ("a GPU", 1, GPU, ETHERNET),
    ("8 GPUs in a machine", 8, GPU, NVLINK),
    ("8 machines, a GPU each", 8, GPU, ETHERNET),
)


def appetite_of(params: Params, algorithm: Algorithm) -> OnPolicy | Replay:
    """Returns when a learner learns, and what it allows collectors.

    Raises:
        ValueError: if the algorithm learns by another rule.
    """
    if algorithm in ("ppo", "impala"):
        settings = getattr(params, algorithm)
        return OnPolicy(settings.steps_per_update, settings.max_versions_behind)
    if algorithm == "iqn":
        per_update = params.iqn.gradient_steps_per_update * params.iqn.batch_size
        return Replay(params.iqn.start_steps, params.iqn.samples_per_insert, per_update)
    message = f"there is no rule for {algorithm}"
    raise ValueError(message)


def for_measuring(params: Params) -> Params:
    """Returns parameters with which learning is under way from the beginning."""
    iqn = params.iqn.model_copy(update={"warmup_steps": 0, "start_steps": 4096})
    ppo = params.ppo.model_copy(update={"value_warmup_steps": 0})
    return params.model_copy(update={"iqn": iqn, "ppo": ppo})


def real_run(params: Params, algorithm: Algorithm, num_collectors: int, seconds: float) -> dict[str, float]:
    """Returns decisions a second and the mean lag of a run on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        track = Path(folder) / "track.npz"
        generate_track(**params.track.model_dump()).save(track)
        first, *lines = run_for(params, track, algorithm, num_collectors, seconds)
    wall_s = 60.0 * (lines[-1]["minutes"] - first["minutes"])
    lags = [line["versions_behind"] for line in lines if line["versions_behind"] is not None]
    return {"env_steps_per_s": (lines[-1]["env_steps"] - first["env_steps"]) / wall_s, "lag": float(np.mean(lags))}


def held_against(
    params: Params, algorithm: Algorithm, costs: Costs, seconds: float, rounds: int
) -> list[dict[str, float]]:
    """Runs with 1, 2 and 4 collectors, in turn, and returns medians beside what the simulation says."""
    runs: dict[int, list[dict[str, float]]] = {count: [] for count in REAL}
    for _ in range(rounds):
        for count in REAL:
            runs[count].append(real_run(_with_collectors(params, count), algorithm, count, seconds))
    rows = []
    for count in REAL:
        found = simulate(costs, Machines(count, learner_cores=os.cpu_count() or 1), appetite_of(params, algorithm))
        rates = [run["env_steps_per_s"] for run in runs[count]]
        row = {"collectors": count, "measured": float(np.median(rates)), "least": min(rates), "most": max(rates)}
        row |= {"simulated": found.env_steps_per_s, "lag, measured": float(np.median([r["lag"] for r in runs[count]]))}
        rows.append(row | {"lag, simulated": float(np.mean(found.lag_learned or found.lag_taken))})
    return rows


def _with_collectors(params: Params, count: int) -> Params:
    return params.model_copy(update={"train": params.train.model_copy(update={"num_collectors": count})})


def elsewhere(params: Params, algorithm: Algorithm, costs: Costs) -> Iterator[dict[str, Any]]:
    """Yields what the simulation says of machines that are not at hand, for each number of collectors and learner.

    Learners on policy are asked twice: with updates as they are shipped, and with updates that learn from a block of
    each collector, in as many batches that are as much larger.
    """
    shipped = appetite_of(params, algorithm)
    for count in COLLECTORS:
        plans = [("as shipped", shipped, costs)]
        if isinstance(shipped, OnPolicy):
            steps = count * costs.block_env_steps
            times = steps / shipped.steps_per_update
            grown = replace(costs, update_s=times * costs.update_s)
            plans.append((f"{steps:,} decisions", replace(shipped, steps_per_update=steps), grown))
        for (name, num_learners, speed, wire), (update, appetite, cost) in product(LEARNERS, plans):
            each = count // num_learners
            machines = Machines(
                each, num_learners, CORES_PER_NODE, CORES_PER_NODE, learner_speed=speed, learners_wire=wire
            )
            found = simulate(cost, machines, appetite)
            yield {
                "collectors": count,
                "learner": name,
                "update": update,
                "env steps/s": found.env_steps_per_s,
                "updates/s": found.updates_per_s,
                "lag": float(np.mean(found.lag_learned)) if found.lag_learned else "-",
                "learner at work": found.busy,
                "summing": found.summing,
                "collectors wait": found.collectors_waiting,
                "network": max(found.link_in, found.link_out),
                "limit": found.limit,
            }


def ahead(params: Params, algorithm: Algorithm, costs: Costs) -> Iterator[dict[str, Any]]:
    """Yields what it brings learners on policy, and what it costs in lag, if collectors may be further ahead."""
    shipped = appetite_of(params, algorithm)
    machines = Machines(COLLECTORS[1], 1, CORES_PER_NODE, CORES_PER_NODE, learner_speed=GPU)
    for versions in AHEAD if isinstance(shipped, OnPolicy) else ():
        found = simulate(costs, machines, replace(shipped, versions_ahead=versions))
        lags = {"lag": float(np.mean(found.lag_learned)), "at most": max(found.lag_learned)}
        yield {"versions ahead": versions, "env steps/s": found.env_steps_per_s} | lags | {"limit": found.limit}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Returns rows as a table in Markdown."""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return "\n".join(lines + ["| " + " | ".join(_written(row[name]) for name in names) + " |" for row in rows])


def _written(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100.0 else f"{value:.3g}"


def main() -> None:
    """Prints tables, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", default=["ppo", "iqn"], choices=get_args(Algorithm))
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=3, help="of runs with 1, 2 and 4 collectors")
    parser.add_argument("--costs", type=Path, help="file of what --json printed: nothing is measured")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    arguments = parser.parse_args()
    params = for_measuring(read_params())
    found = json.loads(arguments.costs.read_text(encoding="utf-8")) if arguments.costs else {}
    for algorithm in found or arguments.algorithms:
        if algorithm not in found:
            costs = measure(params, algorithm, arguments.seconds)
            real = held_against(params, algorithm, costs, arguments.seconds, arguments.rounds)
            found[algorithm] = {"costs": asdict(costs), "real": real}
        costs = Costs(**found[algorithm]["costs"])
        found[algorithm] |= {
            "elsewhere": [*elsewhere(params, algorithm, costs)],
            "ahead": [*ahead(params, algorithm, costs)],
        }
        if not arguments.json:
            print(f"{algorithm}: {json.dumps(found[algorithm]['costs'])}")
            tables = [found[algorithm][name] for name in ("real", "elsewhere", "ahead")]
            print("\n" + "\n\n".join(table(rows) for rows in tables if rows) + "\n", flush=True)
    if arguments.json:
        print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1:] == [ALONE]:  # what `costs.measure` starts
        print(json.dumps(asdict(measure_alone(json.load(sys.stdin)))))
    else:
        main()
