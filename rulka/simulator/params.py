"""The simulated car, its camera and the built-in driver: section `simulator`, and part of `races`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, Field

from rulka.section import LateralM, NotNegative, Positive, Section, Share, key, wrong_order

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
"""Points [speed in m/s, value], speeds rising; straight between them, constant before the first and after the last."""


class PhysicsParams(Section):
    """The simulator's car; see `rulka.simulator.physics`."""

    gravity_mps2: Positive = key(24.8, "acceleration of free fall")
    push_mps2: Curve = key(
        (
            (0.0, 15.9),
            (27.0, 15.9),
            (29.0, 10.95),
            (51.0, 10.95),
            (57.0, 6.95),
            (107.0, 6.95),
            (113.0, 5.5),
            (150.0, 5.5),
        ),
        "push of the engine by speed, full gas",
    )
    gear_up_mps: Four = key((28.5, 46.0, 65.0, 97.0), "speeds at which gears 1 to 4 shift up")
    gear_down_mps: Four = key((24.0, 42.0, 57.0, 88.0), "speeds below which gears 2 to 5 shift down")
    gear_rpm_per_mps: Five = key((360.0, 219.0, 160.0, 110.0, 84.9), "engine revolutions a minute for each m/s")
    shift_ms: NotNegative = key(250.0, "duration of a gear change, without push")
    idle_rpm: Positive = key(1500.0, "engine revolutions a minute at standstill")
    max_rpm: Positive = key(11000.0, "above which they never rise")
    engine_brake_per_s: NotNegative = key(0.315, "off the gas: deceleration is this times speed")
    rolling_mps2: NotNegative = key(0.05, "deceleration of rolling wheels")
    drag_per_m: NotNegative = key(0.0001667, "air drag: deceleration is this times speed squared")
    brake_mps2: Positive = key(29.0, "deceleration of the brake")
    brake_with_gas: Share = key(0.5, "share of it left while the gas is pressed too")
    reverse_push_mps2: Positive = key(8.0, "push backwards of the brake on a car that stands")
    reverse_top_mps: Positive = key(10.0, "speed backwards above which it pushes no more")
    turn_radius_m: Curve = key(
        (
            (0.0, 13.78),
            (15.0, 13.23),
            (25.0, 14.11),
            (35.0, 19.62),
            (45.0, 30.75),
            (55.0, 51.37),
            (65.0, 58.19),
            (75.0, 76.13),
            (85.0, 97.78),
            (105.0, 114.3),
            (125.0, 148.2),
            (150.0, 178.6),
        ),
        "radius driven at full lock",
    )
    steer_per_s: Positive = key(14.65, "how fast the wheels follow a key, full locks a second")
    yaw_response_s: Positive = key(0.1612, "time constant of the yaw rate")
    grip_mps2: Positive = key(43.82, "acceleration that the tyres bear at standstill, on the road")
    grip_per_s: NotNegative = key(0.8224, "how much more for each m/s")
    slip_grip: NotNegative = key(1.413, "how much more the tyres hold for each radian of slip, as a share")
    slip_response_s: Positive = key(0.01571, "time constant of sideways speed below the grip limit")
    overturn: Positive = key(2.431, "how far the front may turn the car beyond what the grip can follow")
    max_slip_rad: Positive = key(0.8522, "angle of slip at which the front wheels turn the car no further")
    scrub: Share = key(0.004131, "share of the tyres' sideways force that slows the car")
    dirt_grip: Positive = key(0.3929, "grip on dirt, road 1")
    dirt_push: Positive = key(0.8364, "push on dirt, road 1")
    grass_grip: Positive = key(0.35, "grip on grass, road 1")
    grass_push: Positive = key(0.4, "push on grass, road 1")
    turbo_factor: Positive = key(5.817, "how much more the engine pushes on a turbo pad")
    turbo_s: Positive = key(0.25, "and for how long behind it")
    wall_bounce: Share = key(0.2, "share of the speed into a wall that comes back out of it")
    wall_rub: NotNegative = key(0.2, "speed along a wall lost for each m/s of change across it")
    reference_m: NotNegative = key(0.36, "height of the car's position above the ground it stands on")
    rest_m: Positive = key(0.02, "how far the springs give under the car's weight")
    travel_m: Positive = key(0.15, "how far they give at most")
    damping_ratio: NotNegative = key(0.7, "1 is critical")
    align_s: Positive = key(0.012, "time constant with which the body follows the road's slope")
    air_spin_loss_per_s: NotNegative = key(1.0, "how fast rotation fades in the air")
    off_road_m: NotNegative = key(6.0, "the track ends this far beyond the edge of the road")
    fall_m: Positive = key(15.0, "and this far below or above its surface")
    crash_deg: float = key(75.0, "a car that touches the road tilted by more has crashed", gt=0, le=180)

    def _impossible(self) -> Iterator[str]:
        if any(down >= up for down, up in zip(self.gear_down_mps, self.gear_up_mps, strict=True)):
            yield f"each gear must shift down below the speed at which it is reached, got {self.gear_down_mps}"
        if list(self.gear_up_mps) != sorted(set(self.gear_up_mps)):
            yield f"gear_up_mps must rise from gear to gear, got {self.gear_up_mps}"
        yield from wrong_order(self, "idle_rpm", "max_rpm")
        yield from wrong_order(self, "rest_m", "travel_m")


class CameraParams(Section):
    """Where the simulator's camera sits and what it sees."""

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

    def _impossible(self) -> Iterator[str]:
        yield from wrong_order(self, "pace_low", "pace_high")
