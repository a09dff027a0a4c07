"""Tracks by name: those of the campaign, and files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rulka.tracks.campaign import CAMPAIGN, campaign_track
from rulka.tracks.track import Track, TrackError, load_track


class UnknownTrackError(TrackError):
    """A track that was named but cannot be found."""


def find_track(name: str | Path, others: Sequence[str] = ()) -> Track:
    """Returns the track of a name: a slug of the campaign, or the path of a track file.

    Args:
        name: the name or path.
        others: names that the caller knows and did not find either, for the message.

    Raises:
        UnknownTrackError: if it is neither.
        TrackError: if it is a file that holds no valid track.
    """
    slugs = [entry.slug for entry in CAMPAIGN]
    if str(name) in slugs:
        return campaign_track(str(name))
    if Path(name).is_file():
        return load_track(Path(name))
    message = f"there is no track {str(name)!r}: it is neither a file nor one of {', '.join([*others, *slugs])}"
    raise UnknownTrackError(message, hint="`rulka track list` shows the tracks of the campaign.")
