"""Converts between races of the race dataset and races of an evaluation."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.actions import TICK_MS
from rulka.datasets.export import write_race
from rulka.datasets.formats.races import META_FILE, Race, RaceDataset, load_races, track_path
from rulka.evaluation.results import Evaluation, RaceResult, best_race
from rulka.tracks.find import find_track
from rulka.tracks.track import Track

_LOGGER = logging.getLogger(__name__)
RANDOM, REFERENCE = "random", "reference"
"""Keys of the contestant with random actions and of the reference lap."""


def track_and_demonstrations(name: str | None, races_dir: Path) -> tuple[Track, list[RaceResult]]:
    """Finds a track and its demonstrations, which only the race dataset's main track has.

    Args:
        name: file, slug in the campaign or UID in the race dataset; None is the main track there.
        races_dir: the race dataset, which may be missing if a track is named.

    Raises:
        TrackError: if there is no such track.
        UserError: if the race dataset or the file is missing or damaged.
    """
    dataset = load_races(races_dir) if (races_dir / META_FILE).exists() or name is None else None
    if dataset is not None and name in (None, dataset.main_track.uid):
        return dataset.main_track, demonstration_results(dataset.on_main_track(), dataset.main_track)
    track = find_track(name or "", track_path(races_dir, name or "").parent)
    is_main = dataset is not None and track.uid == dataset.main_track.uid
    return track, demonstration_results(dataset.on_main_track(), track) if dataset and is_main else []


def demonstration_results(races: Sequence[Race], track: Track) -> list[RaceResult]:
    """Converts recorded or demonstrated races on a track to race results, with their recorded times."""
    return [_result(race, track) for race in races]


def _result(race: Race, track: Track) -> RaceResult:
    num_samples = _samples_until_finish(race)
    cars, sample_ms = race.state[:num_samples], race.state_time_ms[:num_samples]
    time_ms = race.race_time_ms if race.is_finished else None
    gate_times_ms = _gate_times_ms(race, len(track.gate_m))
    return RaceResult.recorded(track, time_ms, gate_times_ms, sample_ms, cars, _controls_at(race, sample_ms))


def _samples_until_finish(race: Race) -> int:
    """Returns the number of samples up to the first one at or after the finish."""
    if race.race_time_ms is None:
        return len(race.state_time_ms)
    return min(len(race.state_time_ms), int(np.searchsorted(race.state_time_ms, race.race_time_ms)) + 1)


def _gate_times_ms(race: Race, num_gates: int) -> NDArray[np.int64]:
    """Returns [G] times at the gates, 0 where a gate was not passed; the finish is always the last one."""
    times_ms = np.zeros(num_gates, np.int64)
    before_finish = race.checkpoint_times_ms[:-1] if race.is_finished else race.checkpoint_times_ms
    passed = np.array(before_finish[: num_gates - 1], dtype=np.int64)
    times_ms[: len(passed)] = passed
    if race.is_finished and race.race_time_ms is not None:
        times_ms[-1] = race.race_time_ms
    return times_ms


def _controls_at(race: Race, sample_ms: NDArray[np.int64]) -> NDArray[np.float32]:
    """Returns the inputs held at every sample; after the last tick, the last known ones."""
    if race.num_ticks == 0:
        return np.zeros((len(sample_ms), 3), np.float32)
    tick = np.clip(sample_ms // TICK_MS, 0, race.num_ticks - 1)
    return race.controls[tick]


def export_result(path: Path, result: RaceResult, player: str) -> None:
    """Writes the inputs of a race as a script; warns instead if a pedal is partially pressed."""
    race = race_of_result(result, player)
    if np.isin(race.controls[:, 1:], (0.0, 1.0)).all():
        write_race(race, path)
    else:
        _LOGGER.warning("the best race has no input script: these know pedals that are pressed or not")


def best_laps(evaluations: Sequence[Evaluation]) -> RaceDataset:
    """Returns the best race of each contestant except random actions, and the reference lap, on all tracks.

    Args:
        evaluations: one per track, the main track first.
    """
    races = []
    for evaluation in evaluations:
        uid = evaluation.track.uid
        found = [(each.key, each.label, best_race(each.races)) for each in evaluation.contestants if each.key != RANDOM]
        found.append((REFERENCE, "Reference lap", evaluation.reference))
        races += [replace(race_of_result(race, label), race_id=f"{key}-{uid}") for key, label, race in found if race]
    tracks = [evaluation.track for evaluation in evaluations]
    return RaceDataset(tuple(races), tracks[0], (), tuple(tracks[1:]))


def race_of_result(result: RaceResult, player: str) -> Race:
    """Converts the result of a policy's race to a race of the dataset: every tick's inputs, every decision's car."""
    passed = result.gate_times_ms[result.gate_times_ms > 0]
    return Race(
        race_id=f"evaluation-{result.seed}",
        source="driver",
        file="",
        player=player,
        map_uid=result.track.uid,
        race_time_ms=result.time_ms,
        is_finished=result.is_finished,
        checkpoint_times_ms=tuple(int(time) for time in passed),
        seed=result.seed,
        controls=_tick_controls(result),
        state_time_ms=result.sample_ms,
        state=result.cars,
    )


def _tick_controls(result: RaceResult) -> NDArray[np.float32]:
    """Returns the inputs [T, 3] of every tick, for decisions of one action or of a chunk."""
    held = result.controls[:, None] if result.chunk_controls is None else result.chunk_controls
    driven = held[:-1]
    return np.repeat(driven.reshape(-1, 3), np.tile(result.held_ticks, len(driven)), axis=0)
