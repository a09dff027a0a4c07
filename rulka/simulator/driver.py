"""The built-in driver: pure pursuit of the centreline with a planned speed, more or less skilled.

It makes the demonstrations where there are no recordings. A skill says how much of the grip a driver dares to use,
how far ahead it looks, how late it reacts and how often its hand slips, so that a field of drivers spreads like a
field of people. Source of pure pursuit: Coulter 1992, CMU-RI-TR-92-01.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rulka.observation import CAR, ZONE_SPACING_M
from rulka.params import DriverParams, PhysicsParams
from rulka.simulator.simulator import Simulator
from rulka.tracks.track import Track


@dataclass(frozen=True)
class Skills:
    """How well each of N drivers drives.

    Attributes:
        grip_share: [N] share of the tyres' grip that the speed plan uses.
        look_ahead_s: [N] seconds of driving at which the pursued point lies ahead.
        slip_chance: [N] chance that a decision is left as it was.
        line_m: [N] how far left of the centreline the driver aims.
    """

    grip_share: NDArray[np.float64]
    look_ahead_s: NDArray[np.float64]
    slip_chance: NDArray[np.float64]
    line_m: NDArray[np.float64]


def sample_skills(num_drivers: int, driver: DriverParams, rng: np.random.Generator) -> Skills:
    """Draws a field of drivers between the weakest and the strongest that the parameters allow."""
    talent = rng.beta(2.0, 2.0, num_drivers)
    return Skills(
        grip_share=driver.grip_share_low + talent * (driver.grip_share_high - driver.grip_share_low),
        look_ahead_s=rng.uniform(0.35, 0.55, num_drivers),
        slip_chance=driver.slip_chance * (1.0 - 0.5 * talent),
        line_m=rng.uniform(-driver.line_m, driver.line_m, num_drivers),
    )


class PurePursuitDriver:
    """Drives a batch of cars; each has its own skill and its own slips."""

    def __init__(self, track: Track, physics: PhysicsParams, skills: Skills, rng: np.random.Generator) -> None:
        self._skills, self._rng = skills, rng
        self._zones = track.zones.astype(np.float64)
        self._curvature = _curvature(self._zones)
        self._physics = physics
        self._plans = np.stack([speed_plan(self._curvature, physics, share) for share in skills.grip_share])
        self._last = np.zeros(len(skills.grip_share), np.int64)

    def actions(self, simulator: Simulator) -> NDArray[np.int64]:
        """Returns [N] action indices for the cars as they stand."""
        position = simulator.cars[:, CAR["position"]].astype(np.float64)
        rotation = simulator.cars[:, CAR["rotation"]].reshape(-1, 3, 3).astype(np.float64)
        velocity = simulator.cars[:, CAR["velocity"]].astype(np.float64)
        speed = np.linalg.norm(velocity, axis=1)
        target = self._target(simulator.zone_index, speed)
        local = np.einsum("nij,ni->nj", rotation, target - position)
        angle = np.arctan2(local[:, 0], np.maximum(local[:, 2], 1e-3))
        # A key is all or nothing: press it only when the wanted turn is a fair share of what the car would do.
        wanted = 2.0 * np.sin(angle) / np.maximum(np.linalg.norm(local, axis=1), 1.0)
        able = 1.0 / (self._physics.turn_radius_m + self._physics.turn_radius_s * speed)
        steer = np.where(np.abs(wanted) > 0.35 * able, -np.sign(wanted), 0.0)
        ahead = np.minimum(simulator.zone_index + (0.1 * speed / ZONE_SPACING_M).astype(np.int64), len(self._zones) - 1)
        planned = self._plans[np.arange(len(speed)), ahead]
        index = simulator.table.index_of(speed < planned, speed > planned + 1.5, steer, 0.5)
        slips = self._rng.random(len(speed)) < self._skills.slip_chance
        self._last = np.where(slips, self._last, index)
        return self._last

    def _target(self, zone_index: NDArray[np.int64], speed: NDArray[np.float64]) -> NDArray[np.float64]:
        ahead_m = 5.0 + self._skills.look_ahead_s * speed
        zone = np.minimum(zone_index + (ahead_m / ZONE_SPACING_M).astype(np.int64), len(self._zones) - 2)
        along = self._zones[zone + 1] - self._zones[zone]
        left = np.stack([along[:, 2], np.zeros(len(along)), -along[:, 0]], axis=1)
        left /= np.linalg.norm(left, axis=1, keepdims=True)
        return self._zones[zone] + self._skills.line_m[:, None] * left


def speed_plan(curvature: NDArray[np.float64], physics: PhysicsParams, grip_share: float) -> NDArray[np.float64]:
    """Returns [Z] the speed at each zone that bends ahead allow: grip in the bend, braking before it."""
    grip = grip_share * physics.grip_mps2
    bend = np.maximum(np.abs(curvature) - grip_share * physics.grip_per_m, 1e-6)
    speed = np.minimum(np.sqrt(grip / bend), physics.top_speed_mps)
    gain = 2.0 * ZONE_SPACING_M * 0.8 * grip_share * physics.brake_mps2
    for zone in range(len(speed) - 2, -1, -1):
        speed[zone] = min(speed[zone], np.sqrt(speed[zone + 1] ** 2 + gain))
    return speed


def _curvature(zones: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns [Z] horizontal curvature (1/m) from headings 4 m apart."""
    heading = np.unwrap(np.arctan2(*np.diff(zones[:, [0, 2]], axis=0).T))
    reach = 8
    turned = np.zeros(len(zones))
    turned[reach:-reach] = heading[2 * reach - 1 :] - heading[: -2 * reach + 1]
    return turned / (2 * reach * ZONE_SPACING_M)
