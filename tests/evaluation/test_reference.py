"""The reference lap beside the others: in metrics, table, report and plots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from rulka.datasets.formats.races import reference_path
from rulka.evaluation.metrics import format_metrics, metrics_of
from rulka.evaluation.race import EvaluationRaces, find_reference_race
from rulka.evaluation.results import Contestant, Evaluation, RaceResult
from rulka.params import read_params
from rulka.reference.lap import store_reference
from rulka.reference.search import find_reference
from rulka.tracks.generate import generate_track
from rulka.tracks.track import Track

MakeRace = Callable[..., RaceResult]
PARAMS = read_params(Path(__file__).parents[2] / "params.yaml")


def make_evaluation(track: Track, make_race: MakeRace) -> Evaluation:
    """On 100 m: the agent drives 20 m/s, the reference 25 m/s."""
    contestants = [
        Contestant("agent", "Agent", [make_race(20)]),
        Contestant("random", "Random", [make_race(5, stop_m=9)]),
    ]
    return Evaluation(track, contestants, [make_race(16)], reference=make_race(25))


def test_metrics_say_how_far_from_the_reference(track: Track, make_race: MakeRace) -> None:
    evaluation = make_evaluation(track, make_race)
    metrics = metrics_of(evaluation, "ppo")
    entry = metrics["reference"]
    assert (entry["races"], entry["finish_rate"]) == (1, 1.0)
    assert entry["best_time_s"] == entry["median_time_s"] == 4.0
    medals = {"author_ms": 4000, "gold_ms": 5000, "silver_ms": 5000, "bronze_ms": 7000}
    assert (metrics["track"]["medals"], metrics["track"]["medals_by"]) == (medals, "reference lap")
    assert metrics["agent"]["times_reference"] == metrics["algorithms"]["ppo"]["times_reference"] == 1.25
    assert metrics["random"]["times_reference"] is None
    assert (metrics["agent"]["lap_share"], metrics["random"]["lap_share"]) == (0.8, 0.0)
    half = [Contestant("agent", "Agent", [make_race(20), make_race(20, stop_m=50)])]
    assert metrics_of(replace(evaluation, contestants=half), "ppo")["agent"]["lap_share"] == 0.4
    text = format_metrics(metrics)
    assert "1.250" in text
    assert "medals by the reference lap  author 4.00 s, gold 5.00 s, silver 5.00 s, bronze 7.00 s" in text
    # On another track than that of the demonstrations there are none, which is no 0 of 0.
    whole = make_evaluation(track, make_race)
    assert "demonstrations" in format_metrics(metrics_of(whole, "ppo"))
    metrics = metrics_of(replace(whole, demonstrations=[], reference=None), "ppo")
    assert metrics["demonstrations"]["races"] == 0
    assert "reference" not in metrics
    assert "times_reference" not in metrics["agent"]
    assert not {"demonstrations", "reference"} & set(format_metrics(metrics).split())


def races_on(road: Track) -> EvaluationRaces:
    return EvaluationRaces.of(road, PARAMS)


def test_a_lap_is_found_and_driven_or_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shipped lap takes the place of one that does not hold."""
    road = generate_track(seed=1, length_m=160.0, width_m=14.0, max_slope=0.1, gate_spacing_m=50.0, difficulty="easy")
    races = races_on(road)
    simulator, table = races.settings.simulator, races.settings.table
    assert find_reference_race(tmp_path, races) is None
    lap = find_reference(road, simulator, table, 1, 10_000)
    assert lap is not None
    store_reference(lap, table, reference_path(tmp_path, road.uid))
    found = find_reference_race(tmp_path, races)
    assert found is not None
    assert found.time_ms == lap.time_ms == found.gate_times_ms[-1]
    assert found.along_m[-1] >= road.length_m
    store_reference(replace(lap, time_ms=lap.time_ms - 7), table, reference_path(tmp_path, road.uid))
    assert find_reference_race(tmp_path, races) is None
    said = capsys.readouterr().err
    assert said.startswith("reference lap not used: the reference lap")
    assert f"it states {lap.time_ms - 7} ms, but here it needs {lap.time_ms} ms" in said
    store_reference(lap, table, tmp_path / "shipped.txt")
    monkeypatch.setattr("rulka.evaluation.race.shipped_lap", lambda _: tmp_path / "shipped.txt")
    assert find_reference_race(tmp_path, races) is not None


def test_the_stages_depend_on_the_laps_that_they_read() -> None:
    stages = yaml.safe_load(Path("dvc.yaml").read_text(encoding="utf-8"))["stages"]
    assert [name for name, stage in stages.items() if "rulka/reference/laps" in stage["deps"]] == ["clone", "evaluate"]
