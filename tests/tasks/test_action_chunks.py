"""Agents whose decisions are chunks of five actions, from transfer to races."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from rulka.actions import action_table
from rulka.agents.load import load_policy
from rulka.artifacts import ArtifactError, load_artifact
from rulka.datasets.frames import FrameDataset
from rulka.datasets.races import load_races
from rulka.evaluation.dataset import race_of_result
from rulka.evaluation.race import EvaluationRaces, race
from rulka.params import Params, ParamsError, read_params
from rulka.simulator.simulator import Simulator
from rulka.training.demonstrations import demonstration_blocks
from rulka.training.racing import Folders
from tasks.train import train
from tasks.transfer import transfer
from tests.tasks.conftest import CONV, write_pretrained

ROOT = Path(__file__).resolve().parents[2]
ALGORITHM_OUTPUTS = {"ppo": "policy_head.bias", "iqn": "advantage_head.2.bias"}


def of_five(params: Params, algorithm: str) -> Params:
    changes = {
        "network": params.network.model_copy(update={"actions_per_decision": 5}),
        "train": params.train.model_copy(update={"algorithm": algorithm, "compared": ()}),
        "ppo": params.ppo.model_copy(update={"action_repeat": 1}),
        "iqn": params.iqn.model_copy(update={"action_repeat": 1}),
    }
    return params.model_copy(update=changes)


def train_on(params: Params, pretrained: tuple[Path, Path], driven: tuple[Path, Path], tmp_path: Path) -> Folders:
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
    train(params, folders=folders)
    return folders


@pytest.mark.parametrize("algorithm", ["ppo", pytest.param("iqn", marks=pytest.mark.slow)])
def test_an_agent_of_blocks_is_transferred_trained_and_raced(
    small_params: Params, driven: tuple[Path, Path], tmp_path: Path, algorithm: str
) -> None:
    params, pretrained = of_five(small_params, algorithm), write_pretrained(tmp_path, CONV, 5)
    trained = train_on(params, pretrained, driven, tmp_path)
    initial, policy = load_artifact(trained.agent_init, "agent_init"), load_artifact(pretrained[1], "policy")
    rows = json.loads((trained.agent_init / "report.json").read_text())["tensors"]
    report = {t["name"]: t for t in rows if t["where"] == "new network"}
    seeing = {t["action"] for name, t in report.items() if name.startswith(("encoder.", "float_head."))}
    assert seeing == {"copied"}
    np.testing.assert_array_equal(initial.normalisation.mean, policy.normalisation.mean)
    assert initial.tensors["float_head.0.weight"].shape[1] == 264
    assert initial.tensors[ALGORITHM_OUTPUTS[algorithm]].shape == (60,)

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


def test_inputs_of_every_tick_lead_where_the_race_led(small_params: Params, driven: tuple[Path, Path]) -> None:
    """A random driver of blocks: its exported inputs, given tick by tick, make the same path."""

    class Drunk:
        actions = action_table(5, 5)

        def __init__(self) -> None:
            self.rng = np.random.default_rng(0)

        def __call__(self, image: np.ndarray, floats: np.ndarray) -> np.ndarray:
            return self.rng.choice([0, 1, 2], p=[0.6, 0.2, 0.2], size=(len(floats), 5))

    params, track = of_five(small_params, "ppo"), load_races(driven[0]).main_track
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


def test_ticks_that_cannot_be_shared_are_refused(tmp_path: Path) -> None:
    data = yaml.safe_load((ROOT / "params.yaml").read_text())
    data["network"]["actions_per_decision"] = 5
    data["ppo"]["action_repeat"] = data["iqn"]["action_repeat"] = 1
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(data))
    assert read_params(path).network.actions_per_decision == 5
    data["actions"]["ticks_per_action"] = 4
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(ParamsError, match=r"5 must divide actions\.ticks_per_action 4"):
        read_params(path)


def test_demonstrations_are_of_five_actions_too(small_params: Params, driven: tuple[Path, Path]) -> None:
    """Every tick's action, those of the decisions before it among the floats, and the same pay."""
    races, rewards = load_races(driven[0]), small_params.rewards
    tables = action_table(5), action_table(5, 5)
    single, chunks = (demonstration_blocks(driven[1], races, rewards, 1, table)[0] for table in tables)
    ticks, keys = FrameDataset(driven[1], "train").tick_actions[:], action_table(1).keys()
    length = chunks.spec.num_steps
    assert chunks.action.shape == (length, 1, 5)
    np.testing.assert_array_equal(chunks.action[:, 0], ticks[:length])
    assert chunks.floats.shape[-1] == 264
    previous = chunks.floats[7, 0, 1:101].reshape(5, 5, 4)
    np.testing.assert_array_equal(previous, keys[ticks[2:7]])
    np.testing.assert_array_equal(chunks.floats[0, 0, 1:101].reshape(25, 4), np.tile(keys[0], (25, 1)))
    np.testing.assert_array_equal(chunks.floats[..., 101:], single.floats[..., 21:])
    np.testing.assert_array_equal(chunks.reward, single.reward)
