"""Finds tracks by name (campaign, race dataset or file) and resolves the sets of tracks in parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from rulka.contracts.problems import did_you_mean
from rulka.machine.errors import UserError
from rulka.tracks.campaign import CAMPAIGN, campaign_track
from rulka.tracks.generate import generate_track
from rulka.tracks.params import CampaignTracksParams, GeneratedTracksParams, TracksParams
from rulka.tracks.track import Track, TrackError, load_track

MAX_FAILED_SEEDS = 100
"""Most consecutive seeds skipped before the settings are to blame."""


def find_track(name: str | Path, tracks_dir: Path | None = None) -> Track:
    """Returns a track by a slug of the campaign, the UID of a track in a folder, or the path of a track file.

    Args:
        name: the name or path.
        tracks_dir: folder of `<uid>.npz` files, usually `rulka.stages.folders.TRACKS`; it may be missing or None.

    Raises:
        TrackError: if there is no such track, or if the file is not a valid track.
    """
    slugs = [entry.slug for entry in CAMPAIGN]
    driven = {file.stem: file for file in sorted(tracks_dir.glob("*.npz"))} if tracks_dir else {}
    if str(name) in slugs:
        return campaign_track(str(name))
    if str(name) in driven:
        return load_track(driven[str(name)])
    if Path(name).is_file():
        return load_track(Path(name))
    names = [*driven, *slugs]
    near = did_you_mean(str(name), names) or f": it is neither a file nor one of {', '.join(names)}"
    message = f"there is no track {str(name)!r}{near}"
    raise TrackError(message, hint="`rulka track list` shows the tracks of the campaign.")


def chosen_tracks(sets: Sequence[TracksParams], main: Track, turn: int = 0) -> list[Track]:
    """Returns all tracks of the given sets, in order.

    Args:
        sets: the sets from the parameters.
        main: the main track of `data/races`.
        turn: seeds of generated tracks begin as many times `count` later; after invalid seeds turns may share tracks.

    Raises:
        UserError: if a track occurs twice.
    """
    tracks = [track for some in sets for track in _tracks_of(some, main, turn)]
    uids = [track.uid for track in tracks]
    twice = sorted({uid for uid in uids if uids.count(uid) > 1})
    if twice:
        message = f"the track {twice[0]} is among the tracks twice"
        raise UserError(message, hint="Name each once; give generated ones other seeds or another length.")
    return tracks


def _tracks_of(some: TracksParams, main: Track, turn: int) -> Iterator[Track]:
    if isinstance(some, CampaignTracksParams):
        yield from map(campaign_track, some.slugs)
    elif isinstance(some, GeneratedTracksParams):
        yield from _generated(some, turn)
    else:
        yield main


def _generated(some: GeneratedTracksParams, turn: int) -> Iterator[Track]:
    shape = some.model_dump(exclude={"kind", "count", "seed"})
    seeds = count(some.seed + turn * some.count)
    for _ in range(some.count):
        for num_failed, seed in enumerate(seeds):
            try:
                yield generate_track(seed, **shape)
                break
            except TrackError:  # every layout of this seed overlaps itself
                if num_failed == MAX_FAILED_SEEDS:
                    raise
