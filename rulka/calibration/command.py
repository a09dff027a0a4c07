"""Implements `rulka calibrate`: gathers recordings, fits, reports and, if asked, writes the parameters."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rulka.calibration.fit import FITTED, FitResult, fit
from rulka.calibration.gather import gather
from rulka.calibration.report import LEFT_OUT, REPORT_FILE, is_followed, write_report
from rulka.calibration.windows import HORIZONS_MS, Windows, every_second
from rulka.datasets.from_recordings import find_recordings
from rulka.machine.errors import UserError
from rulka.machine.progress import Progress
from rulka.params import PARAMS_FILE, read_params
from rulka.params.writer import with_values
from rulka.simulator.params import PhysicsParams
from rulka.stages.outputs import check_file, new_file

MAX_EVALUATIONS = 60
"""Limit per fit; fits converge after some 40."""


def calibrate(folder: Path, *, holdout: float, out: Path, write: bool) -> dict[str, Any]:
    """Fits the simulator's physics to recordings.

    Args:
        folder: folder of recordings.
        holdout: share of recordings held out for the report.
        out: folder of the report.
        write: also write the fitted values to `params.yaml`.

    Returns:
        The numbers of the report as plain JSON, plus its path and whether the values were written.

    Raises:
        UserError: if there are too few usable recordings, or report or parameters cannot be written.
    """
    params = read_params()
    files = find_recordings(folder)
    if not files:
        message = f"no Gbx file is in {folder}" if folder.is_dir() else f"there is no folder {folder}"
        raise UserError(message, hint="Name a folder of TrackMania Forever replays.")
    if write:  # fails now, not after minutes of fitting
        check_file(PARAMS_FILE)
    with Progress("calibrate: reading", len(files), "files", stream=sys.stderr) as bar:
        data = gather(folder, holdout, bar.advance)
    before, folds = params.simulator.physics, {}
    with Progress("calibrate: fitting", None, "simulations", stream=sys.stderr) as bar:
        result = _fit(data.fitted(), before, bar.advance)
        for each in data.maps:
            windows = data.fitted(without=each)
            if not windows:
                message = f"without the recordings of {each.track.name!r} and those held out, none is left to fit"
                raise UserError(message, hint="Add recordings of another map, or hold out fewer.")
            folds[each.track.uid] = _fit(windows, before, bar.advance).physics
    command = f"rulka calibrate {folder.name} --holdout {holdout} --out {out.as_posix()}{' --write' if write else ''}"
    numbers = write_report(out, command, holdout, data, before, result, folds)
    if write:
        text = with_physics(PARAMS_FILE.read_text(encoding="utf-8"), result.physics)
        with new_file(PARAMS_FILE) as beside:
            beside.write_text(text, encoding="utf-8")
    return numbers | {"report": (out / REPORT_FILE).as_posix(), "is_written": write}


def _fit(windows: Sequence[Windows], physics: PhysicsParams, on_step: Callable[[], None]) -> FitResult:
    return fit([every_second(part) for part in windows], physics, MAX_EVALUATIONS, on_step)


def describe(found: dict[str, Any]) -> str:
    """Formats the result of `calibrate` for people."""
    lines = [f"maps left out, median and 90th percentile after {[ms / 1000 for ms in HORIZONS_MS]} s:"]
    for row in found["errors"]:
        if LEFT_OUT in row:
            values = ", ".join(f"{median} / {high} m" for median, high in row[LEFT_OUT]["position_m"])
            lines.append(f"  {row['kind']:8}{row['name'][:24]:26}{row[LEFT_OUT]['windows']:5} windows  {values}")
    num_followed = sum(is_followed(race) for race in found["followed"])
    lines.append(f"followed within 1 %: {num_followed} of {len(found['followed'])} races")
    not_written = "not written: add --write to put the values into params.yaml"
    written = f"written to {PARAMS_FILE}" if found["is_written"] else not_written
    return "\n".join([*lines, f"report  {found['report']}", written])


def with_physics(text: str, physics: PhysicsParams) -> str:
    """Returns the text of `params.yaml` with the fitted numbers in `simulator.physics` and all else unchanged."""
    return with_values(text, {("simulator", "physics", name): _rounded(getattr(physics, name)) for name in FITTED})


def _rounded(value: Any) -> Any:
    """Rounds a number, or nested tuples of numbers, to six significant digits."""
    return tuple(map(_rounded, value)) if isinstance(value, tuple) else float(f"{value:g}")
