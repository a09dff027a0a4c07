"""The campaign: ten generated tracks with names, from a first lap to a long finale. Each shows something of its own.

They are made from these few numbers whenever they are asked for. Reference laps and results depend on them, so a test
holds each to a hash of its geometry: what changes the generator must leave them as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from rulka.campaign_slugs import CampaignSlug
from rulka.errors import UserError
from rulka.tracks.difficulty import ASPHALT, DIRT, EASY, EXPERT, GRASS, HARD, MEDIUM, Arc, Difficulty
from rulka.tracks.generate import track_in_style
from rulka.tracks.track import DROP, VERGE, WALL, Track

UID_PREFIX = "campaign-"


class UnknownCampaignTrackError(UserError):
    """A campaign track that does not exist."""


@dataclass(frozen=True)
class CampaignTrack:
    """What a track of the campaign is made from.

    Attributes:
        slug: how it is asked for.
        name: for people.
        features: what it shows, a few words for people.
        seed, length_m, width_m, max_slope, gate_spacing_m: as of `rulka.tracks.generate.generate_track`.
        style: the difficulty that it belongs to, with shapes, surfaces and edges of its own.
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


CAMPAIGN = (
    CampaignTrack(
        slug="copper-oval",
        name="Copper Oval",
        features="one lap of a wide, level speedway between walls",
        seed=2,
        length_m=400.0,
        width_m=20.0,
        max_slope=0.0,
        gate_spacing_m=100.0,
        style=replace(
            EASY,
            shapes=("bend",),
            bend=Arc((36.0, 38.0), (176.0, 180.0)),
            straight_m=(98.0, 104.0),
            turn_back=0.0,
            wander_deg=None,
            clearance_widths=1.5,
            max_bank_deg=5.0,
            edges=(WALL,),
        ),
    ),
    CampaignTrack(
        slug="long-shadow",
        name="Long Shadow Downs",
        features="fast sweepers over rolling hills",
        seed=6,
        length_m=1000.0,
        width_m=16.0,
        max_slope=0.22,
        gate_spacing_m=200.0,
        style=replace(EASY, shapes=("sweeper", "bend"), sweep_deg=120.0, wander_deg=90.0),
    ),
    CampaignTrack(
        slug="sidewinder",
        name="Sidewinder",
        features="hairpins, one after another",
        seed=1,
        length_m=900.0,
        width_m=14.0,
        max_slope=0.1,
        gate_spacing_m=150.0,
        style=replace(
            MEDIUM,
            shapes=("hairpin",),
            hairpin=Arc((19.0, 24.0), (150.0, 176.0)),
            straight_m=(25.0, 70.0),
            turn_back=1.0,
            clearance_widths=1.8,
        ),
    ),
    CampaignTrack(
        slug="rust-and-dust",
        name="Rust and Dust",
        features="a dirt rally with two stretches of asphalt",
        seed=0,
        length_m=1200.0,
        width_m=15.0,
        max_slope=0.12,
        gate_spacing_m=200.0,
        style=replace(
            MEDIUM,
            surface=DIRT,
            patches=(ASPHALT,),
            patch_share=0.12,
            width_change=0.2,
            wander_deg=130.0,
            sweep_deg=-150.0,
        ),
    ),
    CampaignTrack(
        slug="thunder-bowl",
        name="Thunder Bowl",
        features="bends banked by up to 27 degrees, taken flat out",
        seed=0,
        length_m=1400.0,
        width_m=20.0,
        max_slope=0.06,
        gate_spacing_m=200.0,
        style=replace(
            MEDIUM,
            shapes=("bend", "sweeper"),
            bend=Arc((42.0, 60.0), (120.0, 190.0)),
            sweeper=Arc((70.0, 100.0), (60.0, 110.0)),
            straight_m=(40.0, 90.0),
            wander_deg=170.0,
            sweep_deg=270.0,
            clearance_widths=1.6,
            max_bank_deg=28.0,
            edges=(WALL,),
        ),
    ),
    CampaignTrack(
        slug="grasshopper",
        name="Grasshopper",
        features="jumps, and turbo pads to take them faster",
        seed=2,
        length_m=1500.0,
        width_m=18.0,
        max_slope=0.08,
        gate_spacing_m=250.0,
        style=replace(
            HARD,
            shapes=("jump", "bend", "jump", "sweeper"),
            sweep_deg=150.0,
            width_change=0.0,
            patches=(),
            turbos_per_km=2.5,
            edges=(VERGE,),
        ),
    ),
    CampaignTrack(
        slug="patchwork",
        name="Patchwork Fields",
        features="asphalt, dirt and grass in turn, the width always changing",
        seed=1,
        length_m=1700.0,
        width_m=18.0,
        max_slope=0.08,
        gate_spacing_m=200.0,
        style=replace(
            HARD,
            shapes=("bend", "hairpin", "sweeper"),
            hairpin=Arc((24.0, 30.0), (120.0, 170.0)),
            bend=Arc((45.0, 70.0), (50.0, 110.0)),
            straight_m=(30.0, 80.0),
            sweep_deg=-240.0,
            width_change=0.3,
            patches=(DIRT, GRASS),
            patch_share=0.45,
            turbos_per_km=1.2,
            edges=(VERGE,),
        ),
    ),
    CampaignTrack(
        slug="figure-eight",
        name="Over and Under",
        features="a figure of eight: the road crosses itself on a bridge",
        seed=4,
        length_m=1300.0,
        width_m=14.0,
        max_slope=0.1,
        gate_spacing_m=200.0,
        style=replace(
            HARD,
            shapes=("bend", "sweeper"),
            bend=Arc((45.0, 70.0), (110.0, 180.0)),
            sweeper=Arc((70.0, 110.0), (60.0, 120.0)),
            wander_deg=None,
            turn_back=0.3,
            clearance_widths=1.7,
            crossings=(1, 1),
            patches=(),
            turbos_per_km=0.8,
            edges=(VERGE,),
        ),
    ),
    CampaignTrack(
        slug="needles-eye",
        name="Needle's Eye",
        features="nine metres between walls, then nothing beside the road at all",
        seed=9,
        length_m=1800.0,
        width_m=9.5,
        max_slope=0.07,
        gate_spacing_m=200.0,
        style=replace(
            EXPERT,
            shapes=("bend", "hairpin", "chicane", "sweeper"),
            hairpin=Arc((19.0, 25.0), (120.0, 170.0)),
            chicane=Arc((32.0, 44.0), (28.0, 42.0)),
            straight_m=(25.0, 70.0),
            sweep_deg=200.0,
            crossings=(0, 0),
            clearance_widths=3.0,
            width_change=0.15,
            patches=(),
            turbos_per_km=0.5,
            edges=(WALL, WALL, DROP),
        ),
    ),
    CampaignTrack(
        slug="last-light",
        name="Last Light",
        features="four kilometres of everything: jumps, bridges, dirt, banks and drops",
        seed=6,
        length_m=4000.0,
        width_m=16.0,
        max_slope=0.1,
        gate_spacing_m=250.0,
        style=replace(
            EXPERT,
            shapes=("bend", "hairpin", "chicane", "sweeper", "jump"),
            hairpin=Arc((20.0, 26.0), (120.0, 175.0)),
            chicane=Arc((34.0, 48.0), (26.0, 40.0)),
            straight_m=(30.0, 80.0),
            sweep_deg=420.0,
            crossings=(1, 4),
            patches=(DIRT,),
            patch_share=0.15,
            width_change=0.2,
            turbos_per_km=1.0,
        ),
    ),
)
"""Ten tracks, the easiest first."""


@lru_cache(maxsize=len(CAMPAIGN))
def campaign_track(slug: str) -> Track:
    """Makes a track of the campaign; a second call returns the same one, whose arrays must not be written to.

    Raises:
        UnknownCampaignTrackError: if there is none of that name.
    """
    entry = next((entry for entry in CAMPAIGN if entry.slug == slug), None)
    if entry is None:
        message = f"the campaign has no track {slug!r}; it has {', '.join(entry.slug for entry in CAMPAIGN)}"
        raise UnknownCampaignTrackError(message)
    made = track_in_style(entry.seed, entry.length_m, entry.width_m, entry.max_slope, entry.gate_spacing_m, entry.style)
    source = f"campaign, made from seed {entry.seed}"
    track = Track(**{**vars(made), "uid": UID_PREFIX + slug, "name": entry.name, "source": source})
    for values in vars(track).values():
        if isinstance(values, np.ndarray):
            values.flags.writeable = False
    return track
