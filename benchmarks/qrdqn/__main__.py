"""Rulka's IQN beside sb3-contrib's QR-DQN: `python -m benchmarks.qrdqn --peers FOLDER [--task catch] [--seeds 3]`.

CPU seconds and environment steps until a score is reached, and steps per CPU second. The rule, the encoder, widths,
batch, updates per step, exploration, discount, learning rate and target updates are the same for both; see
`benchmarks.qrdqn.tasks`. Each side is a process with one thread; all of a seed run at the same time, so that they meet
the same other load. Rulka has IQN as specified, and with what experiments found to help: fractions at the hidden
units and returns of five rewards. CPU time counts from the making of the agent, imports left out.

The peers are not installed beside Rulka: `pip install --no-deps --target FOLDER stable-baselines3==2.9.2
sb3-contrib==2.9.2` makes the folder. Without it only Rulka is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.qrdqn.tasks import TASKS

PEER = "sb3-contrib"
SIDES = {
    "rulka": ("benchmarks.qrdqn.rulka_side", "found"),
    "rulka, as specified": ("benchmarks.qrdqn.rulka_side", "specified"),
    PEER: ("benchmarks.qrdqn.peer_side",),
}
"""Modules, and what they are told beside task, seed and limit."""
SHOWN = ("reached", "best", "steps", "cpu_s", "steps_per_cpu_s", "learning_steps_per_cpu_s")


def start(side: str, task: str, seed: int, max_cpu_s: float, peers: Path | None) -> subprocess.Popen[str]:
    """Starts one side on a seed."""
    paths = [str(Path(__file__).parents[2]), *([str(peers.resolve())] if side == PEER and peers else [])]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    module, *further = SIDES[side]
    command = [sys.executable, "-m", module, task, str(seed), str(max_cpu_s), *further]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def finish(side: str, process: subprocess.Popen[str]) -> dict[str, float]:
    """Waits for one side and returns what it measured.

    Raises:
        SystemExit: if it failed; its own message is on stderr.
    """
    output, _ = process.communicate()
    if process.returncode:
        message = f"{side} failed with exit code {process.returncode}; its message is above"
        raise SystemExit(message)
    return json.loads(output.splitlines()[-1])


def show(task: str, seed: int, side: str, result: dict[str, float]) -> None:
    """Prints one attempt."""
    figures: dict[str, Any] = {name: round(value, 2) for name, value in result.items()}
    print(f"{task} seed {seed} {side}: {json.dumps(figures)}", file=sys.stderr, flush=True)


def medians_of(results: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Returns the medians of each side."""
    return {
        side: {name: statistics.median(result[name] for result in tries) for name in SHOWN}
        for side, tries in results.items()
    }


def summarise(task: str, results: dict[str, list[dict[str, float]]]) -> None:
    """Prints medians of each side and the ratios of the sides, with how many seeds reached the score."""
    medians = medians_of(results)
    print(f"\n{task}: {TASKS[task]().score_name}; medians of {len(results['rulka'])} seeds")
    print("| | reached | CPU s | steps | steps/CPU s | once learning |\n|---|---|---|---|---|---|")
    for side, median in medians.items():
        count = sum(bool(result["reached"]) for result in results[side])
        print(
            f"| {side} | {count} of {len(results[side])} | {median['cpu_s']:.1f} | {median['steps']:.0f} "
            f"| {median['steps_per_cpu_s']:.0f} | {median['learning_steps_per_cpu_s']:.0f} |"
        )
    theirs = medians.pop(PEER, None)
    if theirs is None:
        return
    for side, ours in medians.items():
        print(
            f"{side} / {PEER}: CPU s {ours['cpu_s'] / theirs['cpu_s']:.2f} (wanted at most 0.5), steps/CPU s "
            f"{ours['steps_per_cpu_s'] / theirs['steps_per_cpu_s']:.2f}, once learning "
            f"{ours['learning_steps_per_cpu_s'] / theirs['learning_steps_per_cpu_s']:.2f}",
            flush=True,
        )


def main() -> None:
    """Runs the comparison and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="folder with stable_baselines3 and sb3_contrib")
    parser.add_argument("--task", choices=[*TASKS, "all"], default="all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--max-cpu-s", type=float, default=240.0, help="an attempt is given up after this long")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    arguments = parser.parse_args()
    sides = list(SIDES)
    if arguments.peers is None or not (arguments.peers / "sb3_contrib").is_dir():
        why = f"{arguments.peers} does not hold it" if arguments.peers else "no --peers FOLDER is given"
        print(f"sb3-contrib is left out: {why}; see --help", file=sys.stderr)
        sides.remove(PEER)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for task in TASKS if arguments.task == "all" else [arguments.task]:
        results: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        for seed in range(arguments.seeds):
            running = {side: start(side, task, seed, arguments.max_cpu_s, arguments.peers) for side in sides}
            for side, process in running.items():
                results[side].append(finish(side, process))
                show(task, seed, side, results[side][-1])
        found[task] = medians_of(results)
        if not arguments.json:
            summarise(task, results)
    if arguments.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
