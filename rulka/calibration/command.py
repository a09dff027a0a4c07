"""What `rulka calibrate` does: gathers, fits, reports, and writes the parameters where it is asked to."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from rulka.calibration.fit import FITTED, fit
from rulka.calibration.gather import CalibrationError, gather
from rulka.calibration.report import FITTED_MODEL, write_report
from rulka.calibration.windows import HORIZONS_MS
from rulka.datasets.from_recordings import find_recordings
from rulka.params import PARAMS_FILE, PhysicsParams, read_params
from rulka.progress import Progress

MAX_EVALUATIONS = 15
LINE_WIDTH = 110


def calibrate(folder: Path, *, holdout: float, out: Path, write: bool) -> str:
    """Fits the simulator's physics to recordings; returns what was found as text.

    Args:
        folder: of recordings.
        holdout: share of them that is used for the report only.
        out: folder of the report.
        write: also put the fitted values into `params.yaml`.

    Raises:
        CalibrationError: if there are too few usable recordings.
    """
    params = read_params()
    files = find_recordings(folder)
    if not files:
        message = f"no Gbx file is in {folder}"
        raise CalibrationError(message, hint="Name a folder of TrackMania Forever replays.")
    with Progress("calibrate: reading", len(files), "files", stream=sys.stderr) as bar:
        material = gather(folder, holdout, bar.advance)
    with Progress("calibrate: fitting", None, "simulations", stream=sys.stderr) as bar:
        result = fit(material.part(is_held_out=False), params.simulator.physics, MAX_EVALUATIONS, bar.advance)
    rows = write_report(out, folder, holdout, material, params.simulator.physics, result)
    if write:
        PARAMS_FILE.write_text(with_physics(PARAMS_FILE.read_text(encoding="utf-8"), result.physics), encoding="utf-8")
    return _summary(rows, out, write)


def with_physics(text: str, physics: PhysicsParams) -> str:
    """Returns `params.yaml` with the fitted numbers of `simulator.physics` replaced; all else stays as it is."""
    for name in FITTED:
        pattern = rf"(?m)^(    {name}: )([^#\n]*?(?:\n {{8,}}[^\n]*?)*?)( *#[^\n]*)?$(?=\n    ? ?\w|\n  \w)"
        text, count = re.subn(pattern, lambda m, n=name: f"{m[1]}{_yaml(getattr(physics, n))}{m[3] or ''}", text)
        if count != 1:
            message = f"simulator.physics.{name} cannot be found in {PARAMS_FILE}"
            raise CalibrationError(message, hint="Lay the file out as in the repository: one key a line.")
    return text


def _yaml(value: Any) -> str:
    if not isinstance(value, tuple):
        return f"{value:g}"
    lines, line = [], "["
    for number, (speed, at_speed) in enumerate(value):
        item = f"[{speed:g}, {at_speed:g}]" + ("]" if number == len(value) - 1 else ",")
        if len(line) + len(item) + 20 > LINE_WIDTH:
            lines.append(line.rstrip())
            line = " " * 8
        line += item + " "
    return "\n".join([*lines, line.rstrip()])


def _summary(rows: list[dict[str, Any]], out: Path, write: bool) -> str:
    lines = [f"held-out recordings, median and 90th percentile after {[ms / 1000 for ms in HORIZONS_MS]} s:"]
    for row in rows:
        values = ", ".join(f"{median} / {high} m" for median, high in row[FITTED_MODEL]["position_m"])
        lines.append(f"  {row['kind']:8}{row['name'][:24]:26}{row['windows']:5} windows  {values}")
    lines.append(f"report  {(out / 'report.md').as_posix()}")
    lines += [f"written to {PARAMS_FILE}"] if write else ["not written: add --write to put the values into params.yaml"]
    return "\n".join(lines)
