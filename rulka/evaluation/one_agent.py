"""Races of one agent on any track, without report or files, for `rulka evaluate`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rulka.datasets.formats.races import Race
from rulka.evaluation.contest import agent_driver, race_all, trained_tracks
from rulka.evaluation.dataset import race_of_result, track_and_demonstrations
from rulka.evaluation.external_policy import is_guest
from rulka.evaluation.metrics import entries_by_track, format_metrics, format_tracks, metrics_of
from rulka.evaluation.race import EvaluationRaces, find_reference_race
from rulka.machine.device import CPU
from rulka.params import Params, with_given
from rulka.stages.folders import RACES
from rulka.tracks.track import Track


def evaluate_agent(
    agent: Path | str,
    *,
    params: Params,
    track: str | None,
    num_races: int | None,
    seed: int | None = None,
    races_dir: Path = RACES,
    device: torch.device = CPU,
) -> dict[str, Any]:
    """Runs greedy races of an agent from fixed seeds.

    Args:
        agent: artifact of an agent or a cloned policy, or a function; see `agent_driver`.
        params: all other settings of the races.
        track: a slug of the campaign, a track file, or the UID of a track in `races_dir`; None: the main track there.
        num_races: races to drive; None takes `evaluate.num_races`.
        seed: seed of the first start, in 0..2^32-1; race k takes seed + k. None takes `evaluate.seed`.
        races_dir: the race dataset, for its tracks and for the demonstrations on the same track.
        device: device of its network.

    Returns:
        `agent`, `demonstrations`, `algorithms` and `track` as in `metrics.json`, and `races`, one entry each.

    Raises:
        UserError: if the agent, the track or the race dataset is missing or damaged, or an argument is out of range.
    """
    evaluate = with_given(params.evaluate, num_races=num_races, seed=seed)
    where, demonstrations = track_and_demonstrations(track, races_dir)
    races = EvaluationRaces.of(where, params, evaluate)
    driver = agent_driver(agent, races, device)
    # Standard output is for JSON.
    evaluation = race_all([driver], races, demonstrations, find_reference_race(races_dir, races), sys.stderr)
    metrics = metrics_of(evaluation, getattr(driver.policy, "algorithm", driver.key))
    return metrics | {"races": [result.to_json() for result in evaluation.contestants[0].races]}


def evaluate_on_tracks(
    agent: Path | str,
    tracks: Sequence[Track],
    *,
    params: Params,
    num_races: int | None,
    seed: int | None = None,
    device: torch.device = CPU,
) -> dict[str, Any]:
    """Runs greedy races of an agent on several tracks; arguments as for `evaluate_agent`.

    Returns:
        `num_races`, `num_finished` and `finish_rate` on all tracks together, and `tracks` as in `metrics.json`.
    """
    evaluate, evaluations = with_given(params.evaluate, num_races=num_races, seed=seed), []
    for track in tracks:
        races = EvaluationRaces.of(track, params, evaluate)
        reference = find_reference_race(RACES, races)
        evaluations.append(race_all([agent_driver(agent, races, device)], races, [], reference, sys.stderr))
    trained_on = [] if is_guest(agent) else trained_tracks(Path(agent))
    results = [result for each in evaluations for result in each.contestants[0].races]
    num_finished = sum(result.is_finished for result in results)
    return {
        "num_races": len(results),
        "num_finished": num_finished,
        "finish_rate": num_finished / len(results),
        "tracks": entries_by_track(evaluations, trained_on),
    }


def drive_from_the_line(agent: Path | str, params: Params, track: str | None) -> Race:
    """Runs one greedy race of an agent from the middle of the start line, where races of the game start.

    Args:
        agent: artifact of an agent or a cloned policy, or a function; see `agent_driver`.
        params: all other settings of the race.
        track: as for `evaluate_agent`.

    Raises:
        UserError: if the agent, the track or the race dataset is missing or damaged.
    """
    where, _ = track_and_demonstrations(track, RACES)
    start = with_given(params.evaluate, num_races=1, start_lateral_m=0.0, start_heading_deg=0.0)
    races = EvaluationRaces.of(where, params, start)
    driver = agent_driver(agent, races, CPU)
    (contestant,) = race_all([driver], races, [], stream=sys.stderr).contestants
    return race_of_result(contestant.races[0], driver.label)


def format_evaluation(result: dict[str, Any]) -> str:
    """Formats the result of `evaluate_agent` as text."""
    track = result["track"]
    return f"{track['name']} ({track['uid']}), {track['length_m']:.0f} m\n\n{format_metrics(result)}"


def format_tracks_together(result: dict[str, Any]) -> str:
    """Formats the result of `evaluate_on_tracks` as text."""
    whole = f"{result['num_finished']} of {result['num_races']} races finished on {len(result['tracks'])} tracks"
    return f"{format_tracks(result['tracks'])}\n\n{whole}"
