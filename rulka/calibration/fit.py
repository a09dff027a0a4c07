"""Least squares over the windows: which physics bring the simulated cars nearest to the recorded ones.

Every number that is fitted is positive, and its logarithm is what varies. Residuals are where the cars get to within a
second, and their velocities and yaw rates then, in units of what is typical; a robust loss keeps windows in which
something happened that the simulator does not know of, such as a wall, from deciding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from rulka.calibration.windows import HORIZONS_MS, Windows, simulate
from rulka.simulator.params import PhysicsParams

PRIORS: dict[str, Any] = {
    "sliding_push_mps2": 8.0,
    "locked_brake_mps2": 15.0,
    "locked_grip": 0.3,
    "turn_rate_rps": ((0.0, 0.01), (10.0, 0.95), (25.0, 1.1), (45.0, 1.1), (70.0, 1.1), (100.0, 1.1), (150.0, 1.1)),
    "yaw_per_s": 6.0,
    "steer_per_s": 20.0,
    "steer_radius_m": 2.0,
    "steer_radius_s": 0.85,
    "stiffness_per_s": 20.0,
    "side_grip_mps2": ((0.0, 250.0), (28.0, 250.0), (80.0, 250.0), (139.0, 250.0)),
    "slide_grip_mps2": ((28.0, 110.0), (139.0, 80.0)),
    "excess_grip": 0.018,
    "axle_m": 1.2,
    "scrub": 0.01,
    "dirt_grip": 0.5,
    "dirt_slide": 0.35,
    "dirt_push": 1.0,
    "slope_loss": 0.1,
    "rolling": 0.02,
    "rest_m": 0.02,
    "travel_m": 0.2,
    "engine_brake_per_s": 0.3,
}
"""Fields of `PhysicsParams` that are fitted, and where every fit begins: what public descriptions of the car say, or a
round number, so that a fit knows nothing of recordings that are left out of it. What pushes a car that does not slide,
with turbo and during a gear change, is read off recordings to a tenth of a m/s2, as is gravity in the air. Grass and
walls are too rare in them to be fitted."""
FITTED = tuple(PRIORS)
FIT_HORIZONS_MS = HORIZONS_MS[:3]
POSITION_SCALE_M, VELOCITY_SCALE_MPS, YAW_SCALE_RPS = (0.06, 0.2, 0.8), (1.0, 2.0, 4.0), (0.06, 0.12, 0.24)
"""A residual of 1 at each horizon."""
STEP = 0.02
"""Step of the numerical derivatives, a share of each number; smaller ones see the ticks at which a car begins to
slide."""
MAX_CHANGE = 3.0
"""No number may become larger or smaller by more than this factor."""
PRIOR = 0.1
"""A number that changes by this share costs as much as one window that is off by its scale: what the recordings do not
tell stays at its prior."""
FAR = 1000.0
"""A residual is not taken to be larger: a car that fell through the road says no more."""


@dataclass(frozen=True)
class FitResult:
    """What a fit found.

    Attributes:
        physics: the fitted parameters, rounded to four digits.
        cost: at the priors and after.
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
        physics: what is not fitted is of these; a fit begins at `PRIORS`.
        max_evaluations: trials of the solver.
        on_step: called after every simulation of all windows.
    """
    physics = PhysicsParams.model_validate(physics.model_dump() | PRIORS)
    prior = to_vector(physics)

    # The solver's steps are relative to what it varies, so that must not be near 0: 1 is no change of the logarithm.
    def residuals(change: NDArray[np.float64]) -> NDArray[np.float64]:
        on_step()
        tried = to_physics(physics, prior + change - 1.0)
        parts = [window_residuals(part, tried) for part in windows]
        return np.concatenate([*parts, (change - 1.0) / PRIOR])

    start = np.ones_like(prior)
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
    fitted = to_physics(physics, prior + found.x - 1.0)
    return FitResult(fitted, (before, float(found.cost)), sum(map(len, windows)), int(found.nfev))


def window_residuals(windows: Windows, physics: PhysicsParams) -> NDArray[np.float64]:
    """Returns the residuals of all windows in one row; 0 where nothing was recorded."""
    moved_m, velocity, yaw = simulate(windows, physics, FIT_HORIZONS_MS)
    num = len(FIT_HORIZONS_MS)
    # Lengths, not coordinates: the loss shall bend once for a window, not once for each axis.
    away = np.linalg.norm(moved_m - windows.moved_m[:, :num], axis=2) / POSITION_SCALE_M
    faster = np.linalg.norm(velocity - windows.velocity[:, :num], axis=2) / VELOCITY_SCALE_MPS
    turned = np.abs(yaw - windows.yaw[:, :num]) / YAW_SCALE_RPS
    found = np.concatenate([away, faster, turned], axis=1)
    return np.minimum(np.nan_to_num(found, nan=0.0, posinf=FAR), FAR).ravel()


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
