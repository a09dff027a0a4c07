"""Starts, rewards, randomisation and ends of races: sections `race_end` and `rewards`, and parts of others."""

from __future__ import annotations

from collections.abc import Iterator

from rulka.contracts.schedule import Schedule
from rulka.contracts.section import (
    MOST,
    AngleDeg,
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

_OFF = Schedule.constant(0.0)


class RaceEndParams(Section):
    """End of every race, for any driver and purpose; see `rulka.simulator.race_end`."""

    max_race_s: RaceSeconds = key(120.0, "Time limit of a race in seconds, checked after each decision.")
    no_progress_s: RaceSeconds = key(2.0, "Time without progress that cuts a race, in seconds.")
    min_gain_m: float = key(0.5, "Smallest gain that counts as progress, in metres.", gt=0, le=1000)


class LineStartParams(Section):
    """Starts of races that all begin at the start line; see `rulka.simulator.race_start`."""

    start_lateral_m: LateralM = key(1.0, "Largest distance between a start and the line, in metres to the side.")
    start_heading_deg: AngleDeg = key(3.0, "Largest turn away from the line at a start, in degrees.")


class RaceStartParams(LineStartParams):
    """Starts of training races."""

    start_anywhere: Share = key(0.5, "Share of races that begin anywhere on the track instead of at the start line.")
    start_speed_mps: StartSpeedMps = key(30.0, "Initial speed of races that begin anywhere, in m/s.")
    start_from_earlier: Share = key(0.0, "Share of races that begin where an earlier race of the same car was.")

    def _check_combinations(self) -> Iterator[str]:
        if self.start_anywhere + self.start_from_earlier > 1.0:
            yield "start_anywhere and start_from_earlier need a sum of at most 1: lower one of them"


class EngineeredRewardParams(Section):
    """Rewards for driving style, scheduled over training; see `rulka.envs.rewards`."""

    speed_slide: WeightSchedule = key(_OFF, "Reward per decision for sliding at the angle that keeps most speed.")
    neo_slide: WeightSchedule = key(_OFF, "Reward per decision with a sideways speed of 2 m/s or more.")
    kamikaze: WeightSchedule = key(_OFF, "Reward per decision on full gas or with at most one wheel on the ground.")
    line_distance: WeightSchedule = key(_OFF, "Reward per decision and metre from the line, clipped to 5 to 25 m.")


class RewardParams(Section):
    """Reward of one decision; see `rulka.envs.rewards`."""

    per_metre: Weight = key(0.05, "Reward per metre of progress along the centreline.")
    per_second: Weight = key(-0.4, "Reward per second of race time; negative.")
    off_track: float = key(-4.0, "Reward for leaving the track, paid once.", ge=-MOST, le=0.0)
    finish_as_seconds: NotNegative = key(4.0, "Finish reward, as seconds of driving on at the final speed; 0: none.")
    line_distance_potential: NotNegative = key(0.0, "Shaping potential lost per metre from the line, 2 to 25 m.")
    direction_potential: NotNegative = key(0.0, "Half of the shaping potential lost by facing backwards; 0: none.")
    speed_as_seconds: NotNegative = key(0.0, "Reward of a speed gain, as seconds of its metres; 0: none, 2: reference.")
    engineered: EngineeredRewardParams = key(EngineeredRewardParams(), "Rewards for driving style, on schedules.")


class RandomisationParams(Section):
    """Domain randomisation of races; 0 switches a key off. See `rulka.envs.randomising`."""

    physics: float = key(0.0, "Spread of the physics, in standard deviations of leave-one-map-out fits.", ge=0, le=5)


class TrainingRaceParams(RaceStartParams):
    """Training races: starts and domain randomisation."""

    start_anywhere: Share = key(0.0, "Share of races that begin anywhere on the track instead of at the start line.")
    start_from_earlier: Share = key(0.5, "Share of races that begin where an earlier race of the same car was.")
    randomisation: RandomisationParams = key(RandomisationParams(), "Domain randomisation of training races.")
