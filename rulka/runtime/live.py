"""Files for watching a running training. Car positions go into a small one, which is replaced atomically."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rulka.machine.errors import UserError

LIVE_FILE = "live.json"
"""`cars`: [[x, y, z in world metres, speed in m/s], ...], collector by collector, without cars that have no position
(as in environments without a track). `written_s`: seconds since 1970."""
METRICS_FILE = "metrics.jsonl"
"""See `rulka.runtime.metrics_log`."""
TRACK_FILE = "track.npz"
"""The track of a run, beside its metrics; absent if cars race on several."""
LIVE_S = 1.0
"""Seconds between writes of the file."""


class LiveCars:
    """The latest positions of all cars.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LIVE_FILE
        self._cars: dict[int, NDArray[np.float32]] = {}
        self._written_s = -np.inf

    def add(self, collector: int, cars: NDArray[np.float32]) -> None:
        """Takes one collector's cars, [N, 4]: world position in metres, NaN if there is none, and speed in m/s."""
        self._cars[collector] = cars

    def write_when_due(self) -> None:
        """Writes all positions if the last write is at least `LIVE_S` ago."""
        if time.monotonic() - self._written_s >= LIVE_S:
            self.write()

    def write(self) -> None:
        """Writes all positions, replacing the file atomically."""
        self._written_s = time.monotonic()
        cars = np.concatenate([np.zeros((0, 4)), *(self._cars[collector] for collector in sorted(self._cars))])
        shown = np.round(cars[np.isfinite(cars).all(axis=1)], 2).tolist()
        temporary = self._path.with_suffix(".tmp")
        try:
            temporary.write_text(json.dumps({"written_s": time.time(), "cars": shown}), encoding="utf-8")
            os.replace(temporary, self._path)
        except FileNotFoundError as error:
            message = f"{self._path.parent.as_posix()} was removed, or moved, while the training in it ran"
            hint = "Put it back, and the same command goes on from its checkpoint; else it begins anew."
            raise UserError(message, hint=hint) from error
