"""How far simulated cars are from recorded ones: measured, and written as a page, as JSON and as a plot of paths."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from numpy.typing import NDArray

from rulka.calibration.fit import FITTED, FitResult
from rulka.calibration.gather import Material
from rulka.calibration.windows import HORIZONS_MS, SURFACES, Windows, constant_velocity, simulate
from rulka.observation import CAR
from rulka.outputs import filled_folder
from rulka.provenance import library_versions
from rulka.simulator.params import PhysicsParams

REPORT_FILE, NUMBERS_FILE, PLOT_FILE = "report.md", "calibration.json", "paths.png"
TEMPLATE = "report.md.jinja"
FITTED_MODEL, BEFORE_MODEL, CONSTANT_MODEL = "fitted", "before", "constant velocity"
NUM_PANELS, PATHS_PER_PANEL = 4, 14
REAL_COLOUR, SIMULATED_COLOUR = "#1b1f24", "#d55e00"


def write_report(
    out: Path, command: str, holdout: float, material: Material, before: PhysicsParams, result: FitResult
) -> list[dict[str, Any]]:
    """Writes report, numbers and plot into a folder, all or none; returns the rows of the table.

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
    held = material.part(is_held_out=True)
    rows = table(held, {FITTED_MODEL: result.physics, BEFORE_MODEL: before, CONSTANT_MODEL: None})
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
    templates = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=templates, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True, autoescape=False
    )
    with filled_folder(out) as folder:
        (folder / NUMBERS_FILE).write_text(json.dumps(numbers, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        _plot(folder / PLOT_FILE, held, result.physics)
        text = environment.get_template(TEMPLATE).render(
            command=command,
            numbers=numbers,
            rows=rows,
            models=(FITTED_MODEL, BEFORE_MODEL, CONSTANT_MODEL),
            times=[f"{ms / 1000:g} s" for ms in HORIZONS_MS],
            fitted=FITTED,
            before=before,
            after=result.physics,
            num_refused=material.num_refused,
        )
        (folder / REPORT_FILE).write_text(text, encoding="utf-8")
    return rows


def _plot(path: Path, held: Sequence[Windows], physics: PhysicsParams) -> None:
    """Draws recorded paths and the paths that cars drive from them, for the longest held-out recordings."""
    mpl.use("Agg")
    from matplotlib import pyplot

    steps_ms = tuple(range(100, HORIZONS_MS[-1] + 1, 100))
    races = sorted(
        ((part, race) for part in held for race in np.unique(part.race)), key=lambda x: -(x[0].race == x[1]).sum()
    )
    del races[NUM_PANELS:]
    num_rows = -(-len(races) // 2)
    size = (11.0, 4.4 * num_rows)
    figure, places = pyplot.subplots(num_rows, 2, figsize=size, dpi=110, layout="constrained", squeeze=False)
    for axes, (part, race) in zip(places.flat, races, strict=False):
        chosen = part.of_races([int(race)])
        position = chosen.rows[:, CAR["position"]][:, [0, 2]]
        axes.plot(*position.T, color=REAL_COLOUR, linewidth=2.2, alpha=0.85, label="recorded")
        every = max(1, len(chosen) // PATHS_PER_PANEL)
        moved, _ = simulate(chosen, physics, steps_ms)
        for k in range(0, len(chosen) - 10, every):
            drawn = np.concatenate([position[k : k + 1], position[k] + moved[k][:, [0, 2]]])
            axes.plot(*drawn.T, color=SIMULATED_COLOUR, linewidth=1.4, label="simulated, 2 s" if k == 0 else None)
            axes.plot(*position[k], "o", color=SIMULATED_COLOUR, markersize=3.5)
        axes.set_aspect("equal", adjustable="datalim")
        axes.set_title(part.track.name)
        axes.set_xlabel("x, m")
        axes.set_ylabel("z, m")
    for axes in places.flat[len(races) :]:
        axes.axis("off")
    places.flat[0].legend(frameon=False)
    figure.savefig(path)
    pyplot.close(figure)


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
