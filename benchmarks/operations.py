"""What Prefect and DVC cost around the stages: `python -m benchmarks.operations [--json] [--runs N] [--nights N]`.

A copy of this project's code in a temporary folder, whose stages keep their inputs and parameters and do next to
nothing: what is measured is everything but the stages. Wall seconds, medians of some runs after one that is not
counted, and the CPU seconds of all processes together.

With `--nights N` the nightly evaluation is planned every few seconds in the place of every night, which makes Prefect
plan a hundred ahead, and N of them run back to back, with races stood in for: none may be lost, run twice or get stuck.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from rulka.processes import cpu_seconds

ROOT = Path(__file__).parents[1]
COPIED = (
    "flows", "tasks", "rulka", "models", "presets", "experiments", "dvc.yaml", "params.yaml", ".dvcignore",
    "prefect.yaml", "prefect.toml", ".dvc/config",
)  # fmt: skip
TARGET_IDLE_S, TARGET_UP_S = 10.0, 20.0
NIGHT_EVERY_S = 4
PATIENCE_S = 1800.0
POLL_S = 20.0
"""Asking takes more than a second of a processor."""
NIGHT = """\
# Stands in for `rulka night`: one line for each night that was raced.
import json, os
from pathlib import Path
for name in ("nights", "agents"):
    Path("data", name).mkdir(parents=True, exist_ok=True)
with Path("data/nights/raced").open("a") as file:
    file.write(f"{os.getpid()}\\n")
print(json.dumps({"rows": [], "worse": [], "text": "raced"}))
"""

Seconds = dict[str, float]


class Project:
    """A copy of the code, with stages that do next to nothing, in which commands are run.

    Args:
        folder: empty.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, folder / name)
        (folder / "dvc.yaml").write_text(_stood_in((ROOT / "dvc.yaml").read_text(encoding="utf-8")), encoding="utf-8")
        (folder / ".dvc" / "config.local").write_text("[core]\n    no_scm = true\n", encoding="utf-8")
        (folder / "data" / "recordings").mkdir(parents=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}/api"
        (folder / ".env").write_text(f"PREFECT_API_URL={self.url}\n", encoding="utf-8")
        self.environment = os.environ | {"PYTHONPATH": str(folder)}

    def call(self, *module: str) -> str:
        """Runs a module to its end; returns what it printed.

        Raises:
            CalledProcessError: if it fails.
        """
        command = [sys.executable, "-m", *module]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=True
        ).stdout

    @contextmanager
    def up(self, *program: str) -> Iterator[Seconds]:
        """Has `rulka up`, or a program in its place, for the block; gives what it took to be ready."""
        found, measured = {}, _measure()
        with subprocess.Popen(
            [sys.executable, *(program or ("-m", "rulka.cli", "up"))], cwd=self.folder, env=self.environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("ready: "):
                    found = measured()
                if line.startswith("Ctrl-C stops"):
                    break
            try:
                yield found
            finally:
                process.send_signal(signal.SIGINT)
                process.communicate()


def _stood_in(graph: str) -> str:
    """Returns a `dvc.yaml` with the same stages, whose commands write a small file into each output."""
    stages: dict[str, Any] = yaml.safe_load(graph)["stages"]
    for name, parts in stages.items():
        outs = [next(iter(out)) if isinstance(out, dict) else out for out in parts["outs"]]
        parts["cmd"] = " && ".join(f"mkdir -p {out} && echo {name} > {out}/x" for out in outs)
        for key in ("metrics", "plots"):
            parts.pop(key, None)
    return yaml.safe_dump({"stages": stages}, sort_keys=False)


def _measure() -> Callable[[], Seconds]:
    """Returns what says how much time passes from now on, and on processors for us and all that we start."""
    wall_s, cpu_s = time.perf_counter(), cpu_seconds()
    return lambda: {"wall_s": time.perf_counter() - wall_s, "cpu_s": cpu_seconds() - cpu_s}


def measure(num_runs: int) -> dict[str, Seconds]:
    """Returns medians of wall and CPU seconds by what was done."""
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder))
        project.call("dvc", "repro")
        found = {"a pipeline with nothing to do: `dvc repro`": _median(num_runs, project, "dvc", "repro")}
        with project.up() as took:  # makes the database and the byte code
            found["`rulka up` is ready, for the first time in a folder"] = took
        ups = []
        for _ in range(num_runs):
            with project.up() as took:
                ups.append(took)
        with project.up():
            deployment = ("prefect", "deployment", "run", "rulka/full-pipeline", "--watch")
            found["the same as a deployment"] = _median(num_runs, project, *deployment)
            time.sleep(5.0)
            measured = _measure()
            time.sleep(30.0)
            found["`rulka up` with nothing to do, for a minute"] = {"cpu_s": 2.0 * measured()["cpu_s"]}
        found["`rulka up` is ready"] = _medians(ups)
    return found


