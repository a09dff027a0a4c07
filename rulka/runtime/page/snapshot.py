"""What the page shows of a run, read from the files in its folder: no connection to the run itself is needed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from rulka.errors import UserError
from rulka.observation import ZONE_SPACING_M
from rulka.runtime.live import LIVE_FILE, TRACK_FILE
from rulka.runtime.metrics_log import METRICS_FILE
from rulka.tracks.track import Track, load_track

MAX_POINTS = 240
"""Points of one curve; between them every further value is left out."""
TRACK_STEP_M = 4.0
STALE_S = 15.0
"""A run that has written nothing for this long is not running."""


class NoRunError(UserError):
    """A folder without a training run in it."""


def find_run(folder: Path) -> Path:
    """Returns the run that lies in a folder or somewhere below it, the one written to last.

    Raises:
        NoRunError: if there is none.
    """
    files = sorted(folder.rglob(METRICS_FILE), key=lambda path: path.stat().st_mtime)
    if not files:
        message = f"no training run is in {folder.as_posix()}"
        raise NoRunError(message, hint="Start one with `dvc repro train`; its folder appears in runs/train/.")
    return files[-1].parent


def track_outline(folder: Path) -> dict[str, Any]:
    """Returns the track of a run: `name`, `length_m`, `points` [[x, z], ...] and `gates` [[x, z], ...], metres.

    All are empty where the run has no track file.
    """
    path = folder / TRACK_FILE
    if not path.exists():
        return {"name": "", "length_m": 0.0, "points": [], "gates": []}
    track = load_track(path)
    along_m = np.append(np.arange(0.0, track.length_m, TRACK_STEP_M), track.length_m)
    return {
        "name": track.name,
        "length_m": track.length_m,
        "points": _places(track, along_m),
        "gates": _places(track, track.gate_m),
    }


def snapshot(folder: Path, track: Track | None) -> dict[str, Any]:
    """Returns the newest state of a run.

    Returns:
        `run` (name of its folder), `is_running`, `latest` (last value of every metric), `curves` (by metric, points
        [env steps, value]) and `cars` ([[x, z, m/s], ...]).
    """
    lines = read_lines(folder / METRICS_FILE)
    live, age_s = _live(folder)
    latest: dict[str, Any] = {}
    for line in lines:
        latest |= {name: value for name, value in line.items() if value is not None}
    return {
        "run": folder.name,
        "is_running": age_s < STALE_S,
        "latest": latest,
        "curves": _curves(lines),
        "cars": _cars(live, track),
    }


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Reads a metrics file that may be written to at this moment: a last line that is not whole is left out."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _curves(lines: list[dict[str, Any]]) -> dict[str, list[list[float]]]:
    names = sorted({name for line in lines for name, value in line.items() if isinstance(value, int | float)})
    curves = {}
    for name in names:
        points = [[line["env_steps"], line[name]] for line in lines if isinstance(line.get(name), int | float)]
        every = -(-len(points) // MAX_POINTS)
        curves[name] = points[::-1][::every][::-1]  # the newest one is always there
    curves.pop("env_steps", None)
    return curves


def _live(folder: Path) -> tuple[list[list[list[float]]], float]:
    path = folder / LIVE_FILE
    if not path.exists():
        return [], float("inf")
    content = json.loads(path.read_text(encoding="utf-8"))
    return content["cars"], time.time() - content["written_s"]


def _cars(live: list[list[list[float]]], track: Track | None) -> list[list[float]]:
    cars = np.array([car for collector in live for car in collector], np.float64).reshape(-1, 2)
    if track is None or not len(cars):
        return []
    return [[*place, speed] for place, speed in zip(_places(track, cars[:, 0]), cars[:, 1].tolist(), strict=True)]


def _places(track: Track, along_m: np.ndarray) -> list[list[float]]:
    zone = np.clip(np.round(along_m / ZONE_SPACING_M).astype(int), 0, track.num_zones - 1)
    return np.round(track.centre_m[zone][:, [0, 2]], 2).tolist()
