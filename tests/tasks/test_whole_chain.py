"""From frames to a report through the functions of the stages, in the precision that is shipped, on a short track."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from models.actor_critic import AHEAD_HEADS
from rulka.agents.algorithms import ALGORITHMS
from rulka.agents.networks import build_clone_policy
from rulka.artifacts import load_artifact
from rulka.observation import FLOATS
from rulka.params import Params
from rulka.training.racing import Folders
from tasks.capture import capture
from tasks.clone import Folders as CloneFolders
from tasks.clone import clone
from tasks.evaluate import Inputs, evaluate
from tasks.pretrain import pretrain
from tasks.train import train
from tasks.transfer import transfer


@dataclass(frozen=True)
class Chain:
    """Folders of everything that the stages wrote, and the parameters they ran with."""

    params: Params
    folder: Path

    def json_of(self, name: str) -> dict[str, Any]:
        return json.loads((self.folder / name).read_text())


SIGHTS: dict[str, dict[str, Any]] = {
    "one frame": {},
    "three as channels": {"frames": 3},
    "two encoded one by one, no waypoints": {"frames": 2, "frames_as": "features", "withheld": ["waypoints", "margin"]},
    "no image": {"withheld": ["image"]},
}
ONCE: dict[str, dict[str, Any]] = {name: {"action_repeat": 1} for name in ("ppo", "iqn")}
"""As several frames at once and chunks of actions ask for."""
CHAINS: dict[str, dict[str, dict[str, Any]]] = {
    name: {"observation": sight} | (ONCE if "frames" in sight else {}) for name, sight in SIGHTS.items()
}
CHAINS["decisions of five actions"] = ONCE | {
    "network": {"actions_per_decision": 5},
    "clone": {
        "offsets": [0, 2],
        "dagger": {"rounds": 1, "every": 1, "num_races": 2, "pace": 0.9},
    },
}


FAST = "one frame"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(changes, id=name, marks=() if name == FAST else pytest.mark.slow)
        for name, changes in CHAINS.items()
    ],
)
def chain(
    small_params: Params,
    driven: tuple[Path, Path],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Chain:
    folder, data = tmp_path_factory.mktemp("chain"), small_params.model_dump()
    data["capture"] |= {"validation_fraction": 0.4}
    data["pretrain"] |= {"epochs": 1, "batch_size": 64, "precision": "measured"}
    data["clone"] |= {"epochs": 2, "batch_size": 64, "precision": "measured"}
    data["train"] |= {"precision": "measured", "max_env_steps": 256}
    data["evaluate"] |= {"num_races": 1, "video_width": 160, "video_height": 90, "video_fps": 5}
    data["race_end"] |= {"max_race_s": 2.0}
    for section, changes in request.param.items():
        data[section] |= changes
    params = Params.model_validate(data)
    run_stages(params, driven[0], folder)
    return Chain(params, folder)


def run_stages(params: Params, races: Path, folder: Path) -> None:
    seen, network = (params.observation, params.actions), (params.encoder, params.network)
    encoder, policy, initial = folder / "encoder", folder / "policy", folder / "agent_init"
    capture(*seen, params.simulator, params.capture, races_dir=races, out_dir=folder / "frames")
    paths = {"frames_dir": folder / "frames", "out_dir": encoder, "runs_dir": folder / "runs" / "pretrain"}
    pretrain(*seen, params.encoder, params.pretrain, **paths)
    folders = CloneFolders(races, folder / "frames", encoder, policy, folder / "runs" / "clone")
    clone(*seen, params.simulator, params.race_end, *network, params.clone, folders=folders)
    sections = (*seen, *network, params.train, params.transfer)
    transfer(*sections, encoder_dir=encoder, policy_dir=policy, out_dir=initial)
    folders = Folders(initial, races, folder / "frames", folder / "runs", folder / "agent")
    train(params, folders=folders)
    inputs = Inputs(folder / "agent", races, policy, initial, encoder)
    evaluate(*seen, params.simulator, params.evaluate, params.race_end, inputs=inputs, out_dir=folder / "evaluation")


def test_every_stage_chose_a_precision_and_learned(chain: Chain) -> None:
    for stage in ("encoder", "policy"):
        metrics = chain.json_of(f"{stage}/metrics.json")
        assert metrics["precision"] in ("float32", "bfloat16")
        assert metrics["stopped"] is None
    for folder in ("agent", "agent/compared/iqn"):
        training = chain.json_of(f"{folder}/meta.json")["provenance"]["training"]
        assert training["precision"] in ("float32", "bf16")
        assert training["env_steps"] == 256
    assert chain.json_of("policy/metrics.json")["measured_on"] in ("validation", "test")


def test_the_agents_raced_and_the_page_says_what_they_started_with(chain: Chain) -> None:
    metrics = chain.json_of("evaluation/metrics.json")
    assert {"agent", "cloned", "random"} <= set(metrics)
    page = (chain.folder / "evaluation" / "report.html").read_text()
    assert "PPO starts with the cloned encoder, the cloned float head, the cloned heads and the cloned trunk" in page
    assert "IQN starts with the cloned encoder and the cloned float head" in page


def test_the_new_agents_begin_with_the_functions_that_were_cloned(chain: Chain) -> None:
    """PPO prefers what the clone prefers; IQN's state is the clone's, whatever the clock of its mini-race shows."""
    params, initial = chain.params, chain.folder / "agent_init"
    policy_artifact = load_artifact(chain.folder / "policy", "policy")
    outputs = policy_artifact.actions.space.num_outputs
    inputs = (params.observation, params.encoder, params.network, policy_artifact.normalisation, outputs)
    policy = build_clone_policy(*inputs)
    policy.load_state_dict({name: x for name, x in policy_artifact.tensors.items() if not name.startswith(AHEAD_HEADS)})
    ppo, iqn = (ALGORITHMS[algorithm].build_network(*inputs) for algorithm in ("ppo", "iqn"))
    ppo.load_state_dict(load_artifact(initial, "agent_init").tensors)
    iqn.load_state_dict(load_artifact(initial / "compared" / "iqn", "agent_init").tensors)
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (4, *params.observation.image_shape), dtype=torch.uint8, generator=generator)
    floats = policy.float_mean + policy.float_std * torch.randn(4, len(policy.float_mean), generator=generator)
    floats[:, FLOATS["clock"]] = 0.0
    with torch.no_grad():
        logits, state = policy(image, floats), policy.join(policy.encode(image), floats)
        assert torch.equal(ppo(image, floats).outputs, logits)
        for clock in (0.0, 1.0, 139.0):
            floats[:, FLOATS["clock"]] = clock
            assert torch.equal(iqn.join(iqn.encode(image), floats), state)
