"""Stage `train` with algorithms that compare races: groups of its own races, and pairs of captured ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rulka.agents.load import load_policy
from rulka.contracts.artifacts import load_artifact
from rulka.datasets.formats.frames import FrameDataset
from rulka.datasets.formats.races import load_races
from rulka.machine.errors import UserError
from rulka.params import Params
from rulka.training.agent_run import AgentRun, Folders
from rulka.training.preference_pairs import CapturedRaces, PreferenceError
from tasks.train import train
from tests.tasks.conftest import begin_training

Prepare = Callable[..., tuple[Params, Folders]]
SMALL = {"steps_per_update": 128, "batch_size": 64, "epochs": 1}
ONLINE = {"kind": "online", "group_size": 2, "gamma": 1.0, "cut_worth": -4.0, "min_gap": 0.0}
STRETCHES = {"kind": "demonstrations", "stretch_m": 50.0, "min_gain_s": 0.0, "max_pairs": 20, "pairs_per_update": 4}


@pytest.fixture
def prepare(small_params: Params, pretrained: tuple[Path, Path], driven: tuple[Path, Path], tmp_path: Path) -> Prepare:
    """Makes the parameters of an algorithm, with its initial agent."""

    def make(algorithm: str, **changes: Any) -> tuple[Params, Folders]:
        values = small_params.model_dump()
        values["train"] |= {"algorithm": algorithm, "compared": [], "start_from_earlier": 0.0}
        values["grpo"] |= SMALL | {"group_size": 2}
        values["dpo"] |= SMALL | {"pairs": ONLINE}
        values[algorithm] |= changes
        params = Params.model_validate(values)
        return params, begin_training(params, pretrained, driven, tmp_path)

    return make


@pytest.mark.parametrize(
    ("algorithm", "changes", "facts"),
    [
        ("grpo", {}, {"num_groups", "group_deviation", "initial_kl"}),
        pytest.param("dpo", {}, {"num_groups", "chosen_return", "beta"}, marks=pytest.mark.slow),
        ("dpo", {"pairs": STRETCHES}, {"margin", "accuracy", "num_pairs"}),
    ],
)
def test_an_agent_is_trained_and_documented(prepare: Prepare, algorithm: str, changes: Any, facts: set[str]) -> None:
    params, folders = prepare(algorithm, **changes)
    train(params, folders=folders)
    agent = load_artifact(folders.out, "agent", observation=params.observation)
    assert agent.config["algorithm"] == algorithm
    assert agent.provenance["training"]["gradient_steps"] > 0
    lines = [json.loads(line) for line in (folders.out / "training.jsonl").read_text().splitlines()]
    assert facts | {"loss", "grad_norm", "versions_behind"} <= set().union(*lines)
    assert load_policy(folders.out)(np.zeros((2, 1, 64, 64), np.uint8), np.zeros((2, 184), np.float32)).shape == (2,)


def write_pairs(path: Path, chosen: str, rejected: str) -> None:
    path.write_text(json.dumps({"chosen": chosen, "rejected": rejected, "from_m": 20.0, "to_m": None}))


def test_a_file_of_pairs_is_learned_from(prepare: Prepare, driven: tuple[Path, Path], tmp_path: Path) -> None:
    """And is part of what the run is known by, as are the frames and the races."""
    ids = [race.race_id for race in FrameDataset(driven[1], "train").races]
    write_pairs(tmp_path / "pairs.jsonl", ids[0], ids[1])
    params, folders = prepare(
        "dpo", pairs={"kind": "file", "path": str(tmp_path / "pairs.jsonl"), "pairs_per_update": 1}
    )
    train(params, folders=folders)
    lines = [json.loads(line) for line in (folders.out / "training.jsonl").read_text().splitlines()]
    assert [line["num_pairs"] for line in lines if "num_pairs" in line][-1] == 1.0
    before = AgentRun("dpo", params, folders).folder
    write_pairs(tmp_path / "pairs.jsonl", ids[1], ids[0])
    assert AgentRun("dpo", params, folders).folder != before


def test_a_wrong_pair_is_named_before_training(prepare: Prepare, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    params, folders = prepare("dpo", pairs={"kind": "file", "path": str(path), "pairs_per_update": 1})
    with pytest.raises(PreferenceError, match=r"there is no file of pairs .*pairs\.jsonl"):
        train(params, folders=folders)
    write_pairs(path, "nobody", "nothing")
    with pytest.raises(PreferenceError, match=r"pairs\.jsonl, line 1: race nobody is not known"):
        train(params, folders=folders)
    assert not folders.out.exists()
    assert not list(folders.runs.rglob("*.ckpt"))


def test_frames_of_other_races_are_refused(driven: tuple[Path, Path]) -> None:
    races = load_races(driven[0])
    moved = replace(races, main_track=replace(races.main_track, uid="elsewhere"))
    with pytest.raises(UserError, match=r"the frames show track '.*', the main track is 'elsewhere'"):
        CapturedRaces(driven[1], moved, 1, 1)
    fewer = replace(races, races=races.races[1:])
    with pytest.raises(UserError, match=f"race {races.races[0].race_id} was captured but is not among"):
        CapturedRaces(driven[1], fewer, 1, 1)
