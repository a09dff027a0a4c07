"""Parameters of the simulated car and its camera: section `simulator`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, Field

from rulka.contracts.section import NotNegative, Positive, Section, Share, key, wrong_order

Three = Annotated[tuple[Positive, Positive, Positive], Field(strict=False)]
Four = Annotated[tuple[Positive, Positive, Positive, Positive], Field(strict=False)]
Five = Annotated[tuple[Positive, Positive, Positive, Positive, Positive], Field(strict=False)]
Point = Annotated[tuple[NotNegative, Positive], Field(strict=False)]


def _rising(points: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    speeds = [speed for speed, _ in points]
    if speeds != sorted(set(speeds)):
        raise ValueError(f"speeds of a curve must rise, got {speeds}")
    return points


Curve = Annotated[tuple[Point, ...], Field(min_length=1, strict=False), AfterValidator(_rising)]
"""Points [speed in m/s, value] by rising speed; linear between points, constant outside them."""


class PhysicsParams(Section):
    """Car physics; see `rulka.simulator.physics`."""

    gravity_mps2: Positive = key(29.43, "Gravity of a car on its wheels, in m/s2.")
    air_gravity_mps2: Positive = key(24.8, "Gravity of a car in the air, in m/s2.")
    air_drag_per_s: NotNegative = key(0.03, "Share of the speed lost in the air, per second.")
    push_mps2: Four = key((15.9, 10.95, 6.97, 5.53), "Engine push at full gas in four ranges of speed, in m/s2.")
    push_edge_mps: Three = key((28.06, 55.83, 111.4), "Speeds that divide the four ranges of push_mps2, in m/s.")
    sliding_push_mps2: Positive = key(8.102, "Engine push while all wheels slide, past the first speed range, in m/s2.")
    gear_up_mps: Four = key((28.4, 47.7, 65.3, 94.9), "Speeds at which gears 1 to 4 shift up, in m/s.")
    gear_down_mps: Four = key((24.0, 42.0, 57.0, 88.0), "Speeds below which gears 2 to 5 shift down, in m/s.")
    gear_rpm_per_mps: Five = key((360.0, 219.0, 160.0, 110.0, 84.9), "Engine speed in gears 1 to 5, in rpm per m/s.")
    shift_ms: NotNegative = key(40.0, "Shortest gear change in ms; the engine does not push meanwhile.")
    shift_rpm_per_s: Positive = key(17000.0, "Engine speed change that prolongs a gear change, in rpm per second.")
    idle_rpm: Positive = key(1500.0, "Engine speed at standstill, in rpm.")
    max_rpm: Positive = key(11000.0, "Highest engine speed, in rpm.")
    engine_brake_mps2: NotNegative = key(1.0, "Engine braking off the gas at standstill, in m/s2.")
    engine_brake_per_s: NotNegative = key(0.2882, "Growth of engine braking with speed, in m/s2 per m/s.")
    rolling: Share = key(0.03983, "Share of the load beyond the car's weight that slows the car, as in a loop.")
    brake_mps2: Positive = key(29.0, "Deceleration by the brake, in m/s2.")
    lock_mps: Positive = key(15.0, "Speed above which the brake locks the wheels, so that all slide, in m/s.")
    locked_brake_mps2: Positive = key(12.81, "Deceleration by locked wheels, in m/s2.")
    locked_grip: Share = key(0.3021, "Sideways grip of locked wheels, as a share of that of sliding wheels.")
    reverse_push_mps2: Positive = key(8.0, "Acceleration backwards of a standing car on the brake, in m/s2.")
    reverse_top_mps: Positive = key(10.0, "Top speed in reverse, in m/s.")
    steer_per_s: Positive = key(17.89, "Steering rate of the wheels, in full locks per second.")
    # Full lock turns the front wheels by asin(1 / (steer_radius_m + steer_radius_s * speed)).
    steer_radius_m: Positive = key(2.004, "Turning radius of full lock at standstill, in axle distances.")
    steer_radius_s: NotNegative = key(0.8027, "Growth of the turning radius of full lock, in axle distances per m/s.")
    turn_rate_rps: Curve = key(
        ((0.0, 0.01), (10.0, 1.03), (25.0, 1.866), (45.0, 1.314), (70.0, 0.982), (100.0, 0.8454), (150.0, 0.7708)),
        "Yaw rate at full lock, as points [speed in m/s, yaw rate in rad/s].",
    )
    yaw_per_s: Positive = key(6.659, "Rate at which the yaw rate approaches its target, per second.")
    stiffness_per_s: Positive = key(20.18, "Sideways acceleration by a tyre per m/s of its sideways speed, in m/s2.")
    side_grip_mps2: Curve = key(
        ((0.0, 250.5), (28.0, 263.3), (80.0, 190.6), (139.0, 531.4)),
        "Sideways grip of the four tyres, as points [speed in m/s, grip in m/s2].",
    )
    slide_grip_mps2: Curve = key(
        ((28.0, 97.91), (139.0, 80.71)),
        "Sideways grip of the four tyres while sliding, as points [speed in m/s, grip in m/s2].",
    )
    excess_grip: Share = key(0.01518, "Share of the force demanded beyond their grip that sliding tyres still supply.")
    least_load: NotNegative = key(0.1085, "Least load in the tyres' grip, as a share of the weight; the most is 1.")
    axle_m: Positive = key(1.236, "Distance from the centre of mass to each axle, in metres.")
    scrub: Share = key(0.009355, "Share of the tyres' sideways force that slows a car that does not slide.")
    slope_loss: Share = key(0.1133, "Share of push and grip lost on a wall; on a ceiling twice as much.")
    dirt_grip: Positive = key(0.3963, "Grip on dirt, relative to road.")
    dirt_slide: Positive = key(0.2624, "Grip of sliding tyres on dirt, relative to road.")
    dirt_push: Positive = key(1.046, "Engine push on dirt, relative to road.")
    grass_grip: Positive = key(0.35, "Grip on grass, relative to road.")
    grass_push: Positive = key(0.4, "Engine push on grass, relative to road.")
    turbo_factor: Positive = key(6.0, "Factor on the engine's push by a turbo pad.")
    turbo_s: Positive = key(0.25, "Duration of turbo after the pad, in seconds.")
    wall_bounce: Share = key(0.2, "Share of the speed into a wall that bounces back.")
    wall_rub: NotNegative = key(0.2, "Speed lost along a wall per m/s of change across the wall, in m/s.")
    ride_m: Positive = key(0.68, "Height of the centre of mass of a car at rest above the ground, in metres.")
    rest_m: Positive = key(0.02891, "Compression of the springs by the car's weight, in metres.")
    travel_m: Positive = key(0.2426, "Largest compression of the springs, in metres.")
    damping_ratio: NotNegative = key(0.7532, "Damping ratio of the springs; 1 is critical damping.")
    align_s: Positive = key(0.003, "Time constant at which the body follows the road's slope, in seconds.")
    air_spin_loss_per_s: NotNegative = key(0.25, "Decay of the yaw and pitch rates in the air, per second.")
    air_roll_loss_per_s: NotNegative = key(0.65, "Decay of the roll rate in the air, per second.")
    air_counter_loss_per_s: NotNegative = key(
        1.5, "Decay of the yaw rate in the air at full counter-lock, per second; lock with it: none."
    )
    off_road_m: NotNegative = key(6.0, "Distance beyond the edge of the road at which the track ends, in metres.")
    fall_m: Positive = key(15.0, "Distance below or above the road at which the track ends, in metres.")
    crash_deg: float = key(75.0, "Largest tilt of a car on the road that is no crash, in degrees.", gt=0, le=180)

    def _check_combinations(self) -> Iterator[str]:
        if any(down >= up for down, up in zip(self.gear_down_mps, self.gear_up_mps, strict=True)):
            yield f"gear_down_mps needs to be below gear_up_mps, but is {self.gear_down_mps}: lower it"
        if list(self.gear_up_mps) != sorted(set(self.gear_up_mps)):
            yield f"gear_up_mps needs to rise from gear to gear, but is {self.gear_up_mps}: change its order"
        yield from wrong_order(self, "idle_rpm", "max_rpm")
        yield from wrong_order(self, "rest_m", "travel_m")


class CameraParams(Section):
    """Pose and field of view of the simulator's camera."""

    back_m: float = key(7.0, "Distance of the camera behind the car, in metres.", ge=-5, le=30)
    height_m: float = key(4.2, "Height of the camera above the car, in metres.", gt=0, le=30)
    pitch_deg: float = key(15.0, "Downward pitch of the camera in the car's frame, in degrees.", gt=-60, lt=60)
    fov_deg: float = key(90.0, "Horizontal field of view, in degrees.", gt=10, lt=150)


class SimulatorParams(Section):
    """The embedded simulator."""

    physics: PhysicsParams = key(PhysicsParams(), "Physics of the car, fitted to recordings by `rulka calibrate`.")
    camera: CameraParams = key(CameraParams(), "Camera of agents and demonstrations.")
