"""The stage `evaluate` and the command on a tiny track, with agents that learned nothing."""

from __future__ import annotations

import json
import runpy
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np
import pytest
import torch

from rulka.agents.algorithms import actor_class
from rulka.agents.shared.networks import build_clone_policy
from rulka.cli.races import evaluate as command
from rulka.contracts.actions import FORWARD, action_table
from rulka.contracts.artifacts import Artifact, network_input_contract, save_artifact
from rulka.contracts.observation import CAR, NUM_CAR_FIELDS, reference_normalisation
from rulka.datasets.formats.races import Race, RaceDataset, load_main_track, load_races, write_races
from rulka.evaluation.one_agent import evaluate_agent, evaluate_on_tracks, format_evaluation, format_tracks_together
from rulka.machine.errors import UserError
from rulka.operations.tracks import HELD_OUT_SEEDS
from rulka.params import Params, read_params, reference_params
from rulka.tracks.campaign import campaign_track
from rulka.tracks.params import CampaignTracksParams, MainTrackParams
from rulka.tracks.track import Track
from tasks.evaluate import Inputs, evaluate
from tests.conftest import ROOT, straight_track

NETWORK = reference_params().network.model_copy(update={"float_hidden": 8, "dense_hidden": 16})
TABLE = action_table(5)


def small_params() -> Params:
    params = read_params()
    changes = {"num_races": 2, "video_width": 160, "video_height": 90, "video_fps": 5}
    end = params.race_end.model_copy(update={"no_progress_s": 1.0})
    return params.model_copy(update={"evaluate": params.evaluate.model_copy(update=changes), "race_end": end})


def short_track(uid: str = "tiny") -> Track:
    track = straight_track(60.0)
    return replace(track, uid=uid, name=uid, width_m=track.width_m + 2.0, gate_m=np.array([30.0, 60.0]))


