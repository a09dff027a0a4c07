"""Speed of reading recordings and capturing frames: `python -m benchmarks.recordings [FOLDER] [--json]`.

One thread, CPU time, the best of several interleaved tries. Decompression is unavoidable, so it is the baseline of the
reader. The same run times

* `decompression`: LZO of every body and zlib of every block of samples, and nothing else,
* `full`: reading every file completely, from bytes to arrays (maps included),
* `header`: reading only the headers of the same files, from bytes.

Targets: full at most 3 times decompression, header at least 20 times as fast as full. `frames` is the complete work of
the stage `capture` in one process, for the races of the main track: cars at every decision, labels, floats, frames, and
shards written to disk; in frames per second, beside rendering alone. FOLDER defaults to `RULKA_RECORDINGS`, else
`../shared/recordings`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np

from benchmarks.harness import best_rates, show
from rulka.contracts.actions import action_table
from rulka.contracts.artifacts import observation_contract
from rulka.contracts.observation import CAR
from rulka.datasets.capture import CaptureSettings, capture_race, cars_at, decision_times
from rulka.datasets.formats.frames import FrameWriter
from rulka.datasets.formats.races import RaceDataset
from rulka.datasets.formats.split import split_races
from rulka.datasets.from_recordings import find_recordings, read_race_dataset
from rulka.params import Params, read_params
from rulka.recordings.container import MAP, read_container
from rulka.recordings.errors import RecordingError
from rulka.recordings.header import parse_header
from rulka.recordings.reader import parse_map, parse_recording
from rulka.simulator.render import FrameRenderer, camera_array
from rulka.simulator.scene import bake_scene
from rulka.tracks.progress import progress_along

TRIES = 15
Files = list[tuple[bytes, bool]]
"""Content of each file, and True if it is a map."""


def read_whole(data: bytes, *, is_map: bool) -> None:
    """Reads one file of any kind; a rejected file counts as read up to the error."""
    try:
        (parse_map if is_map else parse_recording)(data)
    except RecordingError:
        return


def zlib_blocks(files: Files) -> list[bytes]:
    """Returns every zlib stream that is decompressed while reading the files."""
    blocks: list[bytes] = []
    make = zlib.decompressobj

    class Spy:
        def __init__(self) -> None:
            self.decoder = make()

        @property
        def eof(self) -> bool:
            return self.decoder.eof

        def decompress(self, data: bytes, limit: int) -> bytes:
            blocks.append(bytes(data))
            return self.decoder.decompress(data, limit)

    with mock.patch.object(zlib, "decompressobj", Spy):
        for data, is_map in files:
            read_whole(data, is_map=is_map)
    return blocks


def readings(files: Files) -> dict[str, Callable[[], object]]:
    """Returns the three ways of reading all files, by name."""
    blocks = zlib_blocks(files)
    return {
        "decompression": lambda: [*(read_container(data) for data, _ in files), *map(zlib.decompress, blocks)],
        "full": lambda: [read_whole(data, is_map=is_map) for data, is_map in files],
        "header": lambda: [parse_header(read_container(data, header_only=True)) for data, _ in files],
    }


def captures(params: Params, dataset: RaceDataset) -> tuple[int, dict[str, Callable[[], object]]]:
    """Returns the number of frames of the main track's races, and the variants of producing them."""
    races, track, size = dataset.on_main_track(), dataset.main_track, params.observation
    table, scene = action_table(params.actions.ticks_per_action), bake_scene(track)
    camera = camera_array(params.simulator.camera)
    settings = CaptureSettings(size.height, size.width, table, params.capture.steer_dead_zone, camera)
    cars = [cars_at(race, decision_times(race, table.duration_ms)) for race in races]
    zones = [progress_along(track, rows[:, CAR["position"]])[0] for rows in cars]

    def draw() -> None:
        for rows, zone in zip(cars, zones, strict=True):
            FrameRenderer(rows, zone, scene, camera).render(np.empty((len(rows), size.height, size.width), np.uint8))

    def write() -> None:
        with tempfile.TemporaryDirectory() as folder:
            writer = FrameWriter(
                Path(folder),
                observation=observation_contract(size),
                actions=table,
                main_track=track.uid,
                splits=split_races([race.race_id for race in races], params.capture.validation_fraction, 0.0),
            )
            for race in races:
                writer.add(capture_race(race, track, scene, settings))
            writer.close()

    return sum(map(len, cars)), {"frames": write, "frames drawn alone": draw}


def least_seconds(runs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Returns the least CPU seconds of each variant."""

    def counted(run: Callable[[], object]) -> Callable[[], int]:
        return lambda: len([run()])

    rates = best_rates({name: counted(run) for name, run in runs.items()}, TRIES, time.process_time)
    return {name: 1.0 / rate for name, rate in rates.items()}


def main() -> None:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="folder of Gbx files")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    folder, params = Path(arguments.folder or os.environ.get("RULKA_RECORDINGS", "../shared/recordings")), read_params()
    data = [path.read_bytes() for path in sorted(folder.rglob("*")) if path.suffix.lower() == ".gbx"]
    if not data:
        parser.error(f"no Gbx file is in {folder}; name another folder")
    seconds = least_seconds(readings([(one, read_container(one, header_only=True).class_id == MAP) for one in data]))
    races = params.races
    dataset = read_race_dataset(folder, find_recordings(folder), races.map_uid, races.select, lambda: None)
    num_frames, runs = captures(params, dataset)
    result = {f"{name}, ms": 1000.0 * value for name, value in seconds.items()}
    result |= {"full to decompression": seconds["full"] / seconds["decompression"]}
    result |= {"full to header": seconds["full"] / seconds["header"]}
    result |= {f"{name}/s": num_frames / value for name, value in least_seconds(runs).items()}
    show({"files": len(data), "MB": sum(map(len, data)) / 1e6} | result, arguments.json)


if __name__ == "__main__":
    main()
