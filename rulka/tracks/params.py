"""Parameters that select tracks: section `track`, and sets of tracks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rulka.contracts.section import Section, Seed, Several, key
from rulka.tracks.campaign_slugs import CampaignSlug


class TrackParams(Section):
    """The track that is generated if there are no recordings."""

    seed: Seed = key(5, "Seed of the track's shape.")
    length_m: float = key(600.0, "Distance from start to finish, in metres.", ge=150, le=10_000)
    width_m: float = key(16.0, "Width of the road, in metres.", ge=4, le=100)
    max_slope: float = key(0.12, "Steepest rise or fall, in metres per metre driven.", ge=0, lt=0.5)
    gate_spacing_m: float = key(120.0, "Approximate distance between checkpoints, in metres.", ge=5, le=10_000)
    difficulty: Literal["easy", "medium", "hard", "expert", "varied"] = key(
        "medium", "Difficulty of the track; see `rulka.tracks.difficulty`."
    )


class MainTrackParams(Section):
    """The main track of `data/races`, the one with demonstrations."""

    kind: Literal["main"] = key("main", "Main track of data/races, the one with demonstrations.")

    @property
    def count(self) -> int:
        """Number of tracks."""
        return 1


class CampaignTracksParams(Section):
    """Some tracks of the campaign."""

    kind: Literal["campaign"] = key("campaign", "Tracks of the campaign.")
    slugs: tuple[CampaignSlug, ...] = Field(
        strict=False, min_length=1, description="Campaign tracks, by their slugs in `rulka track list`."
    )

    @property
    def count(self) -> int:
        """Number of tracks."""
        return len(self.slugs)


class GeneratedTracksParams(TrackParams):
    """Tracks generated from consecutive seeds; a seed without a valid track is skipped."""

    kind: Literal["generated"] = key("generated", "Generated tracks, from `seed` on; invalid ones are skipped.")
    count: Several = Field(description="Number of tracks.")


TracksParams = Annotated[MainTrackParams | CampaignTracksParams | GeneratedTracksParams, Field(discriminator="kind")]
"""A set of tracks, discriminated by `kind`; see `rulka.tracks.find`."""
