"""Names of the files and folders in `data/` and `runs/` that more than one module knows.

What a folder of `data/` holds is said by the stage that writes it, see `dvc.yaml`. What one module alone writes and
reads is named there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

DATA = Path("data")
"""Inputs and outputs of the stages, relative to the root of the project, in which every command runs."""
RECORDINGS = DATA / "recordings"
RACES = DATA / "races"
TRACKS = RACES / "tracks"
FRAMES = DATA / "frames"
ENCODER = DATA / "encoder"
POLICY = DATA / "policy"
AGENT_INIT = DATA / "agent_init"
AGENT = DATA / "agent"
EVALUATION = DATA / "evaluation"
KEPT_AGENTS = DATA / "agents"
"""Agents that were promoted, a folder each; no stage's output."""
NIGHTS = DATA / "nights"
"""What the nightly evaluations found; no stage's output."""

RUNS = Path("runs")
"""What is alive, or of use to people alone; no stage's output."""
PRETRAIN_RUNS = RUNS / "pretrain"
CLONE_RUNS = RUNS / "clone"
TRAINING_RUNS = RUNS / "train"
REASONS_FILE = RUNS / "races_not_used.csv"
"""Why the last run of stage `races` could use no recording: file, error, hint."""
PRESETS_LOG = RUNS / "presets.jsonl"
"""What each preset changed that was laid over `params.yaml`, a line each, the newest last."""

METRICS_FILE = "metrics.json"
"""In the encoder's, the policy's and the evaluation's folder."""
PREVIEWS_PICTURE = "previews.png"
"""In the encoder's folder, shown by the report."""
COMPARED = "compared"
"""In `AGENT_INIT` and `AGENT`: one folder for each of `train.compared`."""
TRANSFER_REPORT = "report.json"
"""In an initial agent's folder: what became of every tensor."""
TRAINING_LOG = "training.jsonl"
"""In an agent's folder: one JSON object a line, rising in time."""

REPORT_PAGE = "report.html"
"""This and what follows: in `EVALUATION`."""
VIDEO_FILE = "race.mp4"
PLOTS = "plots"
LAPS = "laps"
"""A race dataset: the best race of each contestant on each track, and the reference laps."""


def utf8_path(path: str | Path) -> str:
    """Returns a path as one line that UTF-8 files take, too: bytes that are none, and ends of lines, are escaped."""
    return os.fsencode(Path(path).as_posix()).decode(errors="backslashreplace").replace("\n", r"\n")


def import_from_here() -> None:
    """Lets a module named MODULE:NAME lie in the current folder, as `python -m` does."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
