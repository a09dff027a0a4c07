"""The best race of an evaluation as a recording and as an input script."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rulka.actions import ActionTable
from rulka.datasets.export import write_race
from rulka.datasets.races import Race
from rulka.evaluation.results import RaceResult
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
        controls=_tick_controls(result, table),
        state_time_ms=result.sample_ms,
        state=result.cars,
    )


def _tick_controls(result: RaceResult, table: ActionTable) -> NDArray[np.float32]:
    """Returns the inputs [T, 3] of every tick, of whatever the driver's decisions are made."""
    held = result.controls[:, None] if result.block_controls is None else result.block_controls
    num_ticks = table.ticks_per_action * table.actions_per_decision // held.shape[1]
    return np.repeat(held[:-1].reshape(-1, 3), num_ticks, axis=0)
