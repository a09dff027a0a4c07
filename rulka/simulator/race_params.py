"""Starts, rewards, randomisation and ends of races: sections `race_end` and `rewards`, and parts of others."""

from __future__ import annotations

from collections.abc import Iterator

from rulka.contracts.schedule import Schedule
from rulka.contracts.section import (
    MOST,
    AngleDeg,
    GreyLevels,
    LateralM,
    NotNegative,
    RaceSeconds,
    Section,
    Share,
    StartSpeedMps,
    Weight,
    WeightSchedule,
    key,
)


class RaceEndParams(Section):
    """End of every race, for any driver and purpose; see `rulka.simulator.race_end`."""

    max_race_s: RaceSeconds = key(120.0, "a race is cut by the first decision that ends this late short of the finish")
    no_progress_s: RaceSeconds = key(2.0, "a race is cut after this long without getting further")
    min_gain_m: float = key(0.5, "getting further by less than this does not count", gt=0, le=1000)


class LineStartParams(Section):
    """Starts of races that all begin at the start line; see `rulka.simulator.race_start`."""

    start_lateral_m: LateralM = key(1.0, "races begin at most this far beside the line")
    start_heading_deg: AngleDeg = key(3.0, "and turned by at most this much")


class RaceStartParams(LineStartParams):
    """Starts of training races."""

    start_anywhere: Share = key(0.5, "share of races that begin anywhere on the track, not at the start line")
    start_speed_mps: StartSpeedMps = key(30.0, "speed at which those begin")
    start_from_earlier: Share = key(0.0, "share of races that begin where an earlier one of their car was")

    def _check_combinations(self) -> Iterator[str]:
        if self.start_anywhere + self.start_from_earlier > 1.0:
            yield "start_anywhere and start_from_earlier are shares of the same races: at most 1 together"


class EngineeredRewardParams(Section):
    """Rewards for driving style, scheduled over training; see `rulka.envs.rewards`."""

    speed_slide: WeightSchedule = key(
        Schedule.constant(0.0), "each decision, for sliding at the angle that keeps most speed"
    )
    neo_slide: WeightSchedule = key(Schedule.constant(0.0), "each decision with a sideways speed of 2 m/s or more")
    kamikaze: WeightSchedule = key(
        Schedule.constant(0.0), "each decision on full gas or with at most one wheel on the ground"
    )
    line_distance: WeightSchedule = key(
        Schedule.constant(0.0), "each decision, for each metre from the line, between 5 and 25 m"
    )


class RewardParams(Section):
    """Reward of one decision; see `rulka.envs.rewards`."""

    per_metre: Weight = key(0.05, "for each metre of progress along the centreline")
    per_second: Weight = key(-0.4, "for each second that passes; negative")
    off_track: float = key(-4.0, "once, on leaving the track", ge=-MOST, le=0.0)
    finish_as_seconds: NotNegative = key(
        4.0, "the finish counts like going on for this time at the speed over the line; 0 is none"
    )
    line_distance_potential: NotNegative = key(
        0.0, "shaping potential lost for each metre from the line, between 2 and 25 m; 0 is none"
    )
    direction_potential: NotNegative = key(
        0.0, "shaping potential lost as the car turns away from the line's direction, at most twice this"
    )
    speed_as_seconds: NotNegative = key(
        0.0, "a gain in speed counts like the metres it brings in this time; 0 is none, 2 in the reference"
    )
    engineered: EngineeredRewardParams = key(
        EngineeredRewardParams(), "further rewards whose weights change while training"
    )


class RandomisationParams(Section):
    """Domain randomisation of races; 0 switches a key off. See `rulka.envs.randomising`."""

    friction: float = key(0.0, "grip differs by at most this share", ge=0, lt=1)
    physics: float = key(
        0.0, "the physics differs by this many standard deviations of what fits to other recordings say", ge=0, le=5
    )
    camera_m: float = key(0.0, "the camera is moved by at most this, back and up", ge=0, le=10)
    camera_deg: float = key(0.0, "and pitched by at most this", ge=0, le=45)
    light_gain: float = key(0.0, "contrast differs by at most this share", ge=0, lt=1)
    light_offset: GreyLevels = key(0.0, "brightness differs by at most this many grey levels")
    pixel_noise: GreyLevels = key(0.0, "largest standard deviation of a pixel's noise, grey levels")

    @property
    def is_off(self) -> bool:
        """Whether nothing is randomised."""
        return not any(self.model_dump().values())


class TrainingRaceParams(RaceStartParams):
    """Training races: starts and domain randomisation."""

    randomisation: RandomisationParams = key(RandomisationParams(), "how training races differ from each other")
