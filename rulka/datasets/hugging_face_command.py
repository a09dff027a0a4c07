"""What `rulka frames` does."""

from __future__ import annotations

import os
from pathlib import Path

from rulka.datasets.frames import FrameDataError, FrameIndex
from rulka.datasets.hugging_face import export_frames, import_frames
from rulka.datasets.races import load_races
from rulka.folders import RACES
from rulka.graph import GRAPH_FILE, read_graph
from rulka.outputs import not_written
from rulka.params import read_params
from rulka.stage import output_folder


def export_dataset(frames: Path, out: Path, *, licence: str, with_players: bool) -> FrameIndex:
    """Exports frames; `with_players` names who drove each race, after `data/races`."""
    players = {race.race_id: race.player for race in load_races(RACES).races} if with_players else None
    return export_frames(frames, out, licence=licence, players=players)


def import_dataset(folder: Path, frames: Path) -> FrameIndex:
    """Imports frames into a folder that must not exist yet.

    Raises:
        FrameDataError: if it does, or if the export is damaged.
        OutputError: if the folder cannot be written.
    """
    if frames.exists():
        message = f"{frames.as_posix()} is there already and is not written over"
        raise FrameDataError(message, hint="Name another folder with --frames.")
    shard_frames = read_params().capture.shard_frames
    try:
        with output_folder(frames) as partial:
            return import_frames(folder, partial, shard_frames=shard_frames)
    except OSError as error:
        raise not_written(frames, error) from error


def stage_writing(folder: Path) -> str | None:
    """Returns the stage of `dvc.yaml` here whose output a folder is, None where it is none's."""
    if not GRAPH_FILE.is_file():
        return None
    stages = read_graph()
    outputs = {str(output): name for name, stage in stages.items() for output in stage["outs"]}
    return outputs.get(Path(os.path.relpath(folder)).as_posix())
