"""Checks the reproducibility of a stage: reruns it in a separate folder and compares every output file.

docs/reproducibility.md says what is reproducible. If a training differs, its marks, the checksums of its weights at
each greedy check, tell from when on.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from rulka.contracts.artifacts import META_FILE
from rulka.contracts.problems import did_you_mean
from rulka.machine.errors import UserError
from rulka.params import read_params
from rulka.stages.folders import RUNS
from rulka.stages.graph import read_graph
from rulka.stages.provenance import hash_path
from rulka.stages.stage import require
from rulka.study.work import Job, Work
from rulka.training.agent_run import describe_divergence

REPEATED = RUNS / "repeated"
"""A folder for each rerun stage, kept until its next rerun."""


class Repeated(NamedTuple):
    """Result of a rerun.

    Attributes:
        out: the existing output.
        folder: the output of the rerun.
        num_files: number of files in either.
        differences: a line for each file that differs, with details; empty if none does.
    """

    out: Path
    folder: Path
    num_files: int
    differences: list[str]


def repeat_stage(stage: str, say: Callable[[str], None]) -> Repeated:
    """Reruns a stage with the current parameters, code and data, and compares the outputs.

    Args:
        stage: its name in `dvc.yaml`.
        say: called with a message when it is done.

    Raises:
        UserError: if there is no such stage or no output of it, or it fails.
    """
    graph = read_graph()
    if stage not in graph:
        message = f"there is no stage {stage!r}{did_you_mean(stage, graph)}"
        raise UserError(message, hint=f"Stages are {', '.join(graph)}.")
    out = require(Path(graph[stage]["outs"][0]), stage)
    folder = REPEATED / stage
    shutil.rmtree(folder, ignore_errors=True)
    here = {dep: Path() for dep in graph[stage]["deps"] if dep.startswith("data/") and Path(dep).exists()}
    job = Job(stage, folder, f"tasks.{stage}", read_params().model_dump(mode="json"), here)
    work = Work(1, say)
    work.do(lambda: [job] if job.cpu_seconds is None else [], lambda done: f"{done.cpu_seconds:.0f} CPU seconds")
    work.check()
    names = sorted(_files(out) | _files(folder / out))
    differences = [line for name in names for line in _difference(name, out, folder / out)]
    return Repeated(out, folder / out, len(names), differences)


def _files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def _difference(name: str, *folders: Path) -> Iterator[str]:
    """Yields a line if a file differs between two folders."""
    files = [folder / name for folder in folders]
    if missing := [file.as_posix() for file in files if not file.exists()]:
        yield f"{name}: {missing[0]} is not there"
        return
    if Path(name).name != META_FILE:
        if hash_path(files[0]) != hash_path(files[1]):
            yield f"{name}: other content"
        return
    one, other = (json.loads(file.read_bytes()) for file in files)
    for meta in (one, other):  # the commit, and whether it was dirty, is no difference
        meta["provenance"] = {k: v for k, v in meta.get("provenance", {}).items() if k not in ("commit", "is_dirty")}
    if one != other:
        marks = (meta["provenance"].get("training", {}).get("marks", []) for meta in (one, other))
        parted = describe_divergence(*marks)
        yield f"{name}: other content{f'; {parted}' if parted else ''}"
