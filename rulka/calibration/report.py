"""How far simulated cars are from recorded ones: measured, and written as a page and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import StrictUndefined, Template
from numpy.typing import NDArray

from rulka.calibration.fit import FITTED, FitResult
from rulka.calibration.gather import Material
from rulka.calibration.windows import HORIZONS_MS, SURFACES, Windows, constant_velocity, simulate
from rulka.outputs import filled_folder
from rulka.provenance import library_versions
from rulka.simulator.params import PhysicsParams

REPORT_FILE, NUMBERS_FILE = "report.md", "calibration.json"
TEMPLATE = Path(__file__).with_name("report.md.jinja")
FITTED_MODEL, BEFORE_MODEL, CONSTANT_MODEL = "fitted", "before", "constant velocity"


def write_report(
    out: Path, command: str, holdout: float, material: Material, before: PhysicsParams, result: FitResult
) -> dict[str, Any]:
    """Writes report and numbers into a folder, both or none; returns the numbers.

    Args:
        out: the folder.
        command: that was typed.
        holdout: share of the recordings that was held out.
        material: the recordings.
        before: physics before the fit.
        result: of the fit.

    Raises:
        OutputError: if the folder cannot be written.
    """
    models = {FITTED_MODEL: result.physics, BEFORE_MODEL: before, CONSTANT_MODEL: None}
    rows = table(material.held_out, models)
    numbers = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "holdout": holdout,
        "recordings": [
            {"sha256": drive.sha256, "map": drive.map_name, "is_held_out": drive.is_held_out}
            for drive in material.drives
        ],
        "versions": library_versions(),
        "fit": {k: v for k, v in asdict(result).items() if k != "physics"},
        "physics": result.physics.model_dump(mode="json"),
        "horizons_ms": HORIZONS_MS,
        "held_out": rows,
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    template = Template(text, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    page = template.render(
        command=command,
        numbers=numbers,
        rows=rows,
        models=tuple(models),
        times=[f"{ms / 1000:g} s" for ms in HORIZONS_MS],
        fitted=FITTED,
        before=before,
        after=result.physics,
        num_refused=material.num_refused,
    )
    with filled_folder(out) as folder:
        (folder / NUMBERS_FILE).write_text(json.dumps(numbers, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        (folder / REPORT_FILE).write_text(page, encoding="utf-8")
    return numbers


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
    groups = [("all", "all", np.ones(len(surface), bool))]
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
