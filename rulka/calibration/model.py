"""Drives all windows at once with given physics, and compares where the cars get to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rulka.actions import TICK_MS
from rulka.calibration.windows import HORIZONS_MS, Windows, start_states
from rulka.observation import CAR
from rulka.params import PhysicsParams
from rulka.simulator import car as columns
from rulka.simulator import physics as kernels
from rulka.simulator.constants import constant_array, road_array, table_array

FREE_M = 1e6
"""The ground is only known where somebody drove, so no car is stopped for leaving it."""


def simulate(windows: Windows, physics: PhysicsParams, horizons_ms: Sequence[int]) -> tuple[NDArray, NDArray]:
    """Drives every window with its recorded inputs.

    Args:
        windows: where the cars set out.
        physics: parameters to try.
        horizons_ms: rising times at which the cars are looked at; among `HORIZONS_MS`.

    Returns:
        [W, H, 3] how far the cars came, and [W, H, 3] their velocities.
    """
    c = constant_array(physics, TICK_MS / 1000.0)
    c[[columns.OFF_ROAD_M, columns.FALL_M]], c[columns.CRASH_COSINE] = FREE_M, -2.0
    state = start_states(windows, physics)
    start = state[:, columns.X : columns.X + 3].copy()
    road, tables, scratch = road_array(windows.track), table_array(physics), np.zeros((2, columns.NUM_SCRATCH))
    controls = np.ascontiguousarray(windows.controls.transpose(1, 0, 2))
    no_gates = np.full(len(windows.track.gate_m), np.inf)
    moved, velocity, done = [], [], 0
    for horizon_ms in horizons_ms:
        inputs = controls[done : horizon_ms // TICK_MS]
        kernels.drive_inputs(state, inputs, road, no_gates, c, tables, scratch)
        done = horizon_ms // TICK_MS
        moved.append(state[:, columns.X : columns.X + 3] - start)
        velocity.append(state[:, columns.VX : columns.VX + 3].copy())
    return np.stack(moved, axis=1), np.stack(velocity, axis=1)


def constant_velocity(windows: Windows) -> tuple[NDArray, NDArray]:
    """Returns what `simulate` returns, for cars that keep their velocity."""
    velocity = windows.rows[:, None, CAR["velocity"]].astype(np.float64)
    seconds = np.array(HORIZONS_MS)[None, :, None] / 1000.0
    return velocity * seconds, np.repeat(velocity, len(HORIZONS_MS), axis=1)
