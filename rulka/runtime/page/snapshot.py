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


class RunReader:
    """Reads a run again and again, for any number of pages; of its metrics only what is new since the last time."""

    def __init__(self, folder: Path, track: Track | None) -> None:
        """Begins without having read anything.

        Args:
            folder: of the run.
            track: on which its cars are shown; None shows none.
        """
        self._folder, self._track = folder, track
        self._metrics = _Metrics(folder / METRICS_FILE)

    def snapshot(self) -> dict[str, Any]:
        """Returns the newest state of the run.

        Returns:
            `run` (name of its folder), `is_running`, `latest` (last value of every metric), `curves` (by metric, points
            [env steps, value]) and `cars` ([[x, z, m/s], ...]).
        """
        live, age_s = _live(self._folder)
        self._metrics.read_on()
        return {
            "run": self._folder.name,
            "is_running": age_s < STALE_S,
            "latest": self._metrics.latest,
            "curves": self._metrics.curves(),
            "cars": _cars(live, self._track),
        }


class _Metrics:
    """What was read of a metrics file, which may be written to at this moment.

    Attributes:
        latest: last value of every metric.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin()

    def _begin(self) -> None:
        self._num_bytes, self._last_line = 0, b""
        self.latest: dict[str, Any] = {}
        self._points: dict[str, list[list[float]]] = {}

    def read_on(self) -> None:
        """Reads the lines that were added; all of them where a run that went on has cut the file off and added others.

        A last line that is not whole yet is left for the next time.
        """
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._num_bytes - len(self._last_line))
            if file.read(len(self._last_line)) != self._last_line:
                self._begin()
                file.seek(0)
            added = file.read()
        for line in added[: added.rfind(b"\n") + 1].splitlines(keepends=True):
            self._num_bytes, self._last_line = self._num_bytes + len(line), line
            self._add(json.loads(line))

    def _add(self, values: dict[str, Any]) -> None:
        self.latest |= {name: value for name, value in values.items() if value is not None}
        for name, value in values.items():
            if name != "env_steps" and isinstance(value, int | float):
                self._points.setdefault(name, []).append([values["env_steps"], value])

    def curves(self) -> dict[str, list[list[float]]]:
        """Returns the points of every number by name, thinned so that the newest one is always there."""
        curves = {}
        for name, points in sorted(self._points.items()):
            every = -(-len(points) // MAX_POINTS)
            curves[name] = points[::-every][::-1]
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
