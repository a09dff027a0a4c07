"""The speed that a plan changes: limits by bends and crests, and by braking for them.

Dimension: Z zones.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.observation import ZONE_SPACING_M
from rulka.simulator.params import PhysicsParams
from rulka.tracks.progress import zone_frames
from rulka.tracks.track import Track

Floats = NDArray[np.float64]

SLOWEST_MPS = 8.0
"""Lower bound of every planned speed."""
BEND_REACH = 8
"""Curvature is measured over this many zones each way: 4 m."""
LOCK_SHARE, BRAKE_SHARE = 0.88, 0.75
"""Share of full lock used in the tightest part of a bend, and share of the braking power used."""
CREST_SHARES, FLIGHT_TURN, FLIGHT_ZONES = (3.0, 1.0), 1.0 / 150.0, 60
"""Share of gravity that a crest may unload (above 1 the car flies): before a straight, and before a bend of at least
this curvature (1/m) in the zones after it, 30 m."""
SPEEDS = np.arange(256.0)
"""Speeds in m/s at which curves are sampled."""


def speed_plan(track: Track, physics: PhysicsParams) -> Floats:
    """Plans the speed at each zone.

    Args:
        track: the track.
        physics: the car's physics.

    Returns:
        [Z] m/s: the lower of the limits set by the bend at each zone and by braking for the bends ahead.
    """
    turn, rise = bends(track)
    radii = np.maximum.accumulate(full_lock_radius(physics))
    plan = np.interp(LOCK_SHARE / np.maximum(np.abs(turn), 1e-6), radii, SPEEDS)
    # A crest unloads the wheels, and the bend must make do with the remaining grip.
    need = np.abs(turn) / np.interp(plan, *np.array(physics.side_grip_mps2).T)
    ahead = np.concatenate([np.abs(turn), np.zeros(FLIGHT_ZONES - 1)])
    lands_on = np.lib.stride_tricks.sliding_window_view(ahead, FLIGHT_ZONES).max(axis=1)
    unloaded = np.interp(lands_on, [0.0, FLIGHT_TURN], CREST_SHARES) * physics.gravity_mps2
    held = need + np.maximum(-rise, 0.0) / unloaded
    plan = np.maximum(np.minimum(plan, 1.0 / np.sqrt(np.maximum(held, 1e-6))), SLOWEST_MPS)
    for zone in range(len(plan) - 2, -1, -1):
        after = plan[zone + 1]
        slowing = BRAKE_SHARE * physics.locked_brake_mps2 + physics.engine_brake_per_s * after
        plan[zone] = min(plan[zone], np.sqrt(after**2 + 2.0 * ZONE_SPACING_M * slowing))
    return plan


def full_lock_radius(physics: PhysicsParams) -> Floats:
    """Returns [256] metres: the turning radius at full lock without sliding, at 0, 1, ... m/s."""
    speed = np.maximum(SPEEDS, 1.0)
    radius = speed / np.interp(speed, *np.array(physics.turn_rate_rps).T)
    return np.maximum(radius, speed**2 / np.interp(speed, *np.array(physics.side_grip_mps2).T))


def bends(track: Track) -> tuple[Floats, Floats]:
    """Returns the line's curvature [Z] to the left and [Z] upwards in the road's frame, 1/m, averaged over 8 m."""
    tangent, left, normal = np.split(zone_frames(track), 3, axis=1)
    change = np.zeros_like(tangent)
    change[BEND_REACH:-BEND_REACH] = tangent[2 * BEND_REACH :] - tangent[: -2 * BEND_REACH]
    change /= 2 * BEND_REACH * ZONE_SPACING_M
    return (change * left).sum(axis=1), (change * normal).sum(axis=1)
