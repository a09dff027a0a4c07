"""Compares IQN with sb3-contrib's QR-DQN: `python -m benchmarks.qrdqn --peers FOLDER [--task catch] [--seeds 3]`.

Reports CPU seconds and environment steps until a target score, and steps per CPU second. Stopping rule, encoder, layer
widths, batch, updates per step, exploration, discount, learning rate and target updates are the same for both; see
`benchmarks.qrdqn.tasks`. Each side is a single-threaded process; all sides of a seed run concurrently, under the same
load. Rulka runs IQN as specified, and with two changes that experiments found to help: fractions at the hidden units
and 5-step returns. CPU time counts from the creation of the agent, without imports.

The peers are not dependencies of Rulka: `pip install --no-deps --target FOLDER stable-baselines3==2.9.2
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

from benchmarks.qrdqn.tasks import TASKS

PEER = "sb3-contrib"
SIDES = {
    "rulka": ("benchmarks.qrdqn.rulka_side", "found"),
    "rulka, as specified": ("benchmarks.qrdqn.rulka_side", "specified"),
    PEER: ("benchmarks.qrdqn.peer_side",),
}
"""Module, and its arguments after task, seed and limit."""
SHOWN = ("reached", "best", "steps", "cpu_s", "steps_per_cpu_s", "learning_steps_per_cpu_s")
Result = dict[str, float]


def start(side: str, task: str, seed: int, max_cpu_s: float, peers: Path | None) -> subprocess.Popen[str]:
    """Starts one side on a seed."""
    paths = [str(Path(__file__).parents[2]), *([str(peers.resolve())] if side == PEER and peers else [])]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    module, *further = SIDES[side]
    command = [sys.executable, "-m", module, task, str(seed), str(max_cpu_s), *further]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def finish(side: str, process: subprocess.Popen[str]) -> Result:
    """Waits for one side and returns its result.

    Raises:
        SystemExit: if it failed; its own message is on stderr.
    """
    output, _ = process.communicate()
    if process.returncode:
        message = f"{side} failed with exit code {process.returncode}; its message is above"
        raise SystemExit(message)
    return json.loads(output.splitlines()[-1])


def main() -> None:
    """Runs the comparison; prints medians of the seeds as a table, or all attempts as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="folder with stable_baselines3 and sb3_contrib")
    parser.add_argument("--task", choices=[*TASKS, "all"], default="all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--max-cpu-s", type=float, default=240.0, help="an attempt is given up after this long")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    arguments = parser.parse_args()
    sides = list(SIDES)
    if arguments.peers is None or not (arguments.peers / "sb3_contrib").is_dir():
        print(f"{PEER} is left out: --peers names no folder that holds it; see --help", file=sys.stderr)
        sides.remove(PEER)
    found: dict[str, dict[str, list[Result]]] = {}
    for task in TASKS if arguments.task == "all" else [arguments.task]:
        results = found[task] = {side: [] for side in sides}
        for seed in range(arguments.seeds):
            running = {side: start(side, task, seed, arguments.max_cpu_s, arguments.peers) for side in sides}
            for side, process in running.items():
                results[side].append(finish(side, process))
                print(f"{task} seed {seed} {side}: {json.dumps(results[side][-1])}", file=sys.stderr, flush=True)
    if arguments.json:
        print(json.dumps(found))
        return
    for task, results in found.items():
        print(f"\n{task}: {TASKS[task]().score_name}; medians of {arguments.seeds} seeds")
        print(f"| | {' | '.join(SHOWN)} |\n|{'---|' * (1 + len(SHOWN))}")
        for side, tries in results.items():
            medians = (statistics.median(result[name] for result in tries) for name in SHOWN)
            print(f"| {side} | {' | '.join(f'{value:,.1f}' for value in medians)} |")


if __name__ == "__main__":
    main()