def _median(num_runs: int, project: Project, *module: str) -> Seconds:
    took = []
    for _ in range(num_runs):
        measured = _measure()
        project.call(*module)
        took.append(measured())
    return _medians(took)


def _medians(took: list[Seconds]) -> Seconds:
    return {key: statistics.median(each[key] for each in took) for key in took[0]}


def measure_nights(num_nights: int) -> dict[str, float]:
    """Lets the first planned nights run back to back; returns how many were planned, came to an end, and got lost."""
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder))
        deployments = yaml.safe_load((project.folder / "prefect.yaml").read_text(encoding="utf-8"))
        nightly = next(each for each in deployments["deployments"] if each["name"] == "nightly-evaluation")
        nightly["schedules"] = [{"interval": NIGHT_EVERY_S}]
        (project.folder / "prefect.yaml").write_text(yaml.safe_dump(deployments), encoding="utf-8")
        (project.folder / "rulka" / "cli" / "__main__.py").write_text(NIGHT, encoding="utf-8")
        runs: list[dict[str, Any]] = []
        with project.up("-c", "from flows.up import up; up(lambda line: print(line, flush=True))"):
            measured = _measure()
            give_up_s = time.monotonic() + PATIENCE_S
            planned = 0
            while time.monotonic() < give_up_s:
                runs = sorted(_runs(project), key=lambda run: run["expected_start_time"])
                planned = max(planned, sum(run["state"]["type"] == "SCHEDULED" for run in runs))
                if sum(run["state"]["type"] == "COMPLETED" for run in runs) >= num_nights:
                    break
                time.sleep(POLL_S)
            took = measured()
        first = runs[:num_nights]
        raced = (project.folder / "data" / "nights" / "raced").read_text(encoding="utf-8").splitlines()
    ended = sum(run["state"]["type"] == "COMPLETED" for run in runs)
    return {
        "planned_ahead": planned,
        "completed": ended,
        "lost_or_stuck": sum(run["state"]["type"] != "COMPLETED" for run in first),
        "raced_twice": max(0, len(raced) - ended - 1),  # one may be under way
        "wall_s_each": took["wall_s"] / max(ended, 1),
        "cpu_s_each": took["cpu_s"] / max(ended, 1),
    }


def _runs(project: Project) -> list[dict[str, Any]]:
    return json.loads(project.call("prefect", "flow-run", "ls", "--output", "json", "--limit", "200"))


def main() -> None:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--runs", type=int, default=3, help="of each measurement; the median is shown")
    parser.add_argument("--nights", type=int, default=0, help="run so many nights back to back, and nothing else")
    options = parser.parse_args()
    if options.nights:
        nights = measure_nights(options.nights)
        print(
            json.dumps(nights) if options.json else "\n".join(f"{key:16}{value:8.1f}" for key, value in nights.items())
        )
        return
    found = measure(options.runs)
    if options.json:
        print(json.dumps({"target_idle_s": TARGET_IDLE_S, "target_up_s": TARGET_UP_S, **found}))
        return
    print(f"{'':54}{'wall s':>8}{'CPU s':>8}   (targets: {TARGET_IDLE_S:.0f} s, up {TARGET_UP_S:.0f} s)")
    for name, row in found.items():
        wall = f"{row['wall_s']:8.1f}" if "wall_s" in row else f"{'':8}"
        print(f"{name:54}{wall}{row['cpu_s']:8.1f}")


if __name__ == "__main__":
    main()
