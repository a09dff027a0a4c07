"""Reads a run's metrics, track and car positions from files in its folder, without a connection to the run."""

from __future__ import annotations

import time
from array import array
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from rulka.contracts.observation import ZONE_SPACING_M
from rulka.contracts.stored import StoredFloat, checked
from rulka.machine.errors import UserError
from rulka.runtime.live import LIVE_FILE, METRICS_FILE, TRACK_FILE
from rulka.tracks.top_view import road_edges, top_view
from rulka.tracks.track import Track, load_track

MAX_POINTS = 240
"""Most points of one curve; longer ones are subsampled."""
TRACK_STEP_M = 2.0
STALE_S = 15.0
"""A run that has written nothing for this long is not running."""


def track_of(folder: Path) -> Track | None:
    """Returns the track that a run's cars race on; None if there is none, or more than one.

    Raises:
        TrackError: if its file is damaged.
    """
    path = folder / TRACK_FILE
    return load_track(path) if path.exists() else None


def track_outline(track: Track | None) -> dict[str, Any]:
    """Returns a track in page coordinates: metres right, down, and up out of the page, rotated to fill the page.

    Returns:
        `name`, `length_m`, `left` and `right` road edges [[x, y, z], ...], and `gates`, one line across the road per
        gate, [[[x, y, z], [x, y, z]], ...], start first and finish last. All are empty without a track.
    """
    if track is None:
        return {"name": "", "length_m": 0.0, "left": [], "right": [], "gates": []}
    every = round(TRACK_STEP_M / ZONE_SPACING_M)
    drawn = np.append(np.arange(0, track.num_zones - 1, every), track.num_zones - 1)
    gates = np.clip(np.round(np.append(0.0, track.gate_m) / ZONE_SPACING_M).astype(int), 0, track.num_zones - 1)
    rise_m = np.sin(track.bank_rad) * track.width_m / 2.0
    heights = track.centre_m[:, 1] + np.stack([rise_m, -rise_m])
    edges = np.dstack([road_edges(track, top_view(track)) * (1.0, -1.0), heights])
    left, right = np.round(edges, 2)
    return {
        "name": track.name,
        "length_m": track.length_m,
        "left": left[drawn].tolist(),
        "right": right[drawn].tolist(),
        "gates": [[left[zone].tolist(), right[zone].tolist()] for zone in gates],
    }


def cars_on_page(track: Track | None, cars: NDArray[np.float64]) -> list[list[float]]:
    """Maps rows of `Live.cars` to [[x, y, m/s], ...] in coordinates of `track_outline`; empty without a track."""
    if track is None:
        return []
    places = top_view(track)(cars[:, :3]) * (1.0, -1.0)
    return np.round(np.column_stack([places, cars[:, 3]]), 2).tolist()


class Live(BaseModel):
    """Car positions of a run.

    Attributes:
        cars: world position in metres and speed in m/s of each; empty if unknown.
        written_s: time of writing, Unix seconds; 0 if never written.
    """

    cars: list[tuple[StoredFloat, StoredFloat, StoredFloat, StoredFloat]]
    written_s: StoredFloat

    @property
    def is_running(self) -> bool:
        """True if the file was written within the last `STALE_S` seconds."""
        # abs: if the clock was set back since, the time lies in the future, and that run is over.
        return abs(time.time() - self.written_s) < STALE_S


NOWHERE = Live(cars=[], written_s=0.0)


def read_live(folder: Path) -> Live:
    """Reads the car positions of a run; `NOWHERE` if the file is missing or of an earlier version."""
    try:
        return checked((folder / LIVE_FILE).read_bytes(), Live, LIVE_FILE)
    except (FileNotFoundError, UserError):
        return NOWHERE


class MetricsReader:
    """Incremental reader of a metrics file that may still be written to.

    Attributes:
        latest: last value of every metric.
        num_damaged: skipped lines that cannot be parsed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin()

    def _begin(self) -> None:
        self._num_bytes, self._last_line = 0, b""
        self.latest: dict[str, float] = {}
        self.num_damaged = 0
        self._points: dict[str, array[float]] = {}  # by name, steps and value in turn

    def read_on(self) -> None:
        """Reads the lines added since the last call, or the whole file again if a resumed run has truncated it.

        An incomplete last line is left for the next call.
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
            try:
                self._add(checked(line, dict[str, StoredFloat | None], METRICS_FILE))
            except (UserError, KeyError):
                self.num_damaged += 1

    def _add(self, values: dict[str, float | None]) -> None:
        numbers = {name: value for name, value in values.items() if value is not None}
        env_steps = numbers["env_steps"]
        self.latest |= numbers
        for name, value in numbers.items():
            if name != "env_steps":
                self._points.setdefault(name, array("d")).extend((env_steps, value))

    def curves(self) -> dict[str, list[list[float]]]:
        """Returns the points of every metric by name, subsampled so that the newest point is kept."""
        return {name: self.curve(name) for name in sorted(self._points)}

    def curve(self, name: str) -> list[list[float]]:
        """Returns the points of one metric, subsampled likewise; empty if no line holds it."""
        points = self.points(name)
        every = -(-len(points) // MAX_POINTS) or 1
        return points[::-every][::-1].tolist()

    def points(self, name: str) -> NDArray[np.float64]:
        """Returns all points of one metric, [P, 2] environment steps and value; P is 0 if no line holds it."""
        return np.array(self._points.get(name, ()), np.float64).reshape(-1, 2)

    @property
    def names(self) -> list[str]:
        """Sorted names of all metrics."""
        return sorted(self._points)
