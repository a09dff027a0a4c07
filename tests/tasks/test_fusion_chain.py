"""From frames to agents that drive, with fusions of tokens: clone, transfer and train, and folders of Hugging Face."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.encoders.build import build_encoder
from models.encoders.config import ENCODER_CONFIG
from models.torso import Torso
from rulka.actions import action_table
from rulka.agents.algorithms import ALGORITHMS, CLONED_SHAPES
from rulka.agents.hugging_face import export_agent, import_agent
from rulka.agents.load import load_policy
from rulka.agents.params import Algorithm
from rulka.artifacts import Artifact, load_artifact, save_artifact, sight_contract
from rulka.observation import FLOATS, reference_normalisation
from rulka.params import Params
from rulka.training.racing import Folders
from tasks.clone import Folders as CloneFolders
from tasks.clone import clone
from tasks.train import train
from tasks.transfer import transfer

BLOCKS = {"width": 16, "depth": 1, "heads": 2}
PATCHES = {"kind": "patches", "patch": 16, "width": 16, "depth": 0, "heads": 2}
UNIFIED = {"kind": "token_sequence", "image": "all", "floats": {"kind": "raw", "tokens": 2}, **BLOCKS}
VIT: dict[str, Any] = {"model_type": "vit", "image_size": 32, "patch_size": 8, "hidden_size": 16}
VIT |= {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
BACKBONE = {"kind": "backbone", "source": {"kind": "architecture", "config": VIT}, "pixels": 32, "token": "cls"}
RESOLVED = BACKBONE | {"architecture": VIT, "image": {"pixels": 32, "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]}}
LIKE_IQN: dict[str, Any] = {
    "clone": {"shape": "iqn"},
    "train": {"algorithm": "iqn", "compared": []},
    "iqn": {"warmup_steps": 0, "guide_floor": 0.0},
}


@dataclass(frozen=True)
class Chain:
    """What the stages wrote, and with which parameters."""

    params: Params
    folder: Path

    def load(self, name: str, kind: str) -> Artifact:
        return load_artifact(self.folder / name, kind)


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "unified": (PATCHES, UNIFIED, {}),
    "variant B": (BACKBONE, {"kind": "projected"}, {}),
    "fused vector, shaped like IQN": (
        {"kind": "conv", "adaptive_pool": 0},
        {"kind": "fused_vector", "tokens": 3, **BLOCKS},
        LIKE_IQN,
    ),
}


FAST = "variant B"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(case, id=name, marks=() if name == FAST else pytest.mark.slow) for name, case in CASES.items()
    ],
)
def chain(
    small_params: Params,
    driven: tuple[Path, Path],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Chain:
    folder, data = tmp_path_factory.mktemp("fusion_chain"), small_params.model_dump()
    encoder, fusion, changes = request.param
    data |= {"encoder": encoder}
    data["network"] |= {"fusion": fusion}
    data["clone"] |= {"epochs": 1, "batch_size": 64, "precision": "float32", "race_every": 0}
    data["train"] |= {"max_env_steps": 256}
    for section, values in changes.items():
        data[section] |= values
    if changes:
        data["network"]["iqn"] |= {"guided": False}
        data["transfer"]["iqn"] |= {"trunk": "cloned", "heads": "cloned"}
    params = Params.model_validate(data)
    run_stages(params, driven, folder)
    return Chain(params, folder)


def run_stages(params: Params, driven: tuple[Path, Path], folder: Path) -> None:
    races, frames = driven
    write_encoder(params, folder / "encoder")
    seen, network = (params.observation, params.actions), (params.encoder, params.network)
    encoder, policy, initial = folder / "encoder", folder / "policy", folder / "agent_init"
    folders = CloneFolders(races, frames, encoder, policy, folder / "runs" / "clone")
    clone(*seen, params.simulator, params.race_end, *network, params.clone, folders=folders)
    transfer(*seen, *network, params.train, params.transfer, encoder_dir=encoder, policy_dir=policy, out_dir=initial)
    train(params, folders=Folders(initial, races, frames, folder / "runs", folder / "agent"))


def write_encoder(params: Params, folder: Path) -> None:
    """Random weights in place of stage `pretrain`, which knows nothing of fusions."""
    torch.manual_seed(3)
    stored = RESOLVED if params.encoder.kind == "backbone" else params.encoder.model_dump(mode="json")
    built = build_encoder(ENCODER_CONFIG.validate_python(stored), 64, 64)
    tensors = {f"encoder.{name}": tensor for name, tensor in built.state_dict().items()}
    contract = sight_contract(params.observation)
    config = {"encoder": stored}
    save_artifact(folder, Artifact("encoder", tensors, config, contract, action_table(5), reference_normalisation()))


def torso_of(artifact: Artifact, build: Callable[..., Any], params: Params) -> Torso:
    network = build(params.observation, artifact.encoder, params.network, artifact.normalisation, 12)
    network.load_state_dict(artifact.tensors)
    return network.eval()


def shown() -> tuple[torch.Tensor, torch.Tensor]:
    generator, normalisation = torch.Generator().manual_seed(0), reference_normalisation()
    image = torch.randint(0, 256, (20, 1, 64, 64), dtype=torch.uint8, generator=generator)
    noise = torch.randn(20, len(normalisation.mean), generator=generator)
    return image, torch.tensor(normalisation.mean) + torch.tensor(normalisation.std) * noise


@torch.no_grad()
def test_new_agents_begin_with_what_was_cloned_whatever_the_clock_shows(chain: Chain) -> None:
    params, policy = chain.params, chain.load("policy", "policy")
    cloned = torso_of(policy, CLONED_SHAPES[params.clone.shape], params)
    image, floats = shown()
    state = cloned.state(image, floats)
    folders: dict[Algorithm, str] = {params.train.algorithm: "agent_init"}
    folders |= {name: f"agent_init/compared/{name}" for name in params.train.compared}
    for algorithm, name in folders.items():
        initial = chain.load(name, "agent_init")
        assert initial.config["network"]["fusion"] == params.network.fusion.model_dump(mode="json")
        network = torso_of(initial, ALGORITHMS[algorithm].build_network, params)
        for clock in (0.0, 1.0, 139.0):
            floats[:, FLOATS["clock"]] = clock
            assert torch.equal(network.state(image, floats), state)
        if algorithm == "ppo" or params.clone.shape == "iqn":
            own = {"value_head.weight", "value_head.bias"} if algorithm == "ppo" else set()
            assert set(initial.tensors) == set(policy.tensors) | own
            assert all(torch.equal(initial.tensors[name], tensor) for name, tensor in policy.tensors.items())


def test_what_was_trained_drives(chain: Chain) -> None:
    image, floats = shown()
    for name in ("agent", *(f"agent/compared/{name}" for name in chain.params.train.compared)):
        agent = chain.load(name, "agent")
        assert agent.provenance["training"]["env_steps"] == 256
        assert any(tensor.startswith("fusion.") for tensor in agent.tensors)
        assert load_policy(chain.folder / name)(image.numpy(), floats.numpy()).shape == (20,)


@pytest.mark.parametrize("kind", ["agent", "policy"])
def test_a_round_trip_through_hugging_faces_layout_loses_nothing(chain: Chain, tmp_path: Path, kind: str) -> None:
    """Whatever params.yaml says by then: the folder has its own encoder and fusion."""
    folder, (image, floats) = chain.folder / kind, shown()
    export_agent(folder, tmp_path / "hub")
    names = {path.name for path in (tmp_path / "hub").iterdir()}
    assert names == {"config.json", "model.safetensors"}
    import_agent(tmp_path / "hub", tmp_path / "again")
    before, after = load_artifact(folder, kind), load_artifact(tmp_path / "again", kind)
    assert after.tensors.keys() == before.tensors.keys()
    assert all(torch.equal(after.tensors[name], tensor) for name, tensor in before.tensors.items())
    for field in ("config", "observation", "actions", "provenance"):
        assert getattr(after, field) == getattr(before, field)
    for part in ("mean", "std"):
        np.testing.assert_array_equal(getattr(after.normalisation, part), getattr(before.normalisation, part))
    expected = load_policy(folder)(image.numpy(), floats.numpy())
    np.testing.assert_array_equal(load_policy(tmp_path / "again")(image.numpy(), floats.numpy()), expected)
