"""Agents that decide for steer, gas and brake as numbers, from frames to a report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rulka.actions import action_table
from rulka.agents.load import load_policy
from rulka.artifacts import ArtifactError, load_artifact
from rulka.datasets.races import load_races
from rulka.evaluation.dataset import race_of_result
from rulka.evaluation.race import EvaluationRaces, race
from rulka.params import Params, ParamsError, checked_params
from tests.tasks.test_whole_chain import run_stages


@pytest.fixture(scope="module")
def params(small_params: Params) -> Params:
    data = small_params.model_dump()
    data["network"]["analog"] = True
    data["capture"]["validation_fraction"] = 0.4
    data["pretrain"] |= {"epochs": 1, "batch_size": 64}
    data["clone"] |= {"epochs": 2, "batch_size": 64, "offsets": [0, 2]}
    data["clone"]["dagger"] = {"rounds": 1, "every": 1, "num_races": 2, "pace": 0.9}
    data["train"] |= {"max_env_steps": 256, "compared": ["impala"]}
    data["impala"] |= {"steps_per_update": 128, "batch_size": 64, "value_warmup_steps": 128}
    data["evaluate"] |= {"num_races": 1, "video_width": 160, "video_height": 90, "video_fps": 5}
    data["race_end"]["max_race_s"] = 2.0
    return Params.model_validate(data)


@pytest.fixture(scope="module")
def done(params: Params, driven: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that the stages wrote."""
    folder = tmp_path_factory.mktemp("analog")
    run_stages(params, driven[0], folder)
    return folder


def json_of(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


@pytest.mark.slow
def test_the_clone_is_measured_by_its_numbers_and_the_nearest_actions(done: Path) -> None:
    metrics = json_of(done / "policy" / "metrics.json")
    assert 0.0 <= metrics["accuracy"] <= 1.0
    assert np.isfinite([metrics["loss"], metrics["loss_with_own_actions"]]).all()
    assert metrics["label_entropy"] is None
    assert metrics["calibration"] == {}
    assert [row["offset"] for row in metrics["by_offset"]] == [0, 2]
    assert len(metrics["rounds"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["policy", "agent", "agent/compared/impala"])
def test_what_drives_gives_numbers_within_their_intervals(params: Params, done: Path, name: str) -> None:
    driver = load_policy(done / name, observation=params.observation, actions=action_table(5))
    assert driver.actions.is_analog
    generator = np.random.default_rng(0)
    image = generator.integers(0, 256, (40, 1, 64, 64), np.uint8)
    controls = driver(image, generator.normal(size=(40, 184)).astype(np.float32))
    assert controls.shape == (40, 3)
    assert (np.abs(controls[:, 0]) <= 1.0).all()
    assert ((controls[:, 1:] >= 0.0) & (controls[:, 1:] <= 1.0)).all()
    with pytest.raises(ArtifactError, match=r"actions\.is_analog is True, expected False"):
        load_artifact(done / name, actions=action_table(5), kind=("policy", "agent"))


@pytest.mark.slow
def test_the_agents_raced_and_their_inputs_are_what_they_drove(
    params: Params, done: Path, driven: tuple[Path, Path]
) -> None:
    metrics = json_of(done / "evaluation" / "metrics.json")
    assert set(metrics["algorithms"]) == {"ppo", "impala"}
    track, driver = load_races(driven[0]).main_track, load_policy(done / "agent")
    sections = params.observation, params.actions, params.simulator, params.evaluate, params.race_end
    races = EvaluationRaces.of(track, *sections)
    (result,) = race(driver, races)
    inputs = race_of_result(result, races.settings.table, "").controls
    assert len(np.unique(result.controls, axis=0)) > 2, "not the twelve of the table"
    np.testing.assert_array_equal(inputs[::5], result.controls[:-1])


@pytest.mark.slow
def test_ppo_begins_as_the_clone(done: Path) -> None:
    policy, initial = (load_artifact(done / name, name).tensors for name in ("policy", "agent_init"))
    assert torch.equal(policy["policy_head.weight"], initial["policy_head.weight"])
    assert policy["policy_head.weight"].shape[0] == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": {"compared": ["iqn"]}}, r"iqn compares all actions, and network\.analog has no end of them"),
        ({"network": {"actions_per_decision": 5}}, r"set network\.actions_per_decision 5 to 1"),
        ({"clone": {"labels": "hard"}}, r"clone\.labels hard the longest action: set it to soft"),
        ({"clone": {"shape": "iqn"}, "transfer": {}}, r"clone\.shape iqn values of actions"),
    ],
)
def test_what_numbers_do_not_go_with_is_named(params: Params, changes: dict[str, Any], message: str) -> None:
    data = params.model_dump()
    for section, values in changes.items():
        data[section] |= values
    with pytest.raises(ParamsError, match=message):
        checked_params(data, "wrong")
