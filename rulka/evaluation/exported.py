"""The best race of an evaluation as a recording and as an input script."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rulka.actions import ActionTable
from rulka.datasets.export import write_race
from rulka.datasets.races import Race
from rulka.evaluation.result import RaceResult
from rulka.tracks.track import Track

RECORDING_FILE, SCRIPT_FILE = "best_race.Replay.Gbx", "best_race.txt"


def export_result(folder: Path, result: RaceResult, track: Track, table: ActionTable, player: str) -> None:
    """Writes `best_race.Replay.Gbx` and `best_race.txt` into a folder."""
    race = race_of_result(result, track, table, player)
    for name in (RECORDING_FILE, SCRIPT_FILE):
        write_race(race, folder / name)


def race_of_result(result: RaceResult, track: Track, table: ActionTable, player: str) -> Race:
    """Returns a race of an evaluation as one of the dataset: inputs of every tick, and the car at every decision."""
    passed = result.gate_times_ms[result.gate_times_ms > 0]
    return Race(
        race_id=f"evaluation-{result.seed}",
        source="driver",
        file="",
        player=player,
        map_uid=track.uid,
        race_time_ms=result.time_ms,
        is_finished=result.is_finished,
        checkpoint_times_ms=tuple(int(time) for time in passed),
        seed=result.seed,
        controls=np.repeat(result.controls[:-1], table.ticks_per_action, axis=0),
        state_time_ms=result.sample_ms,
        state=result.cars,
    )
