"""How long every stage took when it last ran."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

STAGES = ("races", "capture", "pretrain", "clone", "transfer", "train", "evaluate")


@dataclass(frozen=True)
class StageDuration:
    """The last successful run of a stage.

    Attributes:
        stage: its name.
        seconds: wall time.
        peak_rss_mb: largest resident memory of the stage and its processes, None where it was not measured.
        ended_at: ISO time.
    """

    stage: str
    seconds: float
    peak_rss_mb: float | None
    ended_at: str


def read_durations(path: Path) -> list[StageDuration]:
    """Returns the last run of every stage in the order of the pipeline; empty when the file does not exist.

    A line cut off by a crash is skipped: the file is a help for people, no input of anything.
    """
    if not path.exists():
        return []
    last: dict[str, StageDuration] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
            stage = StageDuration(row["stage"], float(row["seconds"]), row.get("peak_rss_mb"), row["ended_at"])
        except (ValueError, KeyError, TypeError):
            continue
        last[stage.stage] = stage
    return [last[name] for name in STAGES if name in last]
