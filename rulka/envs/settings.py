"""What a race is made of, resolved from the keywords of an environment.

A keyword left out is taken from the reference parameters that come with the package (`reference_params`), so that
`gymnasium.make("rulka/Race-v0")` works anywhere; there are no defaults in code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from pydantic import ValidationError

from rulka.actions import ActionTable, action_table
from rulka.errors import UserError
from rulka.params import (
    AngleDeg,
    Count,
    LateralM,
    ObservationParams,
    Params,
    RaceEndParams,
    RandomisationParams,
    RewardParams,
    Share,
    SimulatorParams,
    StartSpeedMps,
    Ticks,
    problems_of,
    reference_params,
)
from rulka.tracks.find import find_track
from rulka.tracks.generate import generate_track
from rulka.tracks.track import Track


class SettingsError(UserError):
    """A keyword of an environment is unknown, of a wrong type or out of range; the message names it."""


class UnknownKeywordError(SettingsError, TypeError):
    """A keyword that an environment does not have; a `TypeError` too, as Python's own, by which torchrl goes."""


class RaceOptions(TypedDict, total=False):
    """Keywords of the environments; behind each, the reference parameter that stands in where it is left out."""

    simulator: SimulatorParams | None  # simulator: physics and camera
    observation: ObservationParams | None  # observation: image size
    rewards: RewardParams | None  # rewards: weights of the reward
    ticks_per_action: int | None  # actions.ticks_per_action: 10 ms ticks for which an action is held
    start_anywhere: float | None  # train.start_anywhere: share of races that begin anywhere on the track
    start_lateral_m: float | None  # evaluate.start_lateral_m: races begin at most this far beside the line
    start_heading_deg: float | None  # evaluate.start_heading_deg: and turned by at most this much
    max_race_s: float | None  # race_end.max_race_s: a race is cut after this long
    no_progress_s: float | None  # race_end.no_progress_s: a race is cut after this long without getting further
    min_gain_m: float | None  # race_end.min_gain_m: getting further by less than this does not count
    start_speed_mps: float | None  # at rest: speed of races that begin anywhere
    randomisation: RandomisationParams | None  # none: how much races differ in friction, camera, light and noise
    actions_per_decision: int | None  # one: actions that share a decision's ticks, one after another
    continuous: bool | None  # no: actions are steer, gas and brake instead of an index


class _Keywords(RaceEndParams):
    """The same keywords, all given: types and ranges are those of the parameters that they stand for."""

    simulator: SimulatorParams
    observation: ObservationParams
    rewards: RewardParams
    ticks_per_action: Ticks
    start_anywhere: Share
    start_lateral_m: LateralM
    start_heading_deg: AngleDeg
    start_speed_mps: StartSpeedMps
    randomisation: RandomisationParams
    actions_per_decision: Count
    continuous: bool


@dataclass(frozen=True)
class RaceSettings:
    """Everything about a race but who drives.

    Attributes:
        track: where.
        table: what an action does.
        simulator: physics and camera.
        observation: image size.
        rewards: what a decision is worth.
        start_anywhere: share of races that begin anywhere on the track instead of at the start line.
        start_lateral_m: races begin at most this far beside the line.
        start_heading_deg: and turned by at most this much.
        end: when a race ends.
        start_speed_mps: speed at which races begin that begin anywhere.
        randomisation: how much races differ in friction, camera, light and noise.
        continuous: actions are steer in [-1, 1], gas and brake in [0, 1] instead of an index into the table.
    """

    track: Track
    table: ActionTable
    simulator: SimulatorParams
    observation: ObservationParams
    rewards: RewardParams
    start_anywhere: float
    start_lateral_m: float
    start_heading_deg: float
    end: RaceEndParams
    start_speed_mps: float
    randomisation: RandomisationParams
    continuous: bool

    def __post_init__(self) -> None:
        if self.continuous and self.table.actions_per_decision > 1:
            message = "continuous actions are held for a whole decision: actions_per_decision must be 1"
            raise SettingsError(message)


ALIKE = RandomisationParams(
    friction=0.0, camera_m=0.0, camera_deg=0.0, light_gain=0.0, light_offset=0.0, pixel_noise=0.0
)
PLAIN: dict[str, Any] = {"start_speed_mps": 0.0, "randomisation": ALIKE, "continuous": False, "actions_per_decision": 1}
"""What an environment does unless asked: races begin at rest and are all alike, an action is one index."""


def check_keywords(options: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuses keywords that an environment does not have.

    The words "unexpected keyword argument 'frameskip'" are those of Python: torchrl's `GymEnv` looks for them, and goes
    on without that keyword.

    Raises:
        UnknownKeywordError: naming the unknown ones and all that are known.
    """
    unknown = sorted(set(options) - set(known), key=str)
    if unknown:
        message = f"unexpected keyword argument {', '.join(map(repr, unknown))}; known are {', '.join(sorted(known))}"
        raise UnknownKeywordError(message)


def resolve_settings(
    track: Track | Path | str | None, options: RaceOptions, beside: tuple[str, ...] = ("track", "render_mode")
) -> RaceSettings:
    """Fills in what an environment's keywords leave open.

    Args:
        track: a track, a slug of the campaign, a track file, or None for the one of the reference parameters.
        options: the other keywords; None counts as left out.
        beside: further keywords that the caller's environment has, named where one is unknown.

    Raises:
        UnknownKeywordError: if there is no such keyword.
        SettingsError: if a keyword is out of range.
        UnknownTrackError: if there is no track of that name.
        TrackError: if the file holds no valid track.
    """
    check_keywords(options, (*RaceOptions.__annotations__, *beside))
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if len(given) < len(RaceOptions.__annotations__):
        needed = set(RaceOptions.__annotations__) - set(PLAIN)
        given = (PLAIN if needed <= set(given) else _reference_options(reference_params())) | given
    given = _checked(given)
    try:
        table = action_table(given.pop("ticks_per_action"), given.pop("actions_per_decision"))
    except ValueError as error:
        raise SettingsError(str(error), hint="actions_per_decision must divide ticks_per_action.") from error
    end = RaceEndParams(**{name: given.pop(name) for name in RaceEndParams.model_fields})
    return RaceSettings(track=_track(track), table=table, end=end, **given)


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the keywords with plain numbers in the place of NumPy's, or raises SettingsError."""
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}
    if isinstance(plain["randomisation"], Mapping):  # what is left out does not vary
        plain["randomisation"] = ALIKE.model_dump() | dict(plain["randomisation"])
    try:
        return dict(_Keywords.model_validate(plain))
    except ValidationError as error:
        raise SettingsError("; ".join(problems_of(error, _Keywords))) from error


def _reference_options(params: Params) -> dict[str, Any]:
    return {
        "simulator": params.simulator,
        "observation": params.observation,
        "rewards": params.rewards,
        "ticks_per_action": params.actions.ticks_per_action,
        "start_anywhere": params.train.start_anywhere,
        "start_lateral_m": params.evaluate.start_lateral_m,
        "start_heading_deg": params.evaluate.start_heading_deg,
        **dict(params.race_end),
        **PLAIN,
    }


def _track(track: Track | Path | str | None) -> Track:
    if track is None:
        return generate_track(**reference_params().track.model_dump())
    if not isinstance(track, Track | Path | str):
        message = f"track is a track, a slug of the campaign or a track file, got {track!r:.80}"
        raise SettingsError(message)
    return track if isinstance(track, Track) else find_track(track)
