"""Converts the frame dataset to the layout of the Hugging Face Hub and back, without loss.

    data/<split>-<k>-of-<n>.parquet   one row per frame: `image` as PNG, `floats`, `action`, `action_share`,
                                      `tick_actions`, `controls`, `time_ms`, `along_m`, `race_id`, `map_uid`;
                                      `player` only on request
    index.json                        that of the frame dataset, with these files instead of its shards
    README.md                         the card, with the metadata that the Hub reads

The library `datasets` writes and reads it: `datasets.load_dataset(folder)`. Player names are left out by default.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rulka.contracts.actions import action_table
from rulka.contracts.artifacts import actions_to_json
from rulka.datasets.card import PICTURE, card
from rulka.datasets.formats.checksums import checksums_of, refuse_damage
from rulka.datasets.formats.frames import (
    SHARD_FRAMES,
    CapturedRace,
    FrameDataset,
    FrameIndex,
    FrameRace,
    FrameWriter,
    read_index,
    write_index,
)
from rulka.datasets.formats.split import SPLITS
from rulka.machine.errors import UserError
from rulka.stages.graph import GRAPH_FILE, read_graph
from rulka.stages.outputs import filled_folder, has_content, not_written
from rulka.stages.stage import output_folder

if TYPE_CHECKING:
    from datasets import Dataset

ROWS_PER_FILE = 50_000
_SCALARS = {"action": "uint8", "time_ms": "int32", "along_m": "float32"}
_VECTORS = {"floats": "float32", "action_share": "float32", "tick_actions": "uint8", "controls": "float32"}
_HINT = "Export it again with `rulka frames export`."


def export_frames(frames: Path, out: Path, *, licence: str, players: dict[str, str] | None = None) -> FrameIndex:
    """Writes a frame dataset in the Hub's layout.

    Args:
        frames: the frame dataset.
        out: folder to write, which must be empty or missing.
        licence: the licence's name on the Hub, for example "cc-by-4.0", or "other".
        players: names by race id, written to the column `player`; None omits that column.

    Returns:
        The index of the frame dataset.

    Raises:
        UserError: if the dataset is missing or damaged, or the folder is not empty or cannot be written.
    """
    from datasets import disable_progress_bars

    disable_progress_bars()
    if has_content(out):
        raise UserError(f"{out.as_posix()} is not empty", hint="Name a new folder, or remove this one first.")
    index = read_index(frames)
    files: dict[str, list[str]] = {}
    with filled_folder(out) as folder:
        (folder / "data").mkdir()
        for split in SPLITS:
            dataset = FrameDataset(frames, split)
            starts = range(0, len(dataset), ROWS_PER_FILE)
            files[split] = [f"data/{split}-{k:05d}-of-{len(starts):05d}.parquet" for k in range(len(starts))]
            for name, start in zip(files[split], starts, strict=True):
                rows = slice(start, min(start + ROWS_PER_FILE, len(dataset)))
                _rows(dataset, rows, players).to_parquet(folder / name)
        checksums = checksums_of(folder, chain.from_iterable(files.values()))
        write_index(folder, replace(index, shards=files, checksums=checksums))
        text = _header(index, [split for split in SPLITS if files[split]], licence) + card(index).replace(PICTURE, "")
        named = "The column `player` names who drove." if players is not None else "Players are not named."
        text += f"\n{named} `rulka frames import` turns this folder into shards again.\n"
        (folder / "README.md").write_text(text, encoding="utf-8")
    return index


def import_frames(folder: Path, frames: Path, *, shard_frames: int = SHARD_FRAMES) -> FrameIndex:
    """Converts an export of `export_frames` back to a frame dataset.

    Args:
        folder: the exported dataset.
        frames: folder of the new dataset, which must not exist yet.
        shard_frames: a shard is closed once it holds this many frames or more.

    Raises:
        UserError: if `frames` exists, or the export is missing, incomplete, damaged or of another version, or if the
            folder cannot be written.
    """
    if frames.exists():
        message = f"{frames.as_posix()} is there already and is not written over"
        raise UserError(message, hint="Name another folder with --frames.")
    index = read_index(folder, hint=_HINT)
    refuse_damage(folder, index.checksums, chain.from_iterable(index.shards.values()), hint=_HINT)
    if actions_to_json(action_table(index.actions["ticks_per_action"])) != index.actions:
        message = f"{folder.as_posix()} uses other actions than those known here"
        raise UserError(message, hint="Read it with the version of Rulka that wrote it.")
    try:
        with output_folder(frames) as partial:
            return _shard(folder, index, partial, shard_frames)
    except OSError as error:
        raise not_written(frames, error) from error


def _shard(folder: Path, index: FrameIndex, out: Path, shard_frames: int) -> FrameIndex:
    from datasets import load_dataset

    writer = FrameWriter(
        out,
        observation=index.observation,
        actions=action_table(index.actions["ticks_per_action"]),
        main_track=index.main_track,
        splits={race.race_id: race.split for race in index.races},
        shard_frames=shard_frames,
    )
    rows = {}
    for split, names in index.shards.items():
        if names:
            paths = [str(folder / name) for name in names]
            rows[split] = iter(load_dataset("parquet", data_files=paths, split="train", streaming=True))
    for race in index.races:
        writer.add(_race(race, rows[race.split]))
    return writer.close()


def _rows(dataset: FrameDataset, rows: slice, players: dict[str, str] | None) -> Dataset:
    from datasets import Dataset, Features, Image, List, Value

    races = [dataset.index.races[number] for number in dataset.race_index[rows]]
    columns: dict[str, Any] = {
        "image": list(dataset.images[rows][:, 0]),
        "race_id": [race.race_id for race in races],
        "map_uid": [race.map_uid for race in races],
    }
    if players is not None:
        columns["player"] = [players.get(race.race_id, "") for race in races]
    features: dict[str, Any] = {"image": Image()} | {name: Value("string") for name in columns if name != "image"}
    columns |= {name: getattr(dataset, name)[rows] for name in (*_VECTORS, *_SCALARS)}
    features |= {name: List(Value(dtype), columns[name].shape[1]) for name, dtype in _VECTORS.items()}
    features |= {name: Value(dtype) for name, dtype in _SCALARS.items()}
    return Dataset.from_dict(columns, Features(features))


def _race(race: FrameRace, rows: Iterator[dict[str, Any]]) -> CapturedRace:
    """Builds a race from the next rows, all of which are its own."""
    taken = list(islice(rows, race.num_frames))
    arrays = {name: np.array([row[name] for row in taken], dtype) for name, dtype in (_VECTORS | _SCALARS).items()}
    image = np.stack([np.asarray(row["image"]) for row in taken])[:, None]
    return CapturedRace(race_id=race.race_id, source=race.source, map_uid=race.map_uid, image=image, **arrays)


def _header(index: FrameIndex, splits: list[str], licence: str) -> str:
    from huggingface_hub import DatasetCardData

    files = [{"split": split, "path": f"data/{split}-*.parquet"} for split in splits]
    data = DatasetCardData(
        license=licence,
        pretty_name=f"Rulka frames of {index.main_track}",
        task_categories=["reinforcement-learning", "robotics"],
        tags=["trackmania", "behavioural-cloning", "rulka"],
        configs=[{"config_name": "default", "data_files": files}],
    )
    return f"---\n{data.to_yaml()}\n---\n\n"


def stage_writing(folder: Path) -> str | None:
    """Returns the stage of `dvc.yaml` that outputs a folder, or None."""
    if not GRAPH_FILE.is_file():
        return None
    stages = read_graph()
    outputs = {str(output): name for name, stage in stages.items() for output in stage["outs"]}
    return outputs.get(Path(os.path.relpath(folder)).as_posix())
