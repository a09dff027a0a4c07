"""Where races come from, how they start, end and are raced for evaluation.

Sections `race_end`, `track`, `races`, `capture` and `evaluate`, and sets of tracks, which `train` reads too.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rulka.campaign_slugs import CampaignSlug
from rulka.params.base import (
    MOST,
    AngleDeg,
    Backend,
    BatchSize,
    LateralM,
    MapChoice,
    Positive,
    RaceSeconds,
    Section,
    Seed,
    Several,
    Share,
    StartSpeedMps,
    Whole,
    check_order,
)


class RaceEndParams(Section):
    """The end of every race, whoever drives it and whatever for; see `rulka.simulator.race_end`."""

    max_race_s: RaceSeconds = Field(description="a race is cut after this long")
    no_progress_s: RaceSeconds = Field(description="a race is cut after this long without getting further")
    min_gain_m: float = Field(gt=0, le=1000, description="getting further by less than this does not count")


class LineStartParams(Section):
    """How races start that all start at the line; see `rulka.simulator.race_start`."""

    start_lateral_m: LateralM = Field(description="races begin at most this far beside the line")
    start_heading_deg: AngleDeg = Field(description="and turned by at most this much")


class RaceStartParams(LineStartParams):
    """The start of races that an agent trains on."""

    start_anywhere: Share = Field(description="share of races that begin anywhere on the track, not at the start line")
    start_speed_mps: StartSpeedMps = Field(description="speed at which those begin")
    start_from_earlier: Share = Field(description="share of races that begin where an earlier one of their car was")

    @model_validator(mode="after")
    def _check_starts(self) -> Self:
        if self.start_anywhere + self.start_from_earlier > 1.0:
            message = "start_anywhere and start_from_earlier are shares of the same races: at most 1 together"
            raise ValueError(message)
        return self


class TrackParams(Section):
    """The track generated where there are no recordings."""

    seed: Seed = Field(description="of the shape of the track")
    length_m: float = Field(ge=150, le=10_000, description="distance from start to finish")
    width_m: float = Field(ge=4, le=100, description="width of the road")
    max_slope: float = Field(ge=0, lt=0.5, description="steepest rise or fall, metres for each metre driven")
    gate_spacing_m: float = Field(ge=5, le=10_000, description="about this far apart are the checkpoints")
    difficulty: Literal["easy", "medium", "hard", "expert"] = Field(description="see `rulka.tracks.difficulty`")


class MainTrackParams(Section):
    """The main track of `data/races`, of which the demonstrations are."""

    kind: Literal["main"] = Field(description="the main track of data/races")

    @property
    def count(self) -> int:
        """How many tracks they are."""
        return 1


class CampaignTracksParams(Section):
    """Some tracks of the campaign."""

    kind: Literal["campaign"] = Field(description="tracks of the campaign")
    slugs: tuple[CampaignSlug, ...] = Field(strict=False, min_length=1, description="which, as `rulka track list` says")

    @property
    def count(self) -> int:
        """How many tracks they are."""
        return len(self.slugs)


class GeneratedTracksParams(TrackParams):
    """Tracks generated from one seed after another; a seed that makes no track is passed over."""

    kind: Literal["generated"] = Field(description="generated tracks, from `seed` on")
    count: Several = Field(description="how many")


TracksParams = Annotated[MainTrackParams | CampaignTracksParams | GeneratedTracksParams, Field(discriminator="kind")]
"""Some tracks, told apart by their `kind`; see `rulka.tracks.chosen`."""


class DriverParams(Section):
    """The field of built-in drivers; see `rulka.simulator.driver`."""

    pace_low: float = Field(gt=0, le=1, description="share of the possible speed that the most careful driver drives")
    pace_high: float = Field(gt=0, le=1, description="and the boldest")
    slip_chance: Share = Field(description="chance that a decision is left as it was, at most")
    line_m: LateralM = Field(description="drivers aim at a line at most this far beside the centre")

    @model_validator(mode="after")
    def _check(self) -> DriverParams:
        check_order(self, "pace_low", "pace_high")
        return self


class SelectParams(Section):
    """Which recordings the stage `races` uses; all others are named with the reason."""

    device: Literal["any", "keyboard", "analog"] = Field(description="what the player drove with")
    with_respawns: bool = Field(description="whether races in which the player respawned are used; their paths jump")
    min_race_s: Positive | None = Field(description="shortest race; null for any")
    max_race_s: Positive | None = Field(description="longest race; null for any")
    environment: str | None = Field(description="as recordings name it, for example Stadium; null for any")
    max_best_ratio: float | None = Field(
        ge=1.0, le=MOST, description="slowest race, in times of the map's best; null for any"
    )

    @model_validator(mode="after")
    def _check_range(self) -> SelectParams:
        check_order(self, "min_race_s", "max_race_s")
        return self


class RaceParams(Section):
    """Stage `races`: recordings, or demonstrations by the built-in driver."""

    source: Literal["auto", "recordings", "driver"] = Field(
        description="who drove: people, the built-in driver, or people where there are recordings (auto)"
    )
    map_uid: str | None = Field(description="map of the main track; null takes the one with most usable races")
    campaign: CampaignSlug | None = Field(
        description="without recordings: race on this campaign track, not on a generated one"
    )
    select: SelectParams = Field(description="which recordings are used")
    num_demonstrations: int = Field(
        ge=1, le=100_000, description="races driven by the built-in driver without recordings"
    )
    driver: DriverParams = Field(description="how the built-in driver drives")
    reference_decisions: Whole = Field(description="decisions simulated for the reference lap; 0 for none")
    seed: Seed = Field(description="of the built-in drivers: their pace, lines and slips")


class CaptureParams(Section):
    """Stage `capture`: races to frames."""

    backend: Backend = Field(description="who draws: the simulator's camera, or the game, in which races are replayed")
    maps: MapChoice = Field(description="whose races: the main track's, or those of all maps, to see more roads")
    steer_dead_zone: float = Field(ge=0, lt=1, description="analog steering of at most this size counts as none")
    shard_frames: BatchSize = Field(description="frames in one shard")
    num_workers: int = Field(ge=1, le=256, description="processes that draw frames side by side")
    validation_fraction: float = Field(
        ge=0, lt=1, description="share of a map's races that choose an epoch, by a hash of each; 0 holds out none"
    )
    test_fraction: float = Field(ge=0, lt=1, description="share of a map's races that are only measured on")

    @model_validator(mode="after")
    def _check(self) -> CaptureParams:
        if self.validation_fraction + self.test_fraction >= 1:
            message = "validation_fraction and test_fraction are shares of the same races: less than 1 together"
            raise ValueError(message)
        if self.backend == "game" and self.maps == "all":
            message = "the game shows the one map that is open: with backend game, maps must be main"
            raise ValueError(message)
        return self


class EvaluateParams(LineStartParams):
    """Stage `evaluate`: greedy races from fixed seeds."""

    tracks: tuple[TracksParams, ...] = Field(strict=False, description="raced on too, beside the track of data/races")
    num_races: Several = Field(description="races of each contestant")
    seed: Seed = Field(description="start k of a race is drawn from seed + k")
    video_width: int = Field(ge=64, le=7680, multiple_of=2, description="pixels")
    video_height: int = Field(ge=64, le=7680, multiple_of=2, description="pixels")
    video_fps: int = Field(ge=1, le=240, description="frames a second of the video, which plays in real time")
