"""How far simulated cars are from recorded ones: the numbers of the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rulka.calibration.model import constant_velocity, simulate
from rulka.calibration.windows import HORIZONS_MS, SURFACES, Windows
from rulka.params import PhysicsParams

ALL = "all"


def errors(windows: Windows, physics: PhysicsParams | None) -> tuple[NDArray, NDArray]:
    """Returns [W, H] distance in metres, and [W, H] difference of speed in m/s, between simulated and recorded cars.

    Args:
        windows: of one map.
        physics: of the simulated cars; None lets them keep their velocity.
    """
    moved, velocity = constant_velocity(windows) if physics is None else simulate(windows, physics, HORIZONS_MS)
    speed = np.linalg.norm(velocity, axis=2) - np.linalg.norm(windows.velocity, axis=2)
    return np.linalg.norm(moved - windows.moved_m, axis=2), np.abs(speed)


def table(parts: Sequence[Windows], models: dict[str, PhysicsParams | None]) -> list[dict[str, Any]]:
    """Returns one row for each surface and map, and one for all windows.

    Each has `kind` ("surface", "map" or "all"), `name`, `windows`, and for every model `position_m` and
    `speed_mps`: for each horizon the median and the 90th percentile, None where there is nothing.
    """
    found = {name: [errors(part, physics) for part in parts] for name, physics in models.items()}
    joined = {
        name: tuple(np.concatenate(values) for values in zip(*pairs, strict=True)) for name, pairs in found.items()
    }
    surface = np.concatenate([part.surface for part in parts])
    where = np.concatenate([np.full(len(part), number) for number, part in enumerate(parts)])
    groups = [("all", ALL, np.ones(len(surface), bool))]
    groups += [("surface", name, surface == number) for number, name in enumerate(SURFACES)]
    groups += [("map", part.track.name, where == number) for number, part in enumerate(parts)]
    return [_row(kind, name, chosen, joined) for kind, name, chosen in groups if chosen.any()]


def _row(kind: str, name: str, chosen: NDArray, joined: dict[str, tuple]) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": kind, "name": name, "windows": int(chosen.sum())}
    for model, (position_m, speed_mps) in joined.items():
        row[model] = {"position_m": _quantiles(position_m[chosen]), "speed_mps": _quantiles(speed_mps[chosen])}
    return row


def _quantiles(values: NDArray) -> list[list[float | None]]:
    """Returns for each horizon the median and the 90th percentile."""
    out: list[list[float | None]] = []
    for column in values.T:
        known = column[np.isfinite(column)]
        out.append([round(float(np.quantile(known, q)), 3) for q in (0.5, 0.9)] if len(known) else [None, None])
    return out
