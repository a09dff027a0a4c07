"""Cost and gain of a second learner: `python -m benchmarks.learners [--env-steps N] [--rounds R] [--json]`.

Runs the same training with one learner and with two synchronised ones (`train.learners`), in turn, with collectors in
the learner's process or in two others. Sizes are those of params.yaml, weights are random, nothing is saved. Reports
environment steps and learned decisions per CPU second of all processes (robust to other load), and environment steps
per second of wall time (not robust). Startup is excluded; values are medians over the rounds, after the first update.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

import torch

from benchmarks.harness import show
from benchmarks.runtime import run_spec
from rulka.agents.params import Algorithm
from rulka.machine.precision import raise_malloc_thresholds
from rulka.params import Params, read_params
from rulka.runtime.connect import train_run
from rulka.runtime.metrics_log import METRICS_FILE, read_metrics
from rulka.tracks.generate import generate_track

PLANS = ((1, 0), (2, 0), (1, 2), (2, 2))
"""Number of learners, and total number of collector processes."""


def rates(
    params: Params, track: Path, algorithm: Algorithm, num_learners: int, num_collectors: int
) -> dict[str, float]:
    """Trains once and returns its rates."""
    changes = {"learners": num_learners, "num_collectors": num_collectors, "algorithm": algorithm}
    params = params.model_copy(update={"train": params.train.model_copy(update=changes)})
    with tempfile.TemporaryDirectory() as folder:
        with redirect_stdout(sys.stderr):  # keeps progress out of the result
            train_run(run_spec(params, track, algorithm, Path(folder)))
        lines = [line for line in read_metrics(Path(folder) / METRICS_FILE) if line["version"]]
    first, last = lines[0], lines[-2]  # the last line includes the final checks
    done = {name: last[name] - first[name] for name in ("env_steps", "gradient_steps", "minutes", "cpu_minutes")}
    num_samples = done["gradient_steps"] * getattr(params, algorithm).batch_size
    return {
        "env_steps_per_cpu_s": done["env_steps"] / (60.0 * done["cpu_minutes"]),
        "samples_per_cpu_s": num_samples / (60.0 * done["cpu_minutes"]),
        "env_steps_per_s": done["env_steps"] / (60.0 * done["minutes"]),
    }


def main() -> None:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", default="ppo", choices=("ppo", "impala", "iqn"), help="what learns")
    parser.add_argument("--env-steps", type=int, default=40_960, help="of each training")
    parser.add_argument("--rounds", type=int, default=3, help="trainings of each kind")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    raise_malloc_thresholds()
    logging.disable(logging.WARNING)
    params, algorithm = read_params(), arguments.algorithm
    few = {"num_checks": 1, "check_races": 1, "final_check_races": 1, "checkpoint_s": 1e9, "experience": "rebuilt"}
    train = params.train.model_copy(
        update={"max_env_steps": arguments.env_steps, "max_minutes": None, "precision": "float32", **few}
    )
    section = getattr(params, algorithm)
    warm = {name: 0 for name in ("value_warmup_steps", "warmup_steps") if hasattr(section, name)}
    params = params.model_copy(update={"train": train, algorithm: section.model_copy(update=warm)})
    measured: dict[tuple[int, int], list[dict[str, float]]] = {plan: [] for plan in PLANS}
    with tempfile.TemporaryDirectory() as folder:
        track = Path(folder) / "track.npz"
        generate_track(**params.track.model_dump()).save(track)
        for _ in range(arguments.rounds):
            for plan in PLANS:
                measured[plan].append(rates(params, track, algorithm, *plan))
    medians = {
        f"{algorithm}, learners {learners}, collectors {collectors}": {
            name: statistics.median(each[name] for each in found) for name in found[0]
        }
        for (learners, collectors), found in measured.items()
    }
    show(medians, arguments.json)


if __name__ == "__main__":
    main()
