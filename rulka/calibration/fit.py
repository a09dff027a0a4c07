"""Fits physics by least squares over the windows, to bring simulated cars closest to recorded ones.

Every fitted number is positive, and the fit varies its logarithm. Residuals are the errors of position, velocity and
yaw rate within the first second, scaled by typical values. A robust loss limits the weight of windows with events
unknown to the simulator, such as a wall.
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
"""Fitted fields of `PhysicsParams` and their priors, where every fit starts: values from public descriptions of the car
or round numbers, so that nothing leaks from held-out recordings. The push without sliding, with turbo and during a gear
change is read off recordings to a tenth of a m/s2, as is gravity in the air. Grass and walls are too rare in recordings
to be fitted."""
FITTED = tuple(PRIORS)
FIT_HORIZONS_MS = HORIZONS_MS[:3]
POSITION_SCALE_M, VELOCITY_SCALE_MPS, YAW_SCALE_RPS = (0.06, 0.2, 0.8), (1.0, 2.0, 4.0), (0.06, 0.12, 0.24)
"""Errors that give a residual of 1, by horizon."""
STEP = 0.02
"""Relative step of the numerical derivatives; with smaller ones, the tick at which a car begins to slide adds noise."""
MAX_CHANGE = 3.0
"""Largest factor by which a number may grow or shrink."""
PRIOR = 0.1
"""Width of the prior: a number that changes by this share costs as much as a residual of 1, so numbers that the
recordings do not determine stay at their priors."""
FAR = 1000.0
"""Upper bound of a residual: a car that fell through the road carries no more information."""


@dataclass(frozen=True)
class FitResult:
    """Result of a fit.

    Attributes:
        physics: the fitted parameters, rounded to four digits.
        cost: cost at the priors and after the fit.
        num_windows: number of windows in the fit.
        num_evaluations: evaluations of the residuals, except those for derivatives.
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
        windows: windows of all maps.
        physics: source of all fields that are not fitted; the fit starts at `PRIORS`.
        max_evaluations: the solver's limit on evaluations.
        on_step: called before every simulation of all windows.
    """
    physics = PhysicsParams.model_validate(physics.model_dump() | PRIORS)
    prior = to_vector(physics)

    # The solver's steps are relative, so its variables must not be near 0: 1 stands for an unchanged logarithm.
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
    """Returns the residuals of all windows as one vector; 0 where there is no recorded sample."""
    moved_m, velocity, yaw = simulate(windows, physics, FIT_HORIZONS_MS)
    num = len(FIT_HORIZONS_MS)
    # Lengths, not coordinates: the robust loss should apply once per window, not once per axis.
    away = np.linalg.norm(moved_m - windows.moved_m[:, :num], axis=2) / POSITION_SCALE_M
    faster = np.linalg.norm(velocity - windows.velocity[:, :num], axis=2) / VELOCITY_SCALE_MPS
    turned = np.abs(yaw - windows.yaw[:, :num]) / YAW_SCALE_RPS
    found = np.concatenate([away, faster, turned], axis=1)
    return np.minimum(np.nan_to_num(found, nan=0.0, posinf=FAR), FAR).ravel()


def to_vector(physics: PhysicsParams) -> NDArray[np.float64]:
    """Returns the logarithms of all fitted numbers as one vector."""
    return np.log(np.concatenate([_numbers(physics, name) for name in FITTED]))


def to_physics(physics: PhysicsParams, vector: NDArray[np.float64]) -> PhysicsParams:
    """Returns `physics` with its fitted numbers replaced by those of a vector, rounded to four digits."""
    values, at, changed = np.exp(vector), 0, {}
    for name in FITTED:
        old = getattr(physics, name)
        size = len(_numbers(physics, name))
        new = [float(f"{value:.4g}") for value in values[at : at + size]]
        at += size
        if isinstance(old, float):
            changed[name] = new[0]
        else:
            changed[name] = tuple((speed, value) for (speed, _), value in zip(old, new, strict=True))
    return PhysicsParams.model_validate(physics.model_dump() | changed)


def _numbers(physics: PhysicsParams, name: str) -> NDArray[np.float64]:
    """Returns the fitted numbers of a field; for a curve its values, not its speeds."""
    value = np.atleast_1d(np.array(getattr(physics, name), np.float64))
    return value[:, 1] if value.ndim == 2 else value
