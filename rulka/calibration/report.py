"""Measures the error of simulated cars against recorded ones, and writes it as a page and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import StrictUndefined, Template
from numpy.typing import NDArray

from rulka.calibration.fit import FITTED, FitResult
from rulka.calibration.follow import follow
from rulka.calibration.gather import CalibrationData
from rulka.calibration.windows import FLAT, HORIZONS_MS, REGIMES, Windows, constant_velocity, simulate
from rulka.simulator.params import PhysicsParams
from rulka.stages.outputs import filled_folder
from rulka.stages.provenance import library_versions

REPORT_FILE, NUMBERS_FILE = "report.md", "calibration.json"
TEMPLATE = Path(__file__).with_name("report.md.jinja")
LEFT_OUT, HELD_OUT, BEFORE, CONSTANT = "map left out", "race held out", "before", "constant velocity"
SPEEDS_MPS = (0, 20, 35, 50, 70, 95, 200)
WITHIN = 0.01
"""A race counts as followed if its time is within this share of the recorded time."""


class Errors(NamedTuple):
    """Errors of a model in W windows.

    Attributes:
        regime: [W] index into `REGIMES`.
        map_name: [W] map of the window.
        speed_mps: [W] speed at the start.
        position_m: [W, H] distance between simulated and recorded car; NaN past the last sample.
        yaw_rps: [W, H] absolute difference of yaw rates.
    """

    regime: NDArray[np.int64]
    map_name: NDArray[np.str_]
    speed_mps: NDArray[np.float64]
    position_m: NDArray[np.float64]
    yaw_rps: NDArray[np.float64]


def errors(parts: Sequence[tuple[Windows, PhysicsParams | None]]) -> Errors:
    """Returns the errors in windows of several maps, each with its own physics.

    None stands for the constant-velocity baseline, without yaw.
    """
    found = []
    for windows, physics in parts:
        model = constant_velocity(windows) if physics is None else simulate(windows, physics, HORIZONS_MS)
        moved_m, _, yaw = model
        found.append(
            Errors(
                windows.regime,
                np.full(len(windows), windows.track.name),
                windows.speed_mps,
                np.linalg.norm(moved_m - windows.moved_m, axis=2),
                np.abs(yaw - windows.yaw),
            )
        )
    return Errors(*(np.concatenate(values) for values in zip(*found, strict=True)))


def write_report(
    out: Path,
    command: str,
    holdout: float,
    data: CalibrationData,
    before: PhysicsParams,
    result: FitResult,
    folds: dict[str, PhysicsParams],
) -> dict[str, Any]:
    """Writes report and numbers into a folder atomically; returns the numbers.

    Args:
        out: the folder.
        command: the command line of this run.
        holdout: share of the recordings that was held out.
        data: the recordings.
        before: physics before the fit.
        result: fit to all recordings that are not held out.
        folds: leave-one-map-out physics, by the UID of the map left out of the fit.

    Raises:
        UserError: if the folder cannot be written.
    """
    everything = [part for each in data.maps for part in (*each.fitted, *each.held_out)]
    models = {
        LEFT_OUT: errors([(part, folds[part.track.uid]) for part in everything]),
        HELD_OUT: errors([(part, result.physics) for part in data.held_out]),
        BEFORE: errors([(part, before) for part in everything]),
        CONSTANT: errors([(part, None) for part in everything]),
    }
    followed = [
        {"file": drive.race.file, "map": drive.map_name} | asdict(follow(each.track, drive.race, folds[each.track.uid]))
        for each in data.maps
        for drive in each.drives
    ]
    numbers = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "holdout": holdout,
        "recordings": [
            {"sha256": drive.sha256, "map": drive.map_name, "is_held_out": drive.is_held_out} for drive in data.drives
        ],
        "refused": dict(data.refused),
        "versions": library_versions(),
        "fit": {k: v for k, v in asdict(result).items() if k != "physics"},
        "physics": result.physics.model_dump(mode="json"),
        "folds": {uid: physics.model_dump(mode="json", include=set(FITTED)) for uid, physics in folds.items()},
        "spread": spread(list(folds.values())),
        "horizons_ms": HORIZONS_MS,
        "errors": table(models),
        "followed": followed,
    }
    template = Template(
        TEMPLATE.read_text(encoding="utf-8"), undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    page = template.render(
        command=command,
        numbers=numbers,
        num_windows=sum(map(len, everything)),
        times=[f"{ms / 1000:g} s" for ms in HORIZONS_MS],
        followed=followed,
        num_followed=sum(is_followed(race) for race in followed),
        fitted=FITTED,
        reasons=Counter(reason for _, reason in data.refused),
        before=before,
        after=result.physics,
    )
    with filled_folder(out) as folder:
        (folder / NUMBERS_FILE).write_text(json.dumps(numbers, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        (folder / REPORT_FILE).write_text(page, encoding="utf-8")
    return numbers


def spread(folds: Sequence[PhysicsParams]) -> dict[str, float]:
    """Returns the standard deviation over several fits of each parameter's logarithm, for a curve of its mean."""
    found = {}
    for name in FITTED:
        values = np.array([getattr(physics, name) for physics in folds], np.float64)
        logarithms = np.log(values if values.ndim == 1 else values[:, :, 1])
        found[name] = round(float(logarithms.reshape(len(folds), -1).mean(axis=1).std()), 3)
    return found


def is_followed(race: dict[str, Any]) -> bool:
    """True if a race of the report finished within 1 % of its recorded time."""
    return race["time_ms"] is not None and abs(race["time_ms"] / race["recorded_ms"] - 1.0) <= WITHIN


def table(models: dict[str, Errors]) -> list[dict[str, Any]]:
    """Returns one row each for all windows, flat asphalt, and every regime, speed range and map.

    A row has `kind` ("all", "regime", "speed" or "map") and `name`, and for every model with such windows `windows`
    (their number), `position_m` (median and 90th percentile at each horizon, None without data) and `yaw_rps` (median
    at the first horizon).
    """
    maps = dict.fromkeys(name for found in models.values() for name in found.map_name)
    flat = [REGIMES.index(name) for name in FLAT]
    groups = [("all", "all", lambda e: np.ones(len(e.regime), bool))]
    groups += [("regime", "flat asphalt", lambda e: np.isin(e.regime, flat))]
    groups += [("regime", name, lambda e, n=number: e.regime == n) for number, name in enumerate(REGIMES)]
    groups += [
        ("speed", f"{low} to {high} m/s", lambda e, a=low, b=high: (e.speed_mps >= a) & (e.speed_mps < b))
        for low, high in pairwise(SPEEDS_MPS)
    ]
    groups += [("map", name, lambda e, n=name: e.map_name == n) for name in maps]
    rows = []
    for kind, name, choose in groups:
        row: dict[str, Any] = {"kind": kind, "name": name}
        for model, found in models.items():
            chosen = choose(found)
            if chosen.any():
                row[model] = {
                    "windows": int(chosen.sum()),
                    "position_m": _quantiles(found.position_m[chosen]),
                    "yaw_rps": round(float(np.nanmedian(found.yaw_rps[chosen, 0])), 4),
                }
        if len(row) > 2:
            rows.append(row)
    return rows


def _quantiles(values: NDArray) -> list[list[float | None]]:
    """Returns the median and the 90th percentile at each horizon."""
    out: list[list[float | None]] = []
    for column in values.T:
        known = column[np.isfinite(column)]
        out.append([round(float(np.quantile(known, q)), 3) for q in (0.5, 0.9)] if len(known) else [None, None])
    return out
