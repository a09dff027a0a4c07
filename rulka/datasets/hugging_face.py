"""The frame dataset in the layout of the Hugging Face Hub, and back: nothing is lost on the way.

    data/<split>-<k>-of-<n>.parquet   one row a frame: `image` as PNG, `floats`, `action`, `action_share`,
                                      `tick_actions`, `controls`, `time_ms`, `along_m`, `race_id`, `map_uid`;
                                      `player` only where names were asked for
    rulka.json                        the index without its shards: contracts, races, splits, statistics
    README.md                         the card, with the metadata that the Hub reads

`datasets.load_dataset(folder)` reads it as it lies. Players are not named unless asked for.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from rulka.actions import action_table
from rulka.artifacts import ObservationContract, actions_to_json
from rulka.datasets.card import PICTURE, card
from rulka.datasets.frames import (
    SCHEMA_VERSION,
    SHARD_FRAMES,
    CapturedRace,
    FrameDataError,
    FrameDataset,
    FrameIndex,
    FrameRace,
    FrameWriter,
)
from rulka.datasets.races import load_races
from rulka.datasets.split import SPLITS, Split
from rulka.folders import RACES
from rulka.graph import GRAPH_FILE, read_graph
from rulka.outputs import filled_folder, not_written
from rulka.stage import output_folder

INDEX_FILE = "rulka.json"
ROWS_PER_FILE = 50_000
PLAYER_COLUMN = "player"
_SCALARS: dict[str, tuple[pa.DataType, str]] = {
    "action": (pa.uint8(), "uint8"),
    "time_ms": (pa.int32(), "int32"),
    "along_m": (pa.float32(), "float32"),
}
_VECTORS = {"floats": "float32", "action_share": "float32", "tick_actions": "uint8", "controls": "float32"}
_HINT = "Export it again with `rulka frames export`."

_HEADER = """---
license: {licence}
pretty_name: {name}
task_categories:
- reinforcement-learning
- robotics
tags:
- trackmania
- behavioural-cloning
- rulka
size_categories:
- {size}
configs:
- config_name: default
  data_files:
{files}
---

