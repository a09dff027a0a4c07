"""How fast races become frames on one core, without the game: `python -m benchmarks.capture [--recordings DIR]`.

Frames per second of CPU time, the whole way of the stage `capture` in one process: cars at every decision, labels,
floats, frames, and shards written to disk; and the parts of it. The races are recordings of one map where a folder of
them is given, else those of the built-in driver on the track of params.yaml. Best of some interleaved tries.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rulka.actions import action_table
from rulka.artifacts import observation_contract
from rulka.datasets.capture import CaptureSettings, capture_race, cars_at, decision_times, labels
from rulka.datasets.frames import CapturedRace, FrameWriter
from rulka.datasets.from_recordings import find_recordings, read_race_dataset
from rulka.datasets.races import RaceDataset
from rulka.datasets.split import split_races
from rulka.observation import CAR
from rulka.params import Params, read_params
from rulka.race_settings import RaceSettings
from rulka.simulator.demonstrations import record_demonstrations
from rulka.simulator.render import FrameRenderer, camera_array
from rulka.simulator.scene import bake_scene
from rulka.tracks.generate import generate_track
from rulka.tracks.progress import progress_along
from tasks.races import race_of_driver

TRIES = 7
NUM_RACES = 6


def dataset_of(params: Params, recordings: Path | None) -> RaceDataset:
    """Returns the races to capture."""
    if recordings is not None:
        files = find_recordings(recordings)
        return read_race_dataset(recordings, files, params.races.map_uid, params.races.select, lambda: None)
    table = action_table(params.actions.ticks_per_action)
    track = generate_track(**params.track.model_dump())
    driver = params.races.driver
    settings = RaceSettings.for_demonstrations(params.actions, params.simulator, params.race_end)
    driven = record_demonstrations(track, settings, driver, NUM_RACES, params.races.seed)
    races = tuple(race_of_driver(race, track.uid, table) for race in driven if race.is_finished)
    return RaceDataset(races, track, ())


def parts(params: Params, dataset: RaceDataset) -> dict[str, Callable[[], int]]:
    """Returns what is measured by name; each returns how many frames it made."""
    races, track = dataset.on_main_track(), dataset.main_track
    table, scene = action_table(params.actions.ticks_per_action), bake_scene(track)
    size = params.observation
    settings = CaptureSettings(
        height=size.height,
        width=size.width,
        table=table,
        steer_dead_zone=params.capture.steer_dead_zone,
        camera=camera_array(params.simulator.camera),
    )
    times = [decision_times(race, table.duration_ms) for race in races]
    cars = [cars_at(race, at) for race, at in zip(races, times, strict=True)]
    zones = [progress_along(track, rows[:, CAR["position"]])[0] for rows in cars]
    captured = [capture_race(race, track, scene, settings) for race in races]
    total = sum(map(len, times))

    def draw() -> int:
        for rows, zone in zip(cars, zones, strict=True):
            out = np.empty((len(rows), size.height, size.width), np.uint8)
            FrameRenderer(rows, zone, scene, settings.camera).render(out)
        return total

    def write(frames: list[CapturedRace]) -> int:
        with tempfile.TemporaryDirectory() as folder:
            writer = FrameWriter(
                Path(folder),
                observation=observation_contract(size),
                actions=table,
                main_track=track.uid,
                splits=split_races([race.race_id for race in frames], params.capture.validation_fraction, 0.0),
            )
            for race in frames:
                writer.add(race)
            writer.close()
        return total

    return {
        "races to shards": lambda: write([capture_race(race, track, scene, settings) for race in races]),
        "cars at every decision": lambda: sum(len(cars_at(r, at)) for r, at in zip(races, times, strict=True)),
        "labels": lambda: sum(len(labels(r, at, settings)[1]) for r, at in zip(races, times, strict=True)),
        "progress": lambda: sum(len(progress_along(track, rows[:, CAR["position"]])[0]) for rows in cars),
        "frames drawn": draw,
        "shards written": lambda: write(captured),
    }


def measure(variants: dict[str, Callable[[], int]]) -> dict[str, float]:
    """Returns frames per CPU second of each."""
    best = dict.fromkeys(variants, 0.0)
    for _ in range(TRIES):
        for name, run in variants.items():
            start_s = time.process_time()
            num_frames = run()
            best[name] = max(best[name], num_frames / (time.process_time() - start_s))
    return best


def main() -> None:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recordings", type=Path, help="folder of Gbx files; the map with most of them is captured")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    params = read_params()
    dataset = dataset_of(params, arguments.recordings)
    rates = measure(parts(params, dataset))
    if arguments.json:
        print(json.dumps(rates))
        return
    print(f"frames per CPU second, {len(dataset.races)} races on {dataset.main_track.name}\n")
    for name, rate in rates.items():
        print(f"  {name:24s} {rate:12,.0f}")


if __name__ == "__main__":
    main()
