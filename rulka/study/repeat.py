"""Whether a stage repeats: it is done again in a folder of its own, and every file compared with the output there is.

What repeats and what does not: docs/reproducibility.md. A training that came out otherwise is compared by its marks,
the checksums of its weights at each greedy check, so that it is known from when on.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rulka.artifacts import META_FILE
from rulka.errors import UserError
from rulka.folders import RUNS
from rulka.graph import read_graph
from rulka.params import read_params
from rulka.params.problems import did_you_mean
from rulka.provenance import hash_path
from rulka.stage import require
from rulka.study.work import Job, Work
from rulka.training.racing import parted

REPEATED = RUNS / "repeated"
"""A folder for each stage that was done again, until it is next."""


class Repeated(NamedTuple):
    """What came of it.

    Attributes:
        out: the output that there was.
        folder: with the other one.
        num_files: of either.
        differences: each file that is not the same, and what is known of it; empty where all are.
    """

    out: Path
    folder: Path
    num_files: int
    differences: list[str]


def repeat_stage(stage: str, say: Callable[[str], None]) -> Repeated:
    """Does a stage again from the parameters, code and data of now, and compares.

    Args:
        stage: its name in `dvc.yaml`.
        say: gets a line when it is done.

    Raises:
        UserError: if there is no such stage, or no output of it.
        UnfinishedError: if it fails.
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
    """Yields what differs in a file of two folders, if anything does."""
    files = [folder / name for folder in folders]
    if missing := [file.as_posix() for file in files if not file.exists()]:
        yield f"{name}: {missing[0]} is not there"
        return
    if Path(name).name != META_FILE:
        if hash_path(files[0]) != hash_path(files[1]):
            yield f"{name}: other content"
        return
    one, other = (json.loads(file.read_bytes()) for file in files)
    for meta in (one, other):  # where it was made, and of what state of the folder, makes no other output
        meta["provenance"] = {k: v for k, v in meta.get("provenance", {}).items() if k not in ("commit", "is_dirty")}
    if one != other:
        yield f"{name}: other content{_parted(one, other)}"


def _parted(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Says when the weights of two trainings first differed."""
    words = parted(*(meta["provenance"].get("training", {}).get("marks", []) for meta in (one, other)))
    return f"; {words}" if words else ""
