"""The built-in driver: pure pursuit of a line parallel to the centreline, at a speed planned ahead.

It drives the demonstrations if there are no recordings. Each driver has a skill: how close to the limit it drives, how
far it looks ahead, which line it takes and how often it slips, so that a field of drivers varies like people do. It
does not know racing lines, so a driver that does can beat it. Pure pursuit: Coulter 1992, CMU-RI-TR-92-01.

Dimensions: N cars, Z zones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.actions import ActionTable
from rulka.contracts.observation import CAR, ZONE_SPACING_M
from rulka.simulator.params import DriverParams, PhysicsParams
from rulka.simulator.simulator import Simulator
from rulka.tracks.progress import zone_frames
from rulka.tracks.track import Track

Floats = NDArray[np.float64]

SLOWEST_MPS = 8.0
"""Lower bound of every planned speed."""
BEND_REACH = 8
"""Curvature is measured over this many zones each way: 4 m."""
COAST_MPS, BRAKE_MPS = 0.5, 2.0
"""Excess over the planned speed at which the driver releases the gas, and at which it brakes."""
LOCK_SHARE, CREST_SHARE, BRAKE_SHARE = 0.88, 1.5, 0.75
"""At pace 1: share of full lock used in the tightest part of a bend, share of gravity unloaded by a crest (above 1 the
car flies), and share of the braking power used."""
SPEEDS = np.arange(256.0)
"""Speeds in m/s at which curves are sampled."""
REACTION_S = 0.12
"""The driver looks up the planned speed for its position after this time."""


@dataclass(frozen=True)
class Skills:
    """Skills of N drivers.

    Attributes:
        pace: [N] share of the possible speed in bends, and of the possible braking, that the plan uses.
        look_ahead_s: [N] time to the pursued point.
        slip_chance: [N] probability that a decision repeats the previous one.
        line_m: [N] metres left of the centreline that the driver aims at.
    """

    pace: Floats
    look_ahead_s: Floats
    slip_chance: Floats
    line_m: Floats


def sample_skills(num_drivers: int, driver: DriverParams, seed: int) -> Skills:
    """Samples the skills of a field of drivers; driver k depends only on the seed and k."""
    draws = np.array([np.random.default_rng([seed, k]).uniform(size=4) for k in range(num_drivers)]).reshape(-1, 4).T
    talent, look, hand, line = draws
    return Skills(
        pace=driver.pace_low + talent * (driver.pace_high - driver.pace_low),
        look_ahead_s=0.34 + 0.2 * look,
        slip_chance=driver.slip_chance * hand,
        line_m=driver.line_m * (2.0 * line - 1.0),
    )


class PurePursuitDriver:
    """Drives a batch of cars, each with its own skill and slips, independently of the others."""

    def __init__(self, track: Track, physics: PhysicsParams, skills: Skills, seed: int) -> None:
        num_drivers = len(skills.pace)
        self._skills = skills
        self._zones = track.exact_zones
        self._left = zone_frames(track)[:, 3:6]
        self._half_width_m = np.pad(track.width_m / 2.0, (0, len(self._zones) - track.num_zones), mode="edge")
        self._radii = full_lock_radius(physics)
        self._plans = np.stack([speed_plan(track, physics, float(pace)) for pace in skills.pace])
        self._last = np.zeros(num_drivers, np.int64)
        self._steer_remainder = np.zeros(num_drivers)
        self._key = _mixed(np.arange(num_drivers, dtype=np.uint64) + _mixed(np.array([seed], np.uint64)))
        self._decision = 0

    def actions(self, simulator: Simulator) -> NDArray[np.int64]:
        """Returns [N] action indices for the next decision, given the cars' current states.

        Keys are binary, so the rounding error of a decision's steering is carried over to the next.
        """
        gas, brake, wanted = self._wanted(simulator)
        wanted = wanted + self._steer_remainder
        steer = np.where(np.abs(wanted) > 0.5, np.sign(wanted), 0.0)
        self._steer_remainder = np.clip(wanted - steer, -0.5, 0.5)
        index = simulator.table.index_of(gas, brake, steer, 0.5)
        slips = _uniform(self._key, self._decision) < self._skills.slip_chance
        self._decision += 1
        self._last = np.where(slips, self._last, index)
        return self._last

    def advice(self, simulator: Simulator) -> NDArray[np.float32]:
        """Returns [N, A] the share of the next decision for which to hold each action; rows sum to 1.

        It depends only on the cars' current states, not on earlier decisions, so it also works where another policy
        has driven. Half lock means holding the key for half of the time.
        """
        return action_shares(simulator.table, *self._wanted(simulator))

    def _wanted(self, simulator: Simulator) -> tuple[NDArray[np.bool_], NDArray[np.bool_], Floats]:
        """Returns [N] each: gas on, brake on, and the steering from -1 to 1 (right) for the bend."""
        speed = speeds_of(simulator)
        soon = zone_ahead(self._zones, simulator.zone_index, REACTION_S * speed)
        excess = speed - self._plans[np.arange(len(speed)), soon]
        zone = zone_ahead(self._zones, simulator.zone_index, 6.0 + self._skills.look_ahead_s * speed)
        room = np.maximum(self._half_width_m[zone] - 2.0, 0.0)
        target = self._zones[zone] + np.clip(self._skills.line_m, -room, room)[:, None] * self._left[zone]
        aside, distance = seen_from(simulator, target)
        radius_m = np.interp(speed, SPEEDS, self._radii)
        return excess < COAST_MPS, excess > BRAKE_MPS, np.clip(-(2.0 * aside / distance**2) * radius_m, -1.0, 1.0)


def action_shares(table: ActionTable, gas: NDArray, brake: NDArray, steer: Floats) -> NDArray[np.float32]:
    """Returns [N, A] the share of a decision for which to hold each action, so that its mean steering is `steer`."""
    shares = np.zeros((len(steer), table.num_actions), np.float32)
    cars, turned = np.arange(len(steer)), np.abs(steer)
    shares[cars, table.index_of(gas, brake, np.sign(steer), 0.5)] += turned
    shares[cars, table.index_of(gas, brake, np.zeros_like(steer), 0.5)] += 1.0 - turned
    return shares


def speeds_of(cars: Simulator) -> Floats:
    """Returns the speeds [N] of cars, m/s."""
    return np.linalg.norm(cars.cars[:, CAR["velocity"]].astype(np.float64), axis=1)


def zone_ahead(zones: Floats, zone_index: NDArray[np.int64], distance_m: Floats) -> NDArray[np.int64]:
    """Returns the zones [N] that lie `distance_m` [N] ahead of `zone_index` [N]; at most the last of `zones` [Z, 3]."""
    return np.minimum(zone_index + (distance_m / ZONE_SPACING_M).astype(np.int64), len(zones) - 1)


def seen_from(cars: Simulator, point: Floats) -> tuple[Floats, Floats]:
    """Returns each car's offset to its world point [N, 3]: metres left [N], and horizontal distance [N], at least 1."""
    rotation = cars.cars[:, CAR["rotation"]].reshape(-1, 3, 3).astype(np.float64)
    local = np.einsum("nij,ni->nj", rotation, point - cars.cars[:, CAR["position"]].astype(np.float64))
    return local[:, 0], np.maximum(np.hypot(local[:, 0], local[:, 2]), 1.0)


