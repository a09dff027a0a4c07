"""Slugs of the campaign's tracks, in a module of their own so that a command's help loads nothing else.

`rulka.tracks.campaign` builds the tracks, in this order.
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