"""


def export_frames(frames: Path, out: Path, *, licence: str, players: Mapping[str, str] | None = None) -> FrameIndex:
    """Writes a frame dataset in the Hub's layout.

    Args:
        frames: the frame dataset.
        out: folder to write, which must be empty or missing.
        licence: the Hub's name of the licence, for example "cc-by-4.0", or "other".
        players: names by race id, which adds the column `player`; None leaves them out.

    Returns:
        The index of what was exported.

    Raises:
        FrameDataError: if the dataset is missing or damaged, or the folder is not empty.
        OutputError: if the folder cannot be written.
    """
    if out.exists() and any(out.iterdir()):
        message = f"{out.as_posix()} is not empty"
        raise FrameDataError(message, hint="Name a new folder, or remove this one first.")
    datasets: dict[Split, FrameDataset] = {split: FrameDataset(frames, split) for split in SPLITS}
    index = datasets["train"].index
    content = {"schema_version": SCHEMA_VERSION} | {
        k: v for k, v in asdict(index).items() if k not in ("shards", "checksums")
    }
    with filled_folder(out) as folder:
        _write_splits(folder / "data", datasets, players)
        (folder / INDEX_FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        (folder / "README.md").write_text(_header(index, datasets, licence) + _body(index, players), encoding="utf-8")
    return index


def import_frames(folder: Path, out: Path, *, shard_frames: int = SHARD_FRAMES) -> FrameIndex:
    """Writes what `export_frames` wrote as a frame dataset again.

    Args:
        folder: the exported dataset.
        out: existing empty folder of the new dataset; its owner renames it into place.
        shard_frames: a shard is closed once it holds this many frames or more.

    Raises:
        FrameDataError: if it is not such an export, incomplete, or of another version.
    """
    index = _read_index(folder)
    table = action_table(index.actions["ticks_per_action"])
    if actions_to_json(table) != index.actions:
        message = f"{folder.as_posix()} uses other actions than those known here"
        raise FrameDataError(message, hint="Read it with the version of Rulka that wrote it.")
    writer = FrameWriter(
        out,
        observation=index.observation,
        actions=table,
        main_track=index.main_track,
        splits={race.race_id: race.split for race in index.races},
        shard_frames=shard_frames,
    )
    rows = {split: _race_tables(folder, split) for split in SPLITS}
    for race in index.races:
        writer.add(_race(race, next(rows[race.split], None), index.observation))
    return writer.close()


def _write_splits(folder: Path, datasets: Mapping[Split, FrameDataset], players: Mapping[str, str] | None) -> None:
    folder.mkdir()
    for split, dataset in datasets.items():
        starts = range(0, len(dataset), ROWS_PER_FILE)
        for number, start in enumerate(starts):
            rows = slice(start, min(start + ROWS_PER_FILE, len(dataset)))
            name = f"{split}-{number:05d}-of-{len(starts):05d}.parquet"
            _write_rows(folder / name, dataset, rows, players)


def _write_rows(path: Path, dataset: FrameDataset, rows: slice, players: Mapping[str, str] | None) -> None:
    races = [dataset.index.races[number] for number in dataset.race_index[rows]]
    images = [{"bytes": _png(image[0]), "path": None} for image in dataset.images[rows]]
    texts = {"race_id": [race.race_id for race in races], "map_uid": [race.map_uid for race in races]}
    if players is not None:
        texts[PLAYER_COLUMN] = [players.get(race.race_id, "") for race in races]
    columns: dict[str, pa.Array] = {
        "image": pa.array(images, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    }
    columns |= {name: pa.array(values, pa.string()) for name, values in texts.items()}
    features: dict[str, Any] = {"image": {"_type": "Image"}}
    features |= {name: {"dtype": "string", "_type": "Value"} for name in texts}
    for name, dtype in _VECTORS.items():
        values = getattr(dataset, name)[rows]
        columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
        feature = {"dtype": dtype, "_type": "Value"}
        features[name] = {"feature": feature, "length": values.shape[1], "_type": "List"}
    for name, (kind, dtype) in _SCALARS.items():
        columns[name] = pa.array(getattr(dataset, name)[rows], kind)
        features[name] = {"dtype": dtype, "_type": "Value"}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table(columns).replace_schema_metadata(metadata)
    pq.write_table(table, path, row_group_size=2_000, write_page_checksum=True)


def _png(image: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", compress_level=3)
    return buffer.getvalue()


def _header(index: FrameIndex, datasets: Mapping[Split, FrameDataset], licence: str) -> str:
    used = [split for split, dataset in datasets.items() if len(dataset)]
    files = "\n".join(f"  - split: {split}\n    path: data/{split}-*.parquet" for split in used)
    num_frames = sum(map(len, datasets.values()))
    bounds = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
    size = next((name for bound, name in bounds if num_frames < bound), "1M<n<10M")
    return _HEADER.format(licence=licence, name=f"Rulka frames of {index.main_track}", size=size, files=files)


def _body(index: FrameIndex, players: Mapping[str, str] | None) -> str:
    named = "The column `player` names who drove." if players is not None else "Players are not named."
    return card(index).replace(PICTURE, "") + f"\n{named} `rulka frames import` turns this folder into shards again.\n"


def _read_index(folder: Path) -> FrameIndex:
    path = folder / INDEX_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version = content.pop("schema_version")
        observation, races = ObservationContract(**content.pop("observation")), content.pop("races")
        entries = tuple(FrameRace(**race) for race in races)
        index = FrameIndex(observation=observation, races=entries, shards={}, checksums={}, **content)
    except FileNotFoundError as error:
        message = f"{folder.as_posix()} is no exported frame dataset: {INDEX_FILE} is missing"
        raise FrameDataError(message, hint=_HINT) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{path.as_posix()} cannot be read: {error}"
        raise FrameDataError(message, hint=_HINT) from error
    if version != SCHEMA_VERSION:
        message = f"{folder.as_posix()} has frame schema {version}, {SCHEMA_VERSION} is read here"
        raise FrameDataError(message, hint=_HINT)
    return index


def _race_tables(folder: Path, split: Split) -> Iterator[pa.Table]:
    """Yields the rows of one race after another, in stored order."""
    pending: list[pa.Table] = []
    for path in sorted((folder / "data").glob(f"{split}-*.parquet")):
        try:
            table = pq.read_table(path, page_checksum_verification=True)
        except (OSError, pa.ArrowInvalid) as error:
            message = f"{path.as_posix()} cannot be read: {error}"
            raise FrameDataError(message, hint=_HINT) from error
        race_ids = np.array(table["race_id"].to_pylist())
        bounds = [0, *(np.flatnonzero(race_ids[1:] != race_ids[:-1]) + 1).tolist(), len(race_ids)]
        for start, end in pairwise(bounds):
            if pending and pending[0]["race_id"][0].as_py() != race_ids[start]:
                yield pa.concat_tables(pending)
                pending = []
            pending.append(table.slice(start, end - start))
    if pending:
        yield pa.concat_tables(pending)


def _race(race: FrameRace, table: pa.Table | None, observation: ObservationContract) -> CapturedRace:
    if table is None or len(table) != race.num_frames or table["race_id"][0].as_py() != race.race_id:
        found = "nothing" if table is None else f"{len(table)} frames of {table['race_id'][0]}"
        message = f"race {race.race_id} should have {race.num_frames} frames here, found {found}"
        raise FrameDataError(message, hint=_HINT)
    images = [np.asarray(Image.open(io.BytesIO(cell["bytes"]))) for cell in table["image"].to_pylist()]
    size = (observation.height, observation.width)
    if any(image.shape != size or image.dtype != np.uint8 for image in images):
        message = f"race {race.race_id} holds images that are not grey ones of {size[0]} x {size[1]} pixels"
        raise FrameDataError(message, hint=_HINT)
    vectors = {name: _matrix(table, name, dtype) for name, dtype in _VECTORS.items()}
    scalars = {name: table[name].to_numpy() for name in _SCALARS}
    known = {"race_id": race.race_id, "source": race.source, "map_uid": race.map_uid}
    return CapturedRace(**known, image=np.stack(images)[:, None], **vectors, **scalars)


def _matrix(table: pa.Table, name: str, dtype: str) -> NDArray:
    column = table[name].combine_chunks()
    return np.asarray(column.flatten().to_numpy(zero_copy_only=False), dtype).reshape(len(table), -1)


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
    try:
        with output_folder(frames) as partial:
            return import_frames(folder, partial)
    except OSError as error:
        raise not_written(frames, error) from error


def stage_writing(folder: Path) -> str | None:
    """Returns the stage of `dvc.yaml` here whose output a folder is, None where it is none's."""
    if not GRAPH_FILE.is_file():
        return None
    stages = read_graph()
    outputs = {str(output): name for name, stage in stages.items() for output in stage["outs"]}
    return outputs.get(Path(os.path.relpath(folder)).as_posix())
