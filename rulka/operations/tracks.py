"""Tracks on which agents are compared."""

from __future__ import annotations

from collections.abc import Sequence

from rulka.datasets.formats.races import load_main_track
from rulka.params import Params
from rulka.stages.folders import RACES, TRACKS
from rulka.tracks.campaign import CAMPAIGN, campaign_track
from rulka.tracks.find import chosen_tracks, find_track
from rulka.tracks.generate import generate_track
from rulka.tracks.track import Track

MAIN, WHOLE_CAMPAIGN, HELD_OUT = "main", "campaign", "held-out"
HELD_OUT_SEEDS = {"easy": 90_001, "medium": 90_002, "hard": 90_003, "expert": 90_004}
"""Seeds of held-out generated tracks, by difficulty: `train.tracks` counts up from seeds that are far smaller.
A test pins their shapes, since nights are compared over months.
"""


def tracks_to_race_on(names: Sequence[str], params: Params) -> list[Track]:
    """Returns the named tracks; without names the main one and those of `evaluate.tracks`.

    Args:
        names: slugs, UIDs or files; "main" stands for the main track of the race dataset, "campaign" for all tracks of
            the campaign, "held-out" for those of `HELD_OUT_SEEDS`.
        params: for `evaluate.tracks`.

    Raises:
        UserError: if a track, or the race dataset, is missing or damaged.
    """
    if not names:
        main = load_main_track(RACES)
        return [main, *(track for track in chosen_tracks(params.evaluate.tracks, main) if track.uid != main.uid)]
    return [track for name in names for track in _tracks_of(name)]


def _tracks_of(name: str) -> list[Track]:
    if name == WHOLE_CAMPAIGN:
        return [campaign_track(entry.slug) for entry in CAMPAIGN]
    if name == HELD_OUT:
        return [generate_track(seed, 600.0, 16.0, 0.12, 150.0, kind) for kind, seed in HELD_OUT_SEEDS.items()]
    return [load_main_track(RACES) if name == MAIN else find_track(name, TRACKS)]
