"""How the tracks of the campaign are asked for; in a module of its own, so that a command's help costs nothing.

`rulka.tracks.campaign` makes the tracks, in this order.
"""

from __future__ import annotations

from typing import Literal, get_args

CampaignSlug = Literal[
    "copper-oval",
    "long-shadow",
    "sidewinder",
    "rust-and-dust",
    "thunder-bowl",
    "grasshopper",
    "patchwork",
    "figure-eight",
    "needles-eye",
    "last-light",
]

CAMPAIGN_SLUGS: tuple[CampaignSlug, ...] = get_args(CampaignSlug)
