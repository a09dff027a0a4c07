"""Tracks by name (of the campaign, of a race dataset, files), and all that parameters ask for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from rulka.errors import UserError
from rulka.params.problems import did_you_mean
from rulka.tracks.campaign import CAMPAIGN, campaign_track
from rulka.tracks.generate import generate_track
from rulka.tracks.params import CampaignTracksParams, GeneratedTracksParams, TracksParams
from rulka.tracks.track import Track, TrackError, load_track

MOST_FRUITLESS = 100
"""Seeds that may be passed over, one after another, before it is the settings that make no track."""


class UnknownTrackError(TrackError):
    """A track that was named but cannot be found."""


def find_track(name: str | Path, tracks_dir: Path | None = None) -> Track:
    """Returns the track of a name: a slug of the campaign, the UID of a track in a folder, or the path of a track file.

    Args:
        name: the name or path.
        tracks_dir: folder of `<uid>.npz` files, usually `rulka.folders.TRACKS`; it may be missing, None is none.

    Raises:
        UnknownTrackError: if there is none.
        TrackError: if it is a file that holds no valid track.
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
    raise UnknownTrackError(message, hint="`rulka track list` shows the tracks of the campaign.")


class TracksAlikeError(UserError):
    """A track was asked for twice."""


def chosen_tracks(sets: Sequence[TracksParams], main: Track) -> list[Track]:
    """Returns all tracks of some sets, in their order.

    Args:
        sets: what parameters say.
        main: the track of `data/races`.

    Raises:
        TracksAlikeError: if one of them comes twice.
    """
    tracks = [track for some in sets for track in _tracks_of(some, main)]
    uids = [track.uid for track in tracks]
    twice = sorted({uid for uid in uids if uids.count(uid) > 1})
    if twice:
        message = f"the track {twice[0]} is among the tracks twice"
        raise TracksAlikeError(message, hint="Name each once; give generated ones other seeds or another length.")
    return tracks


def _tracks_of(some: TracksParams, main: Track) -> Iterator[Track]:
    if isinstance(some, CampaignTracksParams):
        yield from map(campaign_track, some.slugs)
    elif isinstance(some, GeneratedTracksParams):
        yield from _generated(some)
    else:
        yield main


def _generated(some: GeneratedTracksParams) -> Iterator[Track]:
    shape = some.model_dump(exclude={"kind", "count", "seed"})
    seeds = count(some.seed)
    for _ in range(some.count):
        for fruitless, seed in enumerate(seeds):
            try:
                yield generate_track(seed, **shape)
                break
            except TrackError:  # no layout of this seed keeps clear of itself
                if fruitless == MOST_FRUITLESS:
                    raise
