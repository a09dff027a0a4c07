"""What `rulka frames` does."""

from __future__ import annotations

from pathlib import Path

from rulka.datasets.frames import FrameDataError, FrameIndex
from rulka.datasets.hugging_face import export_frames, import_frames
from rulka.datasets.races import load_races
from rulka.params import read_params
from rulka.stage import output_folder

RACES_DIR = Path("data/races")


def export_dataset(frames: Path, out: Path, *, licence: str, with_players: bool) -> FrameIndex:
    """Exports frames; `with_players` names who drove each race, after `data/races`."""
    players = {race.race_id: race.player for race in load_races(RACES_DIR).races} if with_players else None
    return export_frames(frames, out, licence=licence, players=players)


def import_dataset(folder: Path, frames: Path) -> FrameIndex:
    """Imports frames into a folder that must not exist yet.

    Raises:
        FrameDataError: if it does, or if the export is damaged.
    """
    if frames.exists():
        message = f"{frames.as_posix()} is there already and is not written over"
        raise FrameDataError(message, hint="Name another folder with --frames.")
    with output_folder(frames) as partial:
        return import_frames(folder, partial, shard_frames=read_params().capture.shard_frames)