def demonstration(number: int, speed_mps: float) -> Race:
    """A race at constant speed over 60 m, sampled every 50 ms."""
    race_time_ms = round(60_000 / speed_mps)
    time_ms = np.arange(0, race_time_ms + 50, 50)
    state = np.zeros((len(time_ms), NUM_CAR_FIELDS), np.float32)
    state[:, CAR["position"].stop - 1] = time_ms / 1000 * speed_mps
    state[:, CAR["rotation"]] = np.eye(3).ravel()
    state[:, CAR["velocity"].stop - 1] = speed_mps
    controls = np.tile(np.array([0.0, 1.0, 0.0], np.float32), (race_time_ms // 10, 1))
    gates = (race_time_ms // 2, race_time_ms)
    return Race(f"race-{number}", "driver", "", "", "tiny", race_time_ms, True, gates, number, controls, time_ms, state)


def save_driver(folder: Path, kind: str, algorithm: str, favourite: int) -> None:
    """Writes an artifact whose network always prefers one action."""
    params, normalisation = read_params(), reference_normalisation()
    torch.manual_seed(1)
    if kind == "policy":
        network = build_clone_policy(params.observation, params.encoder, NETWORK, normalisation, 12)
    else:
        sizes = (params.observation, params.encoder, NETWORK)
        network = actor_class(algorithm).build_network(*sizes, normalisation, 12)  # pyright: ignore
    bias = network.output_layers()[0].bias
    with torch.no_grad():
        bias[favourite] += 100.0
    config = {"encoder": params.encoder.model_dump(), "network": NETWORK.model_dump(), "num_actions": 12}
    config["iqn"] = {"num_quantiles_acting": 8}
    if kind == "policy":
        config["shape"] = "policy"
    if kind == "agent":
        config["algorithm"] = algorithm
    contract = network_input_contract(params.observation)
    sections = {"train": params.train.model_dump(mode="json")}
    training = {"env_steps": 1000, "gradient_steps": 10, "precision": "bf16", "num_collectors": 2}
    training["tracks"] = ["tiny"]
    provenance = {"parameters": sections, "training": training, "commit": None}
    save_artifact(folder, Artifact(kind, network.state_dict(), config, contract, TABLE, normalisation, provenance))


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    return write_inputs(tmp_path)


def write_inputs(tmp_path: Path) -> Inputs:
    save_driver(tmp_path / "agent", "agent", "ppo", FORWARD)
    save_driver(tmp_path / "agent" / "compared" / "iqn", "agent", "iqn", 3)
    save_driver(tmp_path / "policy", "policy", "", 1)
    log = {"env_steps": 100, "finish_rate": None, "record_s": None, "mean_return": -1.0}
    (tmp_path / "agent" / "training.jsonl").write_text(json.dumps(log) + "\n")
    (tmp_path / "policy" / "metrics.json").write_text(json.dumps({"confusion": (np.eye(12) * 3).tolist()}))
    (tmp_path / "races").mkdir()
    races = tuple(demonstration(number, speed) for number, speed in enumerate((6.0, 8.0, 10.0)))
    write_races(tmp_path / "races", RaceDataset(races, short_track(), ()))
    missing = tmp_path / "missing"
    return Inputs(tmp_path / "agent", tmp_path / "races", tmp_path / "policy", missing, missing)


def run(inputs: Inputs, out_dir: Path) -> None:
    evaluate(small_params(), inputs=inputs, out_dir=out_dir)


class Evaluated(NamedTuple):
    """The stage has run once."""

    inputs: Inputs
    out_dir: Path
    said: str


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    folder, said = tmp_path_factory.mktemp("evaluated"), StringIO()
    inputs, out_dir = write_inputs(folder), folder / "evaluation"
    with redirect_stdout(said):
        run(inputs, out_dir)
    return Evaluated(inputs, out_dir, said.getvalue())


def test_stage_writes_everything_and_says_where(evaluated: Evaluated) -> None:
    out_dir = evaluated.out_dir
    metrics = json.loads((out_dir / "metrics.json").read_text())
    scores = json.loads((out_dir / "scores.json").read_text())
    assert set(scores) >= {"cloned", *metrics["algorithms"]}
    assert scores["cloned"]["finish_rate"] == metrics["cloned"]["finish_rate"]
    for name in ("agent", "cloned", "random", "demonstrations"):
        assert {"races", "finish_rate", "best_time_s", "median_time_s", "mean_progress_m"} <= set(metrics[name])
    assert (metrics["agent"]["algorithm"], metrics["agent"]["finish_rate"]) == ("ppo", 1.0)  # full throttle
    assert (metrics["algorithms"]["iqn"]["finish_rate"], metrics["cloned"]["finish_rate"]) == (0.0, 0.0)
    assert metrics["demonstrations"]["best_time_s"] == 6.0  # 60 m at 10 m/s
    assert metrics["demonstrations"]["median_time_s"] == 7.5
    assert set(metrics["algorithms"]) == {"ppo", "iqn"}
    races = json.loads((out_dir / "races.json").read_text())
    assert [len(races[name]) for name in ("agent", "iqn", "cloned", "random")] == [2, 2, 2, 2]
    laps = {race.race_id: race for race in load_races(out_dir / "laps").races}
    assert set(laps) == {"agent-tiny", "iqn-tiny", "cloned-tiny"}
    assert laps["agent-tiny"].race_time_ms == round(1000 * metrics["agent"]["best_time_s"])
    assert (laps["agent-tiny"].player, laps["iqn-tiny"].is_finished) == ("Agent (PPO)", False)
    page = (out_dir / "report.html").read_text()
    for text in (
        "Agent (PPO)",
        "IQN",
        "Cloned policy",
        "Random actions",
        "1,000 env steps",
        "bf16",
        "Where time was lost",
    ):
        assert text in page
    plots = {path.name for path in (out_dir / "plots").iterdir()}
    assert plots == {f"{name}.png" for name in ("driven_lines", "splits", "training")}
    with av.open(str(out_dir / "race.mp4")) as video:
        assert (video.streams.video[0].width, video.streams.video[0].height) == (160, 90)
    assert all((out_dir / name).as_posix() in evaluated.said for name in ("report.html", "plots", "race.mp4"))


@pytest.fixture
def _without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take most of the time, and are the same however many further tracks there are."""
    monkeypatch.setattr("tasks.evaluate.draw_figures", lambda *_: {})


@pytest.mark.usefixtures("_without_figures")
def test_pictures_of_the_readme_are_made_of_it(evaluated: Evaluated) -> None:
    """Of plots that the stage still writes."""
    make = runpy.run_path(str(ROOT / "docs" / "pictures.py"), run_name="pictures")
    sheet = make["report_picture"](evaluated.out_dir)
    assert sheet.width == 800
    assert sheet.height > 800


def test_an_agent_races_on_further_tracks_too(inputs: Inputs, tmp_path: Path, capsys) -> None:
    """Beside the 60 m straight the oval of the campaign: full throttle gets round it along the walls, for no medal."""
    params = small_params()
    further = CampaignTracksParams(kind="campaign", slugs=("copper-oval",))
    evaluated = params.evaluate.model_copy(update={"tracks": (further, MainTrackParams(kind="main"))})
    evaluate(params.model_copy(update={"evaluate": evaluated}), inputs=inputs, out_dir=tmp_path / "out")
    entries = json.loads((tmp_path / "out" / "metrics.json").read_text())["tracks"]
    assert [(entry["uid"], entry["trained_on"]) for entry in entries] == [
        ("tiny", True),
        ("campaign-copper-oval", False),
    ]
    assert entries[0]["drivers"]["agent"]["finish_rate"] == 1.0
    oval = entries[1]
    assert oval["reference_s"] == pytest.approx(9.0, abs=3.0)
    assert set(oval["drivers"]) == {"agent", "iqn", "cloned"}
    agent = oval["drivers"]["agent"]
    assert (agent["finished"], agent["medal"], oval["drivers"]["iqn"]["lap_share"]) == (2, None, 0.0)
    assert agent["times_reference"] == pytest.approx(agent["median_time_s"] / oval["reference_s"], abs=1e-4)
    assert "Copper Oval" in (tmp_path / "out" / "report.html").read_text()
    assert "Copper Oval" in capsys.readouterr().out


@pytest.mark.usefixtures("_without_figures")
def test_same_seed_same_metrics(evaluated: Evaluated, tmp_path: Path) -> None:
    run(evaluated.inputs, tmp_path / "again")
    for name in ("metrics.json", "races.json"):
        assert (tmp_path / "again" / name).read_bytes() == (evaluated.out_dir / name).read_bytes()


def test_several_tracks_count_together(inputs: Inputs) -> None:
    tracks = [campaign_track("copper-oval"), load_main_track(inputs.races)]
    result = evaluate_on_tracks(inputs.agent, tracks, params=small_params(), num_races=2)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert [each["name"] for each in result["tracks"]] == ["Copper Oval", tracks[1].name]
    finished = [each["drivers"]["agent"]["finished"] for each in result["tracks"]]
    assert finished[1] == 2
    assert (result["num_races"], result["num_finished"]) == (4, sum(finished))
    assert result["finish_rate"] == sum(finished) / 4
    assert f"{sum(finished)} of 4 races finished on 2 tracks" in format_tracks_together(result)


def test_command_races_on_all_held_out_tracks(
    inputs: Inputs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rulka.params.read_params", small_params)
    command(str(inputs.agent), track="held-out", races=1, as_json=True)
    result = json.loads(capsys.readouterr().out)
    assert result["num_races"] == len(result["tracks"]) == len(HELD_OUT_SEEDS)
    command(str(inputs.agent), track="held-out", races=1)
    assert "of 4 races finished on 4 tracks" in capsys.readouterr().out


def test_command_gives_the_metrics_of_one_agent(inputs: Inputs, capsys: pytest.CaptureFixture[str]) -> None:
    result = evaluate_agent(inputs.agent, params=small_params(), track=None, num_races=3, races_dir=inputs.races)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert (result["agent"]["races"], len(result["races"]), result["agent"]["finish_rate"]) == (3, 3, 1.0)
    assert result["demonstrations"]["races"] == 3
    text = format_evaluation(result)
    assert "agent (PPO)" in text
    assert "3/3" in text
    assert capsys.readouterr().out == ""  # standard output is left to the JSON object
    with pytest.raises(UserError, match="neither a file nor one of tiny"):
        evaluate_agent(inputs.agent, params=small_params(), track="nowhere", num_races=None, races_dir=inputs.races)
    with pytest.raises(UserError, match=r"num_races: must be greater than or equal to 1 \(got 0\)"):
        evaluate_agent(inputs.agent, params=small_params(), track=None, num_races=0, races_dir=inputs.races)
    with pytest.raises(UserError, match=r"seed: must be greater than or equal to 0 \(got -1\)"):
        evaluate_agent(inputs.agent, params=small_params(), track=None, num_races=1, seed=-1, races_dir=inputs.races)
