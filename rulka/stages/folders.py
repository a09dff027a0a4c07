"""Names of the files and folders in `data/` and `runs/` that several modules use.

The stage that writes a folder of `data/` documents its content, see `dvc.yaml`. A file that only one module writes and
reads is named there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

DATA = Path("data")
"""Inputs and outputs of the stages, relative to the project root, in which every command runs."""
RECORDINGS = DATA / "recordings"
TAKEOVERS = DATA / "takeovers"
RACES = DATA / "races"
TRACKS = RACES / "tracks"
FRAMES = DATA / "frames"
ENCODER = DATA / "encoder"
POLICY = DATA / "policy"
AGENT_INIT = DATA / "agent_init"
AGENT = DATA / "agent"
EVALUATION = DATA / "evaluation"
KEPT_AGENTS = DATA / "agents"
"""Promoted agents, one folder each; not a stage's output."""
NIGHTS = DATA / "nights"
"""Results of the nightly evaluations; not a stage's output."""

RUNS = Path("runs")
"""State of live runs, and files for people only; not a stage's output."""
CAPTURE_RUNS = RUNS / "capture"
PRETRAIN_RUNS = RUNS / "pretrain"
CLONE_RUNS = RUNS / "clone"
TRAINING_RUNS = RUNS / "train"
REASONS_FILE = RUNS / "races_not_used.csv"
"""Recordings that the last run of stage `races` could not use: file, error, hint."""
PRESETS_DIR = Path("presets")
PRESETS_LOG = RUNS / "presets.jsonl"
"""Changes by each preset that was laid over `params.yaml`, one line each, newest last."""

METRICS_FILE = "metrics.json"
"""In the folders of the encoder, the policy and the evaluation."""
PREVIEWS_PICTURE = "previews.png"
"""In the encoder's folder, shown by the report."""
COMPARED = "compared"
"""In `AGENT_INIT` and `AGENT`: one folder per entry of `train.compared`."""
TRANSFER_REPORT = "report.json"
"""In an initial agent's folder: what happened to every tensor."""
TRAINING_LOG = "training.jsonl"
"""In an agent's folder: one JSON object per line, ordered by time."""

REPORT_PAGE = "report.html"
"""This and the following: in `EVALUATION`."""
VIDEO_FILE = "race.mp4"
PLOTS = "plots"
LAPS = "laps"
"""A race dataset: the best race of each contestant on each track, and the reference laps."""


def is_utf8(path: Path) -> bool:
    """True if a path is valid UTF-8, as DVC needs it."""
    return str(path).encode(errors="ignore") == os.fsencode(path)


def preset_names() -> list[str]:
    """Returns the names of all presets."""
    return sorted(path.stem for path in PRESETS_DIR.glob("*.yaml"))


def utf8_path(path: str | Path) -> str:
    """Returns a path as one line of valid UTF-8; invalid bytes and line breaks are escaped."""
    return os.fsencode(Path(path).as_posix()).decode(errors="backslashreplace").replace("\n", r"\n")


def import_from_here() -> None:
    """Makes modules in the current folder importable by MODULE:NAME, as `python -m` does."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