def speed_plan(track: Track, physics: PhysicsParams, pace: float) -> Floats:
    """Plans the speed at each zone.

    Args:
        track: the track.
        physics: the car's physics.
        pace: share of the possible speed, and of the possible braking, to use.

    Returns:
        [Z] m/s: the lower of the limits set by the bend at each zone and by braking for the bends ahead.
    """
    turn, rise = bends(track)
    radii = np.maximum.accumulate(full_lock_radius(physics))
    plan = np.interp(LOCK_SHARE / np.maximum(np.abs(turn), 1e-6), radii, SPEEDS)
    # A crest unloads the wheels, and the bend must make do with the remaining grip.
    need = np.abs(turn) / np.interp(plan, *np.array(physics.side_grip_mps2).T)
    held = need + np.maximum(-rise, 0.0) / (CREST_SHARE * physics.gravity_mps2)
    plan = np.maximum(pace * np.minimum(plan, 1.0 / np.sqrt(np.maximum(held, 1e-6))), SLOWEST_MPS)
    for zone in range(len(plan) - 2, -1, -1):
        after = plan[zone + 1]
        slowing = pace * (BRAKE_SHARE * physics.locked_brake_mps2 + physics.engine_brake_per_s * after)
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


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hashes integers with splitmix64 (Steele et al. 2014): stateless random numbers."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _uniform(key: NDArray[np.uint64], count: int) -> Floats:
    """Returns a uniform number in [0, 1) for each pair of key and count."""
    bits = _mixed(key ^ _mixed(np.array([count], np.uint64))) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53
