"""Where the cars of a running training are, for people who watch it: a small file that is always whole."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

LIVE_FILE = "live.json"
"""`cars`: [collector][car][metres along the track, speed in m/s]; `written_s`: seconds since 1970."""
TRACK_FILE = "track.npz"
"""The track of a run, beside its metrics."""


class LiveCars:
    """The newest places of all cars.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LIVE_FILE
        self._cars: dict[int, NDArray[np.float32]] = {}

    def add(self, collector: int, cars: NDArray[np.float32]) -> None:
        """Takes places [N, 2] of one collector's cars: metres along the track, speed in m/s."""
        self._cars[collector] = cars

    def write(self) -> None:
        """Writes all places, replacing what was written before in one step."""
        cars = [np.round(self._cars[collector].astype(float), 2).tolist() for collector in sorted(self._cars)]
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps({"written_s": time.time(), "cars": cars}), encoding="utf-8")
        os.replace(temporary, self._path)
