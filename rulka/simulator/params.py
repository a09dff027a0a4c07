"""Parameters of the simulated car, its camera and the built-in driver: section `simulator`, and part of `races`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, Field

from rulka.contracts.section import LateralM, NotNegative, Positive, Section, Share, key, wrong_order

Three = Annotated[tuple[Positive, Positive, Positive], Field(strict=False)]
Four = Annotated[tuple[Positive, Positive, Positive, Positive], Field(strict=False)]
Five = Annotated[tuple[Positive, Positive, Positive, Positive, Positive], Field(strict=False)]
Point = Annotated[tuple[NotNegative, Positive], Field(strict=False)]


def _rising(points: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    speeds = [speed for speed, _ in points]
    if speeds != sorted(set(speeds)):
        message = f"speeds of a curve must rise, got {speeds}"
        raise ValueError(message)
    return points


Curve = Annotated[tuple[Point, ...], Field(min_length=1, strict=False), AfterValidator(_rising)]
"""Points [speed in m/s, value] by rising speed; linear between points, constant outside them."""


class PhysicsParams(Section):
    """Car physics; see `rulka.simulator.physics`."""

    gravity_mps2: Positive = key(29.43, "gravity of a car on its wheels")
    air_gravity_mps2: Positive = key(24.8, "gravity of a car in the air")
    air_drag_per_s: NotNegative = key(0.03, "share of the speed lost a second in the air")
    push_mps2: Four = key((15.9, 10.95, 6.97, 5.53), "push of the engine in four ranges of speed, full gas")
    push_edge_mps: Three = key((28.06, 55.83, 111.4), "speeds at which these ranges end")
    sliding_push_mps2: Positive = key(8.102, "push of the engine while all wheels slide, but in the first range")
    gear_up_mps: Four = key((28.4, 47.7, 65.3, 94.9), "speeds at which gears 1 to 4 shift up")
    gear_down_mps: Four = key((24.0, 42.0, 57.0, 88.0), "speeds below which gears 2 to 5 shift down")
    gear_rpm_per_mps: Five = key((360.0, 219.0, 160.0, 110.0, 84.9), "engine revolutions a minute for each m/s")
    shift_ms: NotNegative = key(40.0, "a gear change, without push, lasts so long")
    shift_rpm_per_s: Positive = key(17000.0, "and as long as the engine needs for its new speed, at this rate")
    idle_rpm: Positive = key(1500.0, "engine revolutions a minute at standstill")
    max_rpm: Positive = key(11000.0, "above which they never rise")
    engine_brake_mps2: NotNegative = key(1.0, "deceleration off the gas at standstill")
    engine_brake_per_s: NotNegative = key(0.2882, "and for each m/s")
    rolling: Share = key(0.03983, "share of the load beyond the car's weight that slows it, as in a loop")
    brake_mps2: Positive = key(29.0, "deceleration of the brake")
    lock_mps: Positive = key(15.0, "speed above which the brake locks the wheels, so that all slide")
    locked_brake_mps2: Positive = key(12.81, "deceleration of locked wheels")
    locked_grip: Share = key(0.3021, "share of what sliding wheels hold across that locked ones do")
    reverse_push_mps2: Positive = key(8.0, "push backwards of the brake on a car that stands")
    reverse_top_mps: Positive = key(10.0, "speed backwards above which it pushes no more")
    steer_per_s: Positive = key(17.89, "how fast the wheels follow a key, full locks a second")
    steer_radius_m: Positive = key(2.004, "full lock turns the front wheels by asin(1 / (this")
    steer_radius_s: NotNegative = key(0.8027, "+ this times speed))")
    turn_rate_rps: Curve = key(
        ((0.0, 0.01), (10.0, 1.03), (25.0, 1.866), (45.0, 1.314), (70.0, 0.982), (100.0, 0.8454), (150.0, 0.7708)),
        "yaw rate at full lock, by speed",
    )
    yaw_per_s: Positive = key(6.659, "how fast the yaw rate follows")
    stiffness_per_s: Positive = key(20.18, "acceleration across a wheel for each m/s of its sideways speed")
    side_grip_mps2: Curve = key(
        ((0.0, 250.5), (28.0, 263.3), (80.0, 190.6), (139.0, 531.4)), "that the four tyres hold across, by speed"
    )
    slide_grip_mps2: Curve = key(((28.0, 97.91), (139.0, 80.71)), "that they hold across while they slide, by speed")
    excess_grip: Share = key(0.01518, "share of what is asked beyond it that comes through")
    least_load: NotNegative = key(
        0.1085, "the tyres grip as if they bore at least this share of the car's weight, and at most all of it"
    )
    axle_m: Positive = key(1.236, "from the centre of mass to each axle")
    scrub: Share = key(0.009355, "share of the tyres' sideways force that slows a car that does not slide")
    slope_loss: Share = key(0.1133, "share of push and grip lost on a wall; on a ceiling twice as much")
    dirt_grip: Positive = key(0.3963, "grip on dirt, road 1")
    dirt_slide: Positive = key(0.2624, "hold of sliding tyres on dirt, road 1")
    dirt_push: Positive = key(1.046, "push on dirt, road 1")
    grass_grip: Positive = key(0.35, "grip on grass, road 1")
    grass_push: Positive = key(0.4, "push on grass, road 1")
    turbo_factor: Positive = key(6.0, "how much more the engine pushes on a turbo pad")
    turbo_s: Positive = key(0.25, "and for how long behind it")
    wall_bounce: Share = key(0.2, "share of the speed into a wall that comes back out of it")
    wall_rub: NotNegative = key(0.2, "speed along a wall lost for each m/s of change across it")
    ride_m: Positive = key(0.68, "height of the centre of mass above the ground under a car at rest")
    rest_m: Positive = key(0.02891, "how far the springs give under the car's weight")
    travel_m: Positive = key(0.2426, "how far they give at most")
    damping_ratio: NotNegative = key(0.7532, "1 is critical")
    align_s: Positive = key(0.003, "time constant with which the body follows the road's slope")
    air_spin_loss_per_s: NotNegative = key(0.25, "how fast yaw and pitch rates fade in the air")
    air_roll_loss_per_s: NotNegative = key(0.65, "and the roll rate")
    air_counter_loss_per_s: NotNegative = key(1.5, "and the yaw rate against full lock; full lock with it keeps it")
    off_road_m: NotNegative = key(6.0, "the track ends this far beyond the edge of the road")
    fall_m: Positive = key(15.0, "and this far below or above its surface")
    crash_deg: float = key(75.0, "a car that touches the road tilted by more has crashed", gt=0, le=180)

    def _check_combinations(self) -> Iterator[str]:
        if any(down >= up for down, up in zip(self.gear_down_mps, self.gear_up_mps, strict=True)):
            yield f"each gear must shift down below the speed at which it is reached, got {self.gear_down_mps}"
        if list(self.gear_up_mps) != sorted(set(self.gear_up_mps)):
            yield f"gear_up_mps must rise from gear to gear, got {self.gear_up_mps}"
        yield from wrong_order(self, "idle_rpm", "max_rpm")
        yield from wrong_order(self, "rest_m", "travel_m")


class CameraParams(Section):
    """Pose and field of view of the simulator's camera."""

    back_m: float = key(7.0, "metres behind the car", ge=-5, le=30)
    height_m: float = key(4.2, "metres above the car", gt=0, le=30)
    pitch_deg: float = key(15.0, "how far the camera looks down, in the car's frame", gt=-60, lt=60)
    fov_deg: float = key(90.0, "horizontal field of view", gt=10, lt=150)


class SimulatorParams(Section):
    """The embedded simulator."""

    physics: PhysicsParams = key(PhysicsParams(), "how the car moves")
    camera: CameraParams = key(CameraParams(), "what agents and demonstrations see through")


class DriverParams(Section):
    """The field of built-in drivers; see `rulka.simulator.driver`."""

    pace_low: float = key(0.65, "share of the possible speed that the most careful driver drives", gt=0, le=1)
    pace_high: float = key(0.98, "and the boldest", gt=0, le=1)
    slip_chance: Share = key(0.3, "chance that a decision is left as it was, at most")
    line_m: LateralM = key(2.0, "drivers aim at a line at most this far beside the centre")

    def _check_combinations(self) -> Iterator[str]:
        yield from wrong_order(self, "pace_low", "pace_high")
