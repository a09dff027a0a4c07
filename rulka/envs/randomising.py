"""Domain randomisation: each race draws its physics at its start."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np

from rulka.simulator.params import PhysicsParams

PHYSICS_SPREAD = {
    "sliding_push_mps2": 0.088,
    "locked_brake_mps2": 0.043,
    "locked_grip": 0.058,
    "turn_rate_rps": 0.005,
    "yaw_per_s": 0.009,
    "steer_per_s": 0.229,
    "steer_radius_m": 0.136,
    "steer_radius_s": 0.09,
    "stiffness_per_s": 0.035,
    "side_grip_mps2": 0.068,
    "slide_grip_mps2": 0.056,
    "excess_grip": 0.096,
    "axle_m": 0.065,
    "scrub": 0.139,
    "dirt_grip": 0.129,
    "dirt_slide": 0.033,
    "dirt_push": 0.055,
    "slope_loss": 0.146,
    "rolling": 0.079,
    "rest_m": 0.199,
    "travel_m": 0.093,
    "engine_brake_per_s": 0.006,
}
"""Standard deviations of the logarithms of fitted parameters, over leave-one-map-out fits
(docs/calibration/calibration.json); for a curve, that of its mean."""
NUM_VARIANTS = 16
"""Number of physics variants, assigned to races at random."""


def physics_variants(physics: PhysicsParams, scale: float) -> list[PhysicsParams]:
    """Returns random physics around the given one, spread by `scale` times `PHYSICS_SPREAD`; none if `scale` is 0."""
    draws = np.random.default_rng(0).standard_normal((NUM_VARIANTS if scale > 0.0 else 0, len(PHYSICS_SPREAD)))
    exponents = scale * draws * list(PHYSICS_SPREAD.values())
    variants = []
    for row in exponents.tolist():
        # Decimal's exponential is the same on every processor.
        factors = {name: float(Decimal(by).exp()) for name, by in zip(PHYSICS_SPREAD, row, strict=True)}
        changed = {name: _times(getattr(physics, name), factor) for name, factor in factors.items()}
        variants.append(PhysicsParams.model_validate(physics.model_dump() | changed))
    return variants


def _times(value: Any, factor: float) -> Any:
    """Multiplies a number, or the values of a curve, by a factor."""
    return value * factor if isinstance(value, float) else tuple((speed, height * factor) for speed, height in value)
