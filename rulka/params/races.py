"""Where races come from, how they start, end and are raced for evaluation.

Sections `race_end`, `track`, `races`, `capture` and `evaluate`, and sets of tracks, which `train` reads too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from rulka.campaign_slugs import CampaignSlug
from rulka.params.base import (
    MOST,
    AngleDeg,
    Backend,
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
    key,
    wrong_order,
)


class RaceEndParams(Section):
    """The end of every race, whoever drives it and whatever for; see `rulka.simulator.race_end`."""

    max_race_s: RaceSeconds = key(120.0, "a race is cut after this long")
    no_progress_s: RaceSeconds = key(2.0, "a race is cut after this long without getting further")
    min_gain_m: float = key(0.5, "getting further by less than this does not count", gt=0, le=1000)


class LineStartParams(Section):
    """How races start that all start at the line; see `rulka.simulator.race_start`."""

    start_lateral_m: LateralM = key(1.0, "races begin at most this far beside the line")
    start_heading_deg: AngleDeg = key(3.0, "and turned by at most this much")


class RaceStartParams(LineStartParams):
    """The start of races that an agent trains on."""

    start_anywhere: Share = key(0.5, "share of races that begin anywhere on the track, not at the start line")
    start_speed_mps: StartSpeedMps = key(30.0, "speed at which those begin")
    start_from_earlier: Share = key(0.0, "share of races that begin where an earlier one of their car was")

    def _impossible(self) -> Iterator[str]:
        if self.start_anywhere + self.start_from_earlier > 1.0:
            yield "start_anywhere and start_from_earlier are shares of the same races: at most 1 together"


class TrackParams(Section):
    """The track generated where there are no recordings."""

    seed: Seed = key(5, "of the shape of the track")
    length_m: float = key(600.0, "distance from start to finish", ge=150, le=10_000)
    width_m: float = key(16.0, "width of the road", ge=4, le=100)
    max_slope: float = key(0.12, "steepest rise or fall, metres for each metre driven", ge=0, lt=0.5)
    gate_spacing_m: float = key(120.0, "about this far apart are the checkpoints", ge=5, le=10_000)
    difficulty: Literal["easy", "medium", "hard", "expert"] = key("medium", "see `rulka.tracks.difficulty`")


class MainTrackParams(Section):
    """The main track of `data/races`, of which the demonstrations are."""

    kind: Literal["main"] = key("main", "the main track of data/races")

    @property
    def count(self) -> int:
        """How many tracks they are."""
        return 1


class CampaignTracksParams(Section):
    """Some tracks of the campaign."""

    kind: Literal["campaign"] = key("campaign", "tracks of the campaign")
    slugs: tuple[CampaignSlug, ...] = Field(strict=False, min_length=1, description="which, as `rulka track list` says")

    @property
    def count(self) -> int:
        """How many tracks they are."""
        return len(self.slugs)


class GeneratedTracksParams(TrackParams):
    """Tracks generated from one seed after another; a seed that makes no track is passed over."""

    kind: Literal["generated"] = key("generated", "generated tracks, from `seed` on")
    count: Several = Field(description="how many")


TracksParams = Annotated[MainTrackParams | CampaignTracksParams | GeneratedTracksParams, Field(discriminator="kind")]
"""Some tracks, told apart by their `kind`; see `rulka.tracks.find`."""


class DriverParams(Section):
    """The field of built-in drivers; see `rulka.simulator.driver`."""

    pace_low: float = key(0.65, "share of the possible speed that the most careful driver drives", gt=0, le=1)
    pace_high: float = key(0.98, "and the boldest", gt=0, le=1)
    slip_chance: Share = key(0.3, "chance that a decision is left as it was, at most")
    line_m: LateralM = key(2.0, "drivers aim at a line at most this far beside the centre")

    def _impossible(self) -> Iterator[str]:
        yield from wrong_order(self, "pace_low", "pace_high")


class SelectParams(Section):
    """Which recordings the stage `races` uses; all others are named with the reason."""

    device: Literal["any", "keyboard", "analog"] = key("any", "what the player drove with")
    with_respawns: bool = key(False, "whether races in which the player respawned are used; their paths jump")
    min_race_s: Positive | None = key(None, "shortest race; null for any")
    max_race_s: Positive | None = key(None, "longest race; null for any")
    environment: str | None = key(None, "as recordings name it, for example Stadium; null for any")
    max_best_ratio: float | None = key(None, "slowest race, in times of the map's best; null for any", ge=1.0, le=MOST)

    def _impossible(self) -> Iterator[str]:
        yield from wrong_order(self, "min_race_s", "max_race_s")


class RaceParams(Section):
    """Stage `races`: recordings, or demonstrations by the built-in driver."""

    source: Literal["auto", "recordings", "driver"] = key(
        "auto", "who drove: people, the built-in driver, or people where there are recordings (auto)"
    )
    map_uid: str | None = key(None, "map of the main track; null takes the one with most usable races")
    campaign: CampaignSlug | None = key(None, "without recordings: race on this campaign track, not on a generated one")
    select: SelectParams = key(SelectParams(), "which recordings are used")
    num_demonstrations: int = key(40, "races driven by the built-in driver without recordings", ge=1, le=100_000)
    driver: DriverParams = key(DriverParams(), "how the built-in driver drives")
    reference_decisions: Whole = key(4_000_000, "decisions simulated for the reference lap; 0 for none")
    seed: Seed = key(1, "of the built-in drivers: their pace, lines and slips")


class CaptureParams(Section):
    """Stage `capture`: races to frames."""

    backend: Backend = key("simulator", "who draws: the simulator's camera, or the game, in which races are replayed")
    maps: MapChoice = key("all", "whose races: the main track's, or those of all maps, to see more roads")
    steer_dead_zone: float = key(0.0153, "analog steering of at most this size counts as none", ge=0, lt=1)
    num_workers: int = key(2, "processes that draw frames side by side", ge=1, le=256)
    validation_fraction: float = key(
        0.1, "share of a map's races that choose an epoch, by a hash of each; 0 holds out none", ge=0, lt=1
    )
    test_fraction: float = key(0.1, "share of a map's races that are only measured on", ge=0, lt=1)

    def _impossible(self) -> Iterator[str]:
        if self.validation_fraction + self.test_fraction >= 1:
            yield "validation_fraction and test_fraction are shares of the same races: less than 1 together"
        if self.backend == "game" and self.maps == "all":
            yield "the game shows the one map that is open: with backend game, maps must be main"
