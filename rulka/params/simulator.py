"""The simulated car and its camera, what agents see and how long they act.

Sections `simulator`, `observation` and `actions`.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from rulka.params.base import NotNegative, Positive, Section, Share, check_order

MIN_PIXELS, MAX_PIXELS = 34, 1024
"""Below 34 rows or columns nothing is left of an image after the four convolutions of `models.encoders.conv`."""


FramesAs = Literal["channels", "features"]
"""How several frames reach a network: as channels of one image, or one after another, their features side by side."""

Part = Literal[
    "image",
    "clock",
    "previous_actions",
    "is_sliding",
    "has_contact",
    "damper",
    "gearbox_state",
    "gear",
    "rpm",
    "gearbox_counter",
    "material",
    "angular_velocity",
    "velocity",
    "up",
    "waypoints",
    "margin",
    "is_free_wheeling",
]
"""What an observation has: the image, and the parts of the floats by their names in `rulka.observation`."""


class ObservationParams(Section):
    """What the agent sees. Shared by every stage that touches images."""

    height: int = Field(ge=MIN_PIXELS, le=MAX_PIXELS, description="image height, pixels")
    width: int = Field(ge=MIN_PIXELS, le=MAX_PIXELS, description="image width, pixels")
    frames: int = Field(ge=1, le=16, description="frames seen at once: the newest, and older ones a decision apart")
    frames_as: FramesAs = Field(description="of several: channels of one image, or features side by side")
    withheld: tuple[Part, ...] = Field(strict=False, description="parts of the observation that agents are not shown")

    @model_validator(mode="after")
    def _check(self) -> ObservationParams:
        repeated = sorted({part for part in self.withheld if self.withheld.count(part) > 1})
        if repeated:
            message = f"withheld names {', '.join(repeated)} twice"
            raise ValueError(message)
        if len(self.withheld) == len(get_args(Part)):
            message = "withheld leaves nothing to see"
            raise ValueError(message)
        return self

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """[L, H, W] of what a car sees: L frames, oldest first."""
        return self.frames, self.height, self.width

    @property
    def channels(self) -> int:
        """Frames that an encoder takes at once."""
        return self.frames if self.frames_as == "channels" else 1

    @property
    def shows_image(self) -> bool:
        """Whether agents are shown frames at all."""
        return "image" not in self.withheld


Ticks = Annotated[int, Field(ge=1, le=100)]
"""10 ms each: a decision lasts a second at most."""


class ActionParams(Section):
    """How long one decision lasts."""

    ticks_per_action: Ticks = Field(description="10 ms ticks for which one action is held; 5 in the game")


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

    gravity_mps2: Positive = Field(description="acceleration of free fall")
    push_mps2: Curve = Field(description="push of the engine by speed, full gas")
    gear_up_mps: Four = Field(description="speeds at which gears 1 to 4 shift up")
    gear_down_mps: Four = Field(description="speeds below which gears 2 to 5 shift down")
    gear_rpm_per_mps: Five = Field(description="engine revolutions a minute for each m/s")
    shift_ms: NotNegative = Field(description="duration of a gear change, without push")
    idle_rpm: Positive = Field(description="engine revolutions a minute at standstill")
    max_rpm: Positive = Field(description="above which they never rise")
    engine_brake_per_s: NotNegative = Field(description="off the gas: deceleration is this times speed")
    rolling_mps2: NotNegative = Field(description="deceleration of rolling wheels")
    drag_per_m: NotNegative = Field(description="air drag: deceleration is this times speed squared")
    brake_mps2: Positive = Field(description="deceleration of the brake")
    brake_with_gas: Share = Field(description="share of it left while the gas is pressed too")
    reverse_push_mps2: Positive = Field(description="push backwards of the brake on a car that stands")
    reverse_top_mps: Positive = Field(description="speed backwards above which it pushes no more")
    turn_radius_m: Curve = Field(description="radius driven at full lock")
    steer_per_s: Positive = Field(description="how fast the wheels follow a key, full locks a second")
    yaw_response_s: Positive = Field(description="time constant of the yaw rate")
    grip_mps2: Positive = Field(description="acceleration that the tyres bear at standstill, on the road")
    grip_per_s: NotNegative = Field(description="how much more for each m/s")
    slip_grip: NotNegative = Field(description="how much more the tyres hold for each radian of slip, as a share")
    slip_response_s: Positive = Field(description="time constant of sideways speed below the grip limit")
    overturn: Positive = Field(description="how far the front may turn the car beyond what the grip can follow")
    max_slip_rad: Positive = Field(description="angle of slip at which the front wheels turn the car no further")
    scrub: Share = Field(description="share of the tyres' sideways force that slows the car")
    dirt_grip: Positive = Field(description="grip on dirt, road 1")
    dirt_push: Positive = Field(description="push on dirt, road 1")
    grass_grip: Positive = Field(description="grip on grass, road 1")
    grass_push: Positive = Field(description="push on grass, road 1")
    turbo_factor: Positive = Field(description="how much more the engine pushes on a turbo pad")
    turbo_s: Positive = Field(description="and for how long behind it")
    wall_bounce: Share = Field(description="share of the speed into a wall that comes back out of it")
    wall_rub: NotNegative = Field(description="speed along a wall lost for each m/s of change across it")
    reference_m: NotNegative = Field(description="height of the car's position above the ground it stands on")
    rest_m: Positive = Field(description="how far the springs give under the car's weight")
    travel_m: Positive = Field(description="how far they give at most")
    damping_ratio: NotNegative = Field(description="1 is critical")
    align_s: Positive = Field(description="time constant with which the body follows the road's slope")
    air_spin_loss_per_s: NotNegative = Field(description="how fast rotation fades in the air")
    off_road_m: NotNegative = Field(description="the track ends this far beyond the edge of the road")
    fall_m: Positive = Field(description="and this far below or above its surface")
    crash_deg: float = Field(gt=0, le=180, description="a car that touches the road tilted by more has crashed")

    @model_validator(mode="after")
    def _check(self) -> PhysicsParams:
        if any(down >= up for down, up in zip(self.gear_down_mps, self.gear_up_mps, strict=True)):
            message = f"each gear must shift down below the speed at which it is reached, got {self.gear_down_mps}"
            raise ValueError(message)
        if list(self.gear_up_mps) != sorted(set(self.gear_up_mps)):
            message = f"gear_up_mps must rise from gear to gear, got {self.gear_up_mps}"
            raise ValueError(message)
        check_order(self, "idle_rpm", "max_rpm")
        check_order(self, "rest_m", "travel_m")
        return self


class CameraParams(Section):
    """Where the simulator's camera sits and what it sees."""

    back_m: float = Field(ge=-5, le=30, description="metres behind the car")
    height_m: float = Field(gt=0, le=30, description="metres above the car")
    pitch_deg: float = Field(gt=-60, lt=60, description="how far the camera looks down, in the car's frame")
    fov_deg: float = Field(gt=10, lt=150, description="horizontal field of view")


class SimulatorParams(Section):
    """The embedded simulator."""

    physics: PhysicsParams = Field(description="how the car moves")
    camera: CameraParams = Field(description="what agents and demonstrations see through")
