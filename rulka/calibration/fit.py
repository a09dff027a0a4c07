"""Least squares over the windows: which physics bring the simulated cars nearest to the recorded ones.

Every number that is fitted is positive, and its logarithm is what varies. Residuals are where the cars get to after
half a second and a second, and their velocities then, in units of what is typical; a robust loss keeps windows in which
something happened that the simulator does not know of, such as a wall, from deciding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from rulka.calibration.windows import HORIZONS_MS, Windows, simulate
from rulka.simulator.params import PhysicsParams

FITTED = (
    "turn_radius_m",
    "steer_per_s",
    "yaw_response_s",
    "grip_mps2",
    "grip_per_s",
    "slip_grip",
    "slip_response_s",
    "overturn",
    "max_slip_rad",
    "scrub",
    "dirt_grip",
    "dirt_push",
    "turbo_factor",
    "drag_per_m",
)
"""Fields of `PhysicsParams` that are fitted. What pushes and slows a car that does not slide is read off recordings to
a tenth of a m/s2 (a = gas x push(speed) - (1 - gas) x 0.315 x speed), as are gear changes and gravity in flight; grass
and braking are too rare to be fitted, and what springs and body do does not show in samples every 100 ms."""
FIT_HORIZONS_MS = HORIZONS_MS[:2]
POSITION_SCALE_M, VELOCITY_SCALE_MPS = (0.5, 1.5), (2.0, 3.0)
"""A residual of 1 at each horizon."""
STEP = 0.02
"""Relative step of the numerical derivatives; smaller ones see the ticks at which a car begins to slide."""
MAX_CHANGE = 3.0
"""No number may become larger or smaller by more than this factor."""
PRIOR = 0.1
"""A number that changes by this share costs as much as one window that is off by its scale: what the recordings do not
tell stays as it was."""


@dataclass(frozen=True)
class FitResult:
    """What a fit found.

    Attributes:
        physics: the fitted parameters, rounded to four digits.
        cost: before and after.
        num_windows: that were fitted.
        num_evaluations: of the residuals, those for derivatives not counted.
    """

    physics: PhysicsParams
    cost: tuple[float, float]
    num_windows: int
    num_evaluations: int


def fit(
    windows: Sequence[Windows], physics: PhysicsParams, max_evaluations: int, on_step: Callable[[], None]
) -> FitResult:
    """Fits physics to windows.

    Args:
        windows: of all maps.
        physics: where to begin.
        max_evaluations: trials of the solver.
        on_step: called after every simulation of all windows.
    """
    start = to_vector(physics)

    def residuals(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        on_step()
        tried = to_physics(physics, vector)
        parts = [window_residuals(part, tried) for part in windows]
        return np.concatenate([*parts, (vector - start) / PRIOR])

    first = residuals(start)
    limit = np.log(MAX_CHANGE)
    found = least_squares(
        residuals,
        start,
        bounds=(start - limit, start + limit),
        loss="soft_l1",
        diff_step=STEP,
        x_scale=1.0,
        max_nfev=max_evaluations,
    )
    before = float(np.sum(np.sqrt(1.0 + first**2) - 1.0))
    fitted = to_physics(physics, found.x)
    return FitResult(fitted, (before, float(found.cost)), sum(map(len, windows)), int(found.nfev))


def window_residuals(windows: Windows, physics: PhysicsParams) -> NDArray[np.float64]:
    """Returns the residuals of all windows in one row; 0 where nothing was recorded."""
    moved_m, velocity = simulate(windows, physics, FIT_HORIZONS_MS)
    num = len(FIT_HORIZONS_MS)
    away = (moved_m - windows.moved_m[:, :num]) / np.array(POSITION_SCALE_M)[:, None]
    faster = (velocity - windows.velocity[:, :num]) / np.array(VELOCITY_SCALE_MPS)[:, None]
    # Lengths, not coordinates: the loss shall bend once for a window, not once for each axis.
    lengths = np.concatenate([np.linalg.norm(away, axis=2), np.linalg.norm(faster, axis=2)])
    return np.nan_to_num(lengths, nan=0.0, posinf=1e3).ravel()


def to_vector(physics: PhysicsParams) -> NDArray[np.float64]:
    """Returns the logarithms of all fitted numbers in a row."""
    return np.log(np.concatenate([_numbers(physics, name) for name in FITTED]))


def to_physics(physics: PhysicsParams, vector: NDArray[np.float64]) -> PhysicsParams:
    """Returns physics with the fitted numbers of a vector, rounded to four digits; the others are those given."""
    values, at, changed = np.exp(vector), 0, {}
    for name in FITTED:
        old = getattr(physics, name)
        size = len(_numbers(physics, name))
        new = [float(f"{value:.4g}") for value in values[at : at + size]]
        at += size
        if isinstance(old, float):
            changed[name] = new[0]
        elif isinstance(old[0], tuple):
            changed[name] = tuple((speed, value) for (speed, _), value in zip(old, new, strict=True))
        else:
            changed[name] = tuple(new)
    return PhysicsParams.model_validate(physics.model_dump() | changed)


def _numbers(physics: PhysicsParams, name: str) -> NDArray[np.float64]:
    """Returns the numbers of a field that are fitted: of a curve its values, not its speeds."""
    value = np.atleast_1d(np.array(getattr(physics, name), np.float64))
    return value[:, 1] if value.ndim == 2 else value
