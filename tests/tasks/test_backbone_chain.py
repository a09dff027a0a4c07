"""From a backbone in a folder to agents that race; after `pretrain` the folder is gone, and nothing is asked for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from torch import nn

from models.actor_critic import ActorCritic
from models.encoders.backbone import load_transformers
from models.encoders.base import normalise_image
from models.encoders.build import build_encoder
from models.iqn import IqnNetwork
from models.torso import Torso
from rulka.agents.algorithms import ALGORITHMS
from rulka.agents.initial_weights import TransferError
from rulka.agents.load import load_policy
from rulka.agents.networks import build_clone_policy
from rulka.artifacts import Artifact, ArtifactError, load_artifact, save_artifact
from rulka.observation import NUM_FLOATS
from rulka.params import Params
from rulka.pretraining.backbones import BackboneError
from rulka.training.racing import Folders
from tasks.clone import Folders as CloneFolders
from tasks.clone import clone
from tasks.pretrain import pretrain
from tasks.train import train
from tasks.transfer import transfer

pytestmark = pytest.mark.slow
"""In the fast tier test_fusion_chain.py has agents with a backbone."""


@dataclass(frozen=True)
class Chain:
    """What the stages wrote, and with which parameters."""

    params: Params
    folder: Path
    backbone: Path

    def load(self, name: str) -> Artifact:
        kind = "agent" if name.startswith("agent/") else name.split("/")[0]
        return load_artifact(self.folder / name.removesuffix("/"), kind, encoder=self.params.encoder)


def write_backbone(folder: Path) -> None:
    transformers = load_transformers()
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.ViTConfig(**sizes, patch_size=8, image_size=64)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    colours = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]}
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}, **colours).save_pretrained(folder)


@pytest.fixture(scope="module")
def chain(small_params: Params, driven: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Chain:
    folder, data = tmp_path_factory.mktemp("backbone_chain"), small_params.model_dump()
    write_backbone(folder / "vit")
    source = {"kind": "folder", "path": (folder / "vit").as_posix()}
    data["encoder"] = {"kind": "backbone", "source": source, "pixels": None, "token": "cls"}
    data["pretrain"] |= {"epochs": 1, "batch_size": 64, "precision": "float32", "learning_rate": 1e-4}
    data["clone"] |= {"epochs": 1, "batch_size": 64, "precision": "float32", "race_every": 0}
    data["train"] |= {"max_env_steps": 128}
    params = Params.model_validate(data)
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(constants, "HF_HUB_OFFLINE", True)
        run_stages(params, driven, folder, patches)
    return Chain(params, folder, folder / "vit")


def run_stages(params: Params, driven: tuple[Path, Path], folder: Path, patches: pytest.MonkeyPatch) -> None:
    races, frames = driven
    seen, network = (params.observation, params.actions), (params.encoder, params.network)
    encoder, policy, initial = folder / "encoder", folder / "policy", folder / "agent_init"
    paths = {"frames_dir": frames, "out_dir": encoder, "runs_dir": folder / "runs" / "pretrain"}
    pretrain(*seen, params.encoder, params.pretrain, **paths)
    (folder / "vit").rename(folder / "gone")
    for name in ("AutoConfig", "AutoModel", "AutoImageProcessor"):
        patches.setattr(getattr(load_transformers(), name), "from_pretrained", refuse)
    folders = CloneFolders(races, frames, encoder, policy, folder / "runs" / "clone")
    clone(*seen, params.simulator, params.race_end, *network, params.clone, folders=folders)
    transfer(*seen, *network, params.train, params.transfer, encoder_dir=encoder, policy_dir=policy, out_dir=initial)
    train(params, folders=Folders(initial, races, frames, folder / "runs", folder / "agent"))


def refuse(*_: Any, **__: Any) -> None:
    pytest.fail("a later stage reads a backbone")


def images() -> torch.Tensor:
    return torch.randint(0, 256, (4, 1, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def features(network: nn.Module, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    network.load_state_dict(tensors)
    with torch.inference_mode():
        if isinstance(network, Torso):
            return network.eval().encode(images())
        return network.eval()(normalise_image(images(), torch.float32))


def test_level_0_begins_with_the_folders_weights_and_says_so(chain: Chain) -> None:
    artifact = chain.load("encoder")
    stored = artifact.config["encoder"]
    asked = chain.params.encoder.model_dump(mode="json")
    assert {name: stored[name] for name in asked} == asked
    assert stored["architecture"]["hidden_size"] == 32
    assert stored["image"] == {"pixels": 32, "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]}
    first = artifact.provenance["first_weights"]
    assert (first["folder"], list(first["weights_sha256"])) == (chain.backbone.as_posix(), ["model.safetensors"])
    first_token = load_transformers().ViTForImageClassification.from_pretrained(chain.folder / "gone").vit.embeddings
    moved = (artifact.tensors["encoder.backbone.embeddings.cls_token"] - first_token.cls_token.detach()).abs().max()
    assert 0.0 < float(moved) < 0.01, "an epoch at a rate of 1e-4 from there"


def test_every_network_is_built_from_its_artifact_and_sees_the_same(chain: Chain) -> None:
    params, pretrained, cloned = chain.params, chain.load("encoder"), chain.load("policy")
    encoder = build_encoder(pretrained.encoder, 64, 64)
    own = {name.removeprefix("encoder."): tensor for name, tensor in pretrained.tensors.items()}
    assert features(encoder, own).shape == (4, 32)

    inputs = (params.observation, cloned.encoder, params.network, cloned.normalisation, 12)
    expected = features(build_clone_policy(*inputs), cloned.tensors)
    for algorithm, name in (("ppo", "agent_init/"), ("iqn", "agent_init/compared/iqn")):
        initial = chain.load(name)
        assert initial.encoder == pretrained.encoder
        network = ALGORITHMS[algorithm].build_network(
            params.observation, initial.encoder, params.network, initial.normalisation, 12
        )
        assert isinstance(network, ActorCritic | IqnNetwork)
        assert torch.equal(features(network, initial.tensors), expected), "all of it is the clone's"


def test_features_are_the_same_to_the_bit_after_a_round_trip(chain: Chain, tmp_path: Path) -> None:
    artifact = chain.load("policy")
    inputs = (chain.params.observation, artifact.encoder, chain.params.network, artifact.normalisation, 12)
    before = features(build_clone_policy(*inputs), artifact.tensors)
    save_artifact(tmp_path / "policy", artifact)
    again = load_artifact(tmp_path / "policy", "policy")
    assert again.encoder == artifact.encoder
    inputs = (chain.params.observation, again.encoder, chain.params.network, again.normalisation, 12)
    assert torch.equal(features(build_clone_policy(*inputs), again.tensors), before)


@pytest.mark.parametrize("name", ["policy", "agent/", "agent/compared/iqn"])
def test_what_was_trained_drives(chain: Chain, name: str) -> None:
    policy = load_policy(chain.folder / name.removesuffix("/"))
    actions = policy(images().numpy(), np.zeros((4, NUM_FLOATS), np.float32))
    assert actions.shape == (4,)
    assert (
        load_artifact(chain.folder / name.removesuffix("/"), ("policy", "agent")).encoder
        == chain.load("encoder").encoder
    )


def test_another_backbone_is_refused_by_the_key_that_differs(chain: Chain) -> None:
    asked = chain.params.encoder.model_dump() | {"token": "mean"}
    encoder = type(chain.params.encoder).model_validate(asked)
    with pytest.raises(ArtifactError, match=r"encoder.token is 'cls', expected 'mean'"):
        load_artifact(chain.folder / "policy", "policy", encoder=encoder)


def test_an_architecture_that_this_transformers_does_not_know_is_refused(chain: Chain, tmp_path: Path) -> None:
    policy = chain.load("policy")
    policy.config["encoder"]["architecture"]["model_type"] = "of_the_future"
    save_artifact(tmp_path / "policy", policy)
    with pytest.raises(ArtifactError, match=r"config and weights do not make a network: .*of_the_future"):
        load_policy(tmp_path / "policy")


def test_a_clone_of_another_backbone_is_refused(chain: Chain, tmp_path: Path) -> None:
    """The same was asked for, as when a folder's content has changed between both stages."""
    policy = chain.load("policy")
    policy.config["encoder"]["image"]["pixels"] = 64
    save_artifact(tmp_path / "policy", policy)
    params = chain.params
    with pytest.raises(TransferError, match="the cloned policy was made with another backbone") as raised:
        transfer(
            params.observation,
            params.actions,
            params.encoder,
            params.network,
            params.train,
            params.transfer,
            encoder_dir=chain.folder / "encoder",
            policy_dir=tmp_path / "policy",
            out_dir=tmp_path / "agent_init",
        )
    assert "dvc repro clone" in raised.value.hint


def test_a_backbone_that_is_not_there_is_said_before_frames_are_read(chain: Chain, tmp_path: Path) -> None:
    (tmp_path / "frames").mkdir()
    (tmp_path / "frames" / "index.json").write_text("no index, which would be the next thing to be said")
    params = chain.params
    with pytest.raises(BackboneError, match=r"vit holds no config\.json"):
        pretrain(
            params.observation,
            params.actions,
            params.encoder,
            params.pretrain,
            frames_dir=tmp_path / "frames",
            out_dir=tmp_path / "encoder",
            runs_dir=tmp_path / "runs",
        )
    assert not (tmp_path / "encoder").exists()
