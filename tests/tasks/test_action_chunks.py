"""An agent whose decisions are chunks of five actions, from transfer to races."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from rulka.actions import action_table
from rulka.agents.load import load_policy
from rulka.artifacts import ArtifactError, load_artifact
from rulka.datasets.races import load_races
from rulka.evaluation.dataset import race_of_result
from rulka.evaluation.race import EvaluationRaces, race
from rulka.params import Params, ParamsError, read_params
from rulka.runtime.agent_run import Folders, Sections
from rulka.schedule import Schedule
from rulka.simulator.simulator import Simulator
from tasks.train import train
from tasks.transfer import transfer

ROOT = Path(__file__).resolve().parents[2]
NONE = Schedule.model_validate(0.0)
OWN_ALONE = {"warmup_steps": 0, "demonstration_share": NONE, "guide_floor": NONE}


@pytest.fixture
def params(small_params: Params) -> Params:
    """IQN alone; its races go over few metres, so that it finishes some of them by chance."""
    body = small_params.network.iqn.model_copy(update={"actions_per_decision": 5, "guided": False})
    changes = {
        "network": small_params.network.model_copy(update={"iqn": body}),
        "train": small_params.train.model_copy(update={"algorithm": "iqn", "compared": ()}),
        "iqn": small_params.iqn.model_copy(update=OWN_ALONE),
        "transfer": small_params.transfer.model_copy(
            update={"iqn": small_params.transfer.iqn.model_copy(update={"float_head": "fresh"})}
        ),
    }
    return small_params.model_copy(update=changes)


@pytest.fixture
def trained(params: Params, pretrained: tuple[Path, Path], driven: tuple[Path, Path], tmp_path: Path) -> Folders:
    folders = Folders(tmp_path / "agent_init", *driven, tmp_path / "runs", tmp_path / "agent")
    sections = (params.observation, params.actions, params.encoder, params.network)
    transfer(
        *sections,
        params.train,
        params.transfer,
        encoder_dir=pretrained[0],
        policy_dir=pretrained[1],
        out_dir=folders.agent_init,
    )
    train(Sections.of_params(params), folders=folders)
    return folders


def test_an_agent_of_blocks_is_transferred_trained_and_raced(
    params: Params, trained: Folders, pretrained: tuple[Path, Path]
) -> None:
    initial, policy = load_artifact(trained.agent_init, "agent_init"), load_artifact(pretrained[1], "policy")
    rows = json.loads((trained.agent_init / "report.json").read_text())["tensors"]
    report = {t["name"]: t for t in rows if t["where"] == "new network"}
    assert {t["action"] for name, t in report.items() if name.startswith("encoder.")} == {"copied"}
    assert report["float_head.0.weight"]["action"] == "kept"
    assert report["float_head.0.weight"]["reason"] == "initialised: transfer.iqn.float_head is fresh"
    np.testing.assert_array_equal(initial.normalisation.mean[-80:], policy.normalisation.mean[-80:])
    assert initial.tensors["float_head.0.weight"].shape[1] == 264
    assert initial.tensors["advantage_head.2.bias"].shape == (60,)
    assert not (trained.agent_init / "warmup_policy").exists()

    driver = load_policy(trained.out, observation=params.observation, actions=action_table(5))
    assert (driver.actions.ticks_per_action, driver.actions.actions_per_decision) == (1, 5)
    assert driver(np.zeros((2, 1, 64, 64), np.uint8), np.zeros((2, 264), np.float32)).shape == (2, 5)
    with pytest.raises(ArtifactError, match="ticks_per_action"):
        load_policy(trained.out, actions=action_table(10))

    track = load_races(trained.races).main_track
    sections = params.observation, params.actions, params.simulator, params.evaluate, params.race_end
    races = EvaluationRaces.of(track, *sections)
    for result in race(driver, races):
        inputs = race_of_result(result, races.settings.table, "").controls
        assert result.chunk_controls is not None
        assert len(inputs) == 5 * (len(result.sample_ms) - 1)
        np.testing.assert_array_equal(result.controls, result.chunk_controls[:, 0])


def test_inputs_of_every_tick_lead_where_the_race_led(params: Params, trained: Folders) -> None:
    """A random driver of blocks: its exported inputs, given tick by tick, make the same path."""

    class Drunk:
        actions = action_table(5, 5)

        def __init__(self) -> None:
            self.rng = np.random.default_rng(0)

        def __call__(self, image: np.ndarray, floats: np.ndarray) -> np.ndarray:
            return self.rng.choice([0, 1, 2], p=[0.6, 0.2, 0.2], size=(len(floats), 5))

    track = load_races(trained.races).main_track
    evaluate = params.evaluate.model_copy(update={"num_races": 1, "start_lateral_m": 0.0, "start_heading_deg": 0.0})
    races = EvaluationRaces.of(track, params.observation, params.actions, params.simulator, evaluate, params.race_end)
    (result,) = race(Drunk(), races)
    inputs = race_of_result(result, races.settings.table, "").controls
    again = Simulator(track, 1, params.simulator, action_table(1))
    assert len(np.unique(inputs, axis=0)) == 3
    for tick in range(min(len(inputs), 100)):
        again.step_controls(inputs[None, tick])
        if tick % 5 == 4:
            np.testing.assert_allclose(again.cars[0, :3], result.cars[tick // 5 + 1, :3], atol=1e-4)


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ("actions", {"ticks_per_action": 4}, "5 must divide actions.ticks_per_action 4"),
        ("iqn", {"demonstration_share": 0.25}, "iqn.demonstration_share to 0"),
        ("iqn", {"warmup_steps": 1}, "set network.iqn.guided to true, or both to 0"),
    ],
)
def test_impossible_blocks_are_refused(tmp_path: Path, section: str, changes: dict[str, object], message: str) -> None:
    data = yaml.safe_load((ROOT / "params.yaml").read_text())
    data["network"]["iqn"] |= {"actions_per_decision": 5, "guided": False}
    data["iqn"] |= {"warmup_steps": 0, "demonstration_share": 0.0, "guide_floor": 0.0}
    data["transfer"]["iqn"]["float_head"] = "fresh"
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(data))
    assert read_params(path).network.iqn.actions_per_decision == 5
    data[section] |= changes
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(ParamsError, match=message):
        read_params(path)
