"""Tracks by name: those of the campaign, those of a race dataset, and files."""

from __future__ import annotations

from pathlib import Path

from rulka.tracks.campaign import CAMPAIGN, campaign_track
from rulka.tracks.track import Track, TrackError, load_track


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
    message = f"there is no track {str(name)!r}: it is neither a file nor one of {', '.join([*driven, *slugs])}"
    raise UnknownTrackError(message, hint="`rulka track list` shows the tracks of the campaign.")
