"""From frames to a report through the functions of the stages, on a short track, for every way to see and to act."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.actor_critic import AHEAD_HEADS
from rulka.agents.algorithms import CLONED_SHAPES, actor_class
from rulka.agents.load import load_policy
from rulka.contracts.actions import action_table
from rulka.contracts.artifacts import ArtifactError, load_artifact
from rulka.contracts.observation import FLOATS
from rulka.params import Params
from rulka.training.agent_run import Folders
from tasks.capture import capture
from tasks.clone import Folders as CloneFolders
from tasks.clone import clone
from tasks.evaluate import Inputs, evaluate
from tasks.pretrain import pretrain
from tasks.train import train
from tasks.transfer import transfer

Changes = dict[str, dict[str, Any]]
ONCE: Changes = {name: {"action_repeat": 1} for name in ("ppo", "iqn")}
"""As several frames at once and chunks of actions ask for."""
DAGGER = {"offsets": [0, 2], "dagger": {"rounds": 1, "every": 1, "num_races": 2, "planner": {"num_plans": 8}}}
BLOCKS = {"width": 16, "depth": 1, "heads": 2}
VIT: dict[str, Any] = {"model_type": "vit", "image_size": 32, "patch_size": 8, "hidden_size": 16}
VIT |= {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
BACKBONE = {"kind": "backbone", "source": {"kind": "architecture", "config": VIT}, "pixels": 32, "token": "cls"}
TOKENS = {"kind": "token_sequence", "image": "all", "floats": {"kind": "raw", "tokens": 2}, **BLOCKS}
CHAINS: dict[str, Changes] = {
    "one frame": {},
    "three frames as channels": ONCE | {"observation": {"frames": 3}},
    "two frames encoded one by one, no waypoints": ONCE
    | {"observation": {"frames": 2, "frames_as": "features", "withheld": ["waypoints", "margin"]}},
    "no image": {"observation": {"withheld": ["image"]}},
    "decisions of five actions": ONCE | {"network": {"actions_per_decision": 5}, "clone": DAGGER},
    "decisions of uneven actions": ONCE | {"network": {"actions_per_decision": [0, 10, 30]}, "clone": DAGGER},
    "steer, gas and brake as numbers": {
        "network": {"analog": True},
        "clone": DAGGER,
        "train": {"compared": ["impala"]},
        "impala": {"steps_per_update": 128, "batch_size": 64, "value_warmup_steps": 128},
    },
    "a backbone": {"encoder": BACKBONE, "network": {"fusion": {"kind": "projected"}}},
    "one sequence of tokens": {
        "encoder": {"kind": "patches", "patch": 16, "width": 16, "depth": 0, "heads": 2},
        "network": {"fusion": TOKENS},
    },
    "a fused vector, shaped like IQN": {
        "clone": {"shape": "iqn"},
        "train": {"algorithm": "iqn", "compared": []},
        "network": {"fusion": {"kind": "fused_vector", "tokens": 3, **BLOCKS}},
        "iqn": {"warmup_steps": 0, "guide_floor": 0.0},
    },
}


@dataclass(frozen=True)
class Chain:
    """Folders of everything that the stages wrote, and the parameters they ran with."""

    params: Params
    folder: Path

    def json_of(self, name: str) -> dict[str, Any]:
        return json.loads((self.folder / name).read_text())

    def names(self, first: str) -> dict[Any, str]:
        """The folders of all algorithms below `agent` or `agent_init`, by algorithm."""
        compared = {name: f"{first}/compared/{name}" for name in self.params.train.compared}
        return {self.params.train.algorithm: first} | compared

    def inputs(self, encoder: Any, normalisation: Any, outputs: int) -> tuple[Any, ...]:
        return self.params.observation, encoder, self.params.network, normalisation, outputs


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow) for name in CHAINS],
)
def chain(
    small_params: Params,
    driven: tuple[Path, Path],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Chain:
    folder, data = tmp_path_factory.mktemp("chain"), small_params.model_dump()
    data["capture"] |= {"validation_fraction": 0.4}
    data["pretrain"] |= {"epochs": 1, "batch_size": 64, "precision": "auto"}
    data["clone"] |= {"epochs": 2, "batch_size": 64, "precision": "auto", "dagger": None}
    data["train"] |= {"precision": "auto", "max_env_steps": 256}
    data["evaluate"] |= {"num_races": 1, "video_width": 160, "video_height": 90, "video_fps": 5}
    data["race_end"] |= {"max_race_s": 2.0}
    changes = CHAINS[request.param]
    for section, values in changes.items():
        data[section] = values if section == "encoder" else data[section] | values
    if "iqn" in changes and data["clone"]["shape"] == "iqn":
        data["network"]["iqn"] |= {"guided": False}
        data["transfer"]["iqn"] |= {"trunk": "cloned", "heads": "cloned"}
    params = Params.model_validate(data)
    run_stages(params, driven[0], folder)
    return Chain(params, folder)


def run_stages(params: Params, races: Path, folder: Path) -> None:
    frames, encoder, policy, initial = (folder / name for name in ("frames", "encoder", "policy", "agent_init"))
    capture(params, races_dir=races, out_dir=frames, runs_dir=folder / "runs" / "capture")
    pretrain(params, frames_dir=frames, out_dir=encoder, runs_dir=folder / "runs" / "pretrain")
    clone(params, folders=CloneFolders(races, frames, encoder, policy, folder / "runs" / "clone"))
    transfer(params, encoder_dir=encoder, policy_dir=policy, out_dir=initial)
    train(params, folders=Folders(initial, races, frames, folder / "runs", folder / "agent"))
    inputs = Inputs(folder / "agent", races, policy, initial, encoder)
    evaluate(params, inputs=inputs, out_dir=folder / "evaluation")


def test_every_stage_chose_a_precision_and_learned(chain: Chain) -> None:
    for stage in ("encoder", "policy"):
        metrics = chain.json_of(f"{stage}/metrics.json")
        assert metrics["precision"] in ("float32", "bfloat16")
        assert metrics["stopped"] is None
    assert len(metrics["rounds"]) == (chain.params.clone.dagger is not None)
    assert [row["offset"] for row in metrics["by_offset"]] == list(chain.params.clone.offsets)
    assert metrics["measured_on"] in ("validation", "test")
    assert 0.0 <= metrics["accuracy"] <= 1.0
    assert np.isfinite([metrics["loss"], metrics["loss_with_own_actions"]]).all()
    for folder in chain.names("agent").values():
        training = chain.json_of(f"{folder}/meta.json")["provenance"]["training"]
        assert training["precision"] in ("float32", "bf16")
        assert training["env_steps"] == 256


def test_the_agents_raced_and_the_page_says_what_they_started_with(chain: Chain) -> None:
    metrics = chain.json_of("evaluation/metrics.json")
    assert {"agent", "cloned"} <= set(metrics)
    assert set(metrics["algorithms"]) == set(chain.names("agent"))
    page = (chain.folder / "evaluation" / "report.html").read_text()
    if chain.params.clone.shape == "policy":
        assert (
            "PPO starts with the cloned encoder, the cloned float head, the cloned heads and the cloned trunk" in page
        )


@torch.no_grad()
def test_new_agents_begin_with_what_was_cloned_whatever_the_clock_shows(chain: Chain) -> None:
    """An agent of the clone's shape has all of its tensors; any other's state is the clone's."""
    policy = load_artifact(chain.folder / "policy", "policy")
    outputs = policy.actions.space.num_outputs
    inputs = chain.inputs(policy.encoder, policy.normalisation, outputs)
    own = {name: tensor for name, tensor in policy.tensors.items() if not name.startswith(AHEAD_HEADS)}
    cloned = CLONED_SHAPES[chain.params.clone.shape](*inputs)
    cloned.load_state_dict(own)
    generator = torch.Generator().manual_seed(0)
    shape = (4, *chain.params.observation.image_shape)
    image = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    floats = cloned.float_mean + cloned.float_std * torch.randn(4, len(cloned.float_mean), generator=generator)
    state = cloned.eval().state(image, floats)
    for algorithm, name in chain.names("agent_init").items():
        initial = load_artifact(chain.folder / name, "agent_init")
        network = actor_class(algorithm).build_network(*inputs)
        network.load_state_dict(initial.tensors)
        for clock in (0.0, 1.0, 139.0):
            floats[:, FLOATS["clock"]] = clock
            assert torch.equal(network.eval().state(image, floats), state)
        if algorithm == "ppo" or chain.params.clone.shape == "iqn":
            value = {"value_head.weight", "value_head.bias"} if algorithm == "ppo" else set[str]()
            assert set(initial.tensors) == set(own) | value
            assert all(torch.equal(initial.tensors[name], tensor) for name, tensor in own.items())


def shown(chain: Chain) -> tuple[np.ndarray, np.ndarray]:
    generator, normalisation = np.random.default_rng(0), load_artifact(chain.folder / "policy", "policy").normalisation
    image = generator.integers(0, 256, (20, *chain.params.observation.image_shape), np.uint8)
    return image, generator.normal(normalisation.mean, normalisation.std, (20, len(normalisation.mean))).astype(
        np.float32
    )


def drivers(chain: Chain) -> Iterable[str]:
    return ("policy", *chain.names("agent").values())


def test_what_was_trained_drives_within_its_intervals(chain: Chain) -> None:
    for name in drivers(chain):
        driver = load_policy(chain.folder / name, actions=action_table(5))
        assert driver.observation == chain.params.observation
        decisions = driver(*shown(chain))
        assert decisions.shape == (20, *driver.actions.decision_shape)
        if driver.actions.is_analog:
            assert (np.abs(decisions[:, 0]) <= 1.0).all()
            assert ((decisions[:, 1:] >= 0.0) & (decisions[:, 1:] <= 1.0)).all()
        with pytest.raises(ArtifactError, match="ticks_per_action"):
            load_policy(chain.folder / name, actions=action_table(10))
