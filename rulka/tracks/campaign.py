"""The campaign: ten named, generated tracks, from a first lap to a long finale, each with a theme of its own.

Each is generated on demand from a few numbers in `campaign.yaml`. Reference laps and results depend on the tracks, so a
test pins a hash of each geometry: changes to the generator must not change them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rulka.machine.errors import UserError
from rulka.tracks.campaign_slugs import CampaignSlug
from rulka.tracks.difficulty import ASPHALT, DIRT, GRASS, Arc, Difficulty, difficulty_named
from rulka.tracks.generate import generate_track
from rulka.tracks.track import DROP, VERGE, WALL, Track

UID_PREFIX = "campaign-"
FILE = Path(__file__).with_name("campaign.yaml")
IDS = {"asphalt": ASPHALT, "grass": GRASS, "dirt": DIRT, "verge": VERGE, "wall": WALL, "drop": DROP}


@dataclass(frozen=True)
class CampaignTrack:
    """The recipe of a campaign track.

    Attributes:
        slug: identifier.
        name: display name.
        features: short description, for people.
        seed, length_m, width_m, max_slope, gate_spacing_m: arguments of `rulka.tracks.generate.generate_track`.
        style: the track's difficulty, with its own shapes, surfaces and edges.
    """

    slug: CampaignSlug
    name: str
    features: str
    seed: int
    length_m: float
    width_m: float
    max_slope: float
    gate_spacing_m: float
    style: Difficulty


def _entry(slug: CampaignSlug, fields: dict[str, Any]) -> CampaignTrack:
    """Builds an entry from its fields in the file, which names surfaces and edges."""
    base, changes = difficulty_named(fields.pop("difficulty"), fields["seed"]), {}
    for name, value in fields.pop("style").items():
        if isinstance(value, dict):
            changes[name] = Arc(*(tuple(value[part]) for part in ("radius_m", "angle_deg")))
        elif isinstance(value, list):
            changes[name] = tuple(IDS.get(each, each) for each in value)
        else:
            changes[name] = IDS.get(value, value)
    return CampaignTrack(slug=slug, style=replace(base, **changes), **fields)


CAMPAIGN = tuple(_entry(slug, fields) for slug, fields in yaml.safe_load(FILE.read_text(encoding="utf-8")).items())
"""Ten tracks, easiest first."""


@lru_cache(maxsize=len(CAMPAIGN))
def campaign_track(slug: str) -> Track:
    """Returns a campaign track; it is cached, so its arrays are read-only.

    Raises:
        UserError: if the slug is unknown.
    """
    entry = next((entry for entry in CAMPAIGN if entry.slug == slug), None)
    if entry is None:
        raise UserError(f"the campaign has no track {slug!r}; it has {', '.join(entry.slug for entry in CAMPAIGN)}")
    shape = entry.seed, entry.length_m, entry.width_m, entry.max_slope, entry.gate_spacing_m
    source = f"campaign, made from seed {entry.seed}"
    track = replace(generate_track(*shape, entry.style), uid=UID_PREFIX + slug, name=entry.name, source=source)
    for values in vars(track).values():
        if isinstance(values, np.ndarray):
            values.flags.writeable = False
    return track
