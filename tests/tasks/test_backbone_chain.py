"""From a backbone in a folder to agents that race; after `pretrain` the folder is gone, and nothing is asked for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants

from models.encoders.backbone import load_transformers
from rulka.agents.initial_weights import TransferError
from rulka.agents.load import load_policy
from rulka.artifacts import Artifact, ArtifactError, load_artifact, save_artifact
from rulka.params import Params
from tasks.pretrain import pretrain
from tasks.transfer import transfer
from tests.tasks import test_chains as chains

pytestmark = pytest.mark.slow
"""In the fast tier test_chains.py has agents with a backbone."""


def write_backbone(folder: Path) -> None:
    transformers = load_transformers()
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.ViTConfig(**sizes, patch_size=8, image_size=64)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    colours = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]}
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}, **colours).save_pretrained(folder)


@pytest.fixture(scope="module")
def chain(small_params: Params, driven: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> chains.Chain:
    folder, data = tmp_path_factory.mktemp("backbone_chain"), small_params.model_dump()
    write_backbone(folder / "vit")
    source = {"kind": "folder", "path": (folder / "vit").as_posix()}
    data["encoder"] = {"kind": "backbone", "source": source, "pixels": None, "token": "cls"}
    data["pretrain"] |= {"epochs": 1, "batch_size": 64, "precision": "float32", "learning_rate": 1e-4}
    data["clone"] |= {"epochs": 1, "batch_size": 64, "precision": "float32", "race_every": 0}
    data["train"] |= {"max_env_steps": 128}
    data["evaluate"] |= {"num_races": 1, "video_width": 160, "video_height": 90, "video_fps": 5}
    params = Params.model_validate(data)

    def pretrain_and_remove(*arguments: Any, **paths: Any) -> None:
        pretrain(*arguments, **paths)
        (folder / "vit").rename(folder / "gone")
        for name in ("AutoConfig", "AutoModel", "AutoImageProcessor"):
            patches.setattr(getattr(load_transformers(), name), "from_pretrained", refuse)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(constants, "HF_HUB_OFFLINE", True)
        patches.setattr(chains, "pretrain", pretrain_and_remove)
        chains.run_stages(params, driven[0], folder)
    return chains.Chain(params, folder)


def refuse(*_: Any, **__: Any) -> None:
    pytest.fail("a later stage reads a backbone")


def changed_policy(chain: chains.Chain, folder: Path, part: str, **changes: Any) -> Artifact:
    """Writes the cloned policy to a folder, with another description of its backbone."""
    policy = load_artifact(chain.folder / "policy", "policy")
    policy.config["encoder"][part] |= changes
    save_artifact(folder, policy)
    return policy


def test_level_0_begins_with_the_folders_weights_and_says_so(chain: chains.Chain) -> None:
    artifact = load_artifact(chain.folder / "encoder", "encoder", encoder=chain.params.encoder)
    stored = artifact.config["encoder"]
    assert stored["architecture"]["hidden_size"] == 32
    assert stored["image"] == {"pixels": 32, "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]}
    first = artifact.provenance["first_weights"]
    assert first["folder"] == (chain.folder / "vit").as_posix()
    assert list(first["weights_sha256"]) == ["model.safetensors"]
    first_token = load_transformers().ViTForImageClassification.from_pretrained(chain.folder / "gone").vit.embeddings
    moved = (artifact.tensors["encoder.backbone.embeddings.cls_token"] - first_token.cls_token.detach()).abs().max()
    assert 0.0 < float(moved) < 0.01, "an epoch at a rate of 1e-4 from there"
    for name in chains.drivers(chain):
        assert load_artifact(chain.folder / name, ("policy", "agent")).encoder == artifact.encoder


def test_another_backbone_is_refused_by_what_differs(chain: chains.Chain, tmp_path: Path) -> None:
    """Also where the same was asked for, as when a folder's content has changed between both stages."""
    encoder = type(chain.params.encoder).model_validate(chain.params.encoder.model_dump() | {"token": "mean"})
    with pytest.raises(ArtifactError, match=r"encoder.token is 'cls', expected 'mean'"):
        load_artifact(chain.folder / "policy", "policy", encoder=encoder)
    changed_policy(chain, tmp_path / "future", "architecture", model_type="of_the_future")
    with pytest.raises(ArtifactError, match=r"config and weights do not make a network: .*of_the_future"):
        load_policy(tmp_path / "future")
    changed_policy(chain, tmp_path / "policy", "image", pixels=64)
    paths = {"policy_dir": tmp_path / "policy", "out_dir": tmp_path / "agent_init"}
    with pytest.raises(TransferError, match="the cloned policy was made with another backbone") as raised:
        transfer(chain.params, encoder_dir=chain.folder / "encoder", **paths)
    assert "dvc repro clone" in raised.value.hint
