"""Stage `clone` on tiny data whose right action can be read off the image."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from models.encoder import ConvEncoder
from rulka.actions import action_table
from rulka.agents.networks import build_clone_policy
from rulka.artifacts import Artifact, load_artifact, observation_contract, save_artifact
from rulka.datasets.frames import FrameDataset
from rulka.errors import UserError
from rulka.observation import reference_normalisation
from rulka.params import ActionParams, CloneParams, NetworkParams, ObservationParams, reference_params
from tasks.clone import clone

Write = Callable[..., tuple[Path, Any]]
OBSERVATION, ACTIONS = ObservationParams(height=64, width=64), ActionParams(ticks_per_action=5)
NETWORK = NetworkParams(float_hidden=16, dense_hidden=64, tau_embedding=8, iqn=reference_params().network.iqn)


def params(**changes: Any) -> CloneParams:
    values: dict[str, Any] = {
        "epochs": 6,
        "batch_size": 32,
        "learning_rate": 0.003,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "precision": "float32",
        "seed": 1,
        "fastest_share": 1.0,
        "previous_action_dropout": 1.0,
        "float_noise": 0.02,
    }
    return CloneParams(**values | changes)


@pytest.fixture
def encoder_dir(tmp_path: Path) -> Path:
    torch.manual_seed(5)
    tensors = {f"encoder.{name}": tensor for name, tensor in ConvEncoder(64, 64).state_dict().items()}
    artifact = Artifact(
        "encoder",
        tensors,
        {},
        observation_contract(OBSERVATION),
        action_table(5),
        reference_normalisation(),
    )
    save_artifact(tmp_path / "encoder", artifact)
    return tmp_path / "encoder"


def run(frames_dir: Path, encoder_dir: Path, out_dir: Path, **changes: Any) -> dict[str, Any]:
    dirs = {"frames_dir": frames_dir, "encoder_dir": encoder_dir, "out_dir": out_dir}
    clone(OBSERVATION, ACTIONS, NETWORK, params(**changes), **dirs)
    return json.loads((out_dir / "metrics.json").read_text())


def test_it_learns_from_the_image_and_beats_the_baselines(
    write_frames: Write, encoder_dir: Path, tmp_path: Path
) -> None:
    frames_dir, _ = write_frames()
    metrics = run(frames_dir, encoder_dir, tmp_path / "policy")
    assert metrics["validation_accuracy"] > 0.95
    assert metrics["validation_accuracy"] > metrics["majority_accuracy"] + 0.2
    assert metrics["validation_accuracy"] > metrics["repeat_last_action_accuracy"] + 0.1
    assert metrics["validation_accuracy"] == metrics["accuracy_without_previous_actions"]
    assert metrics["validation_loss"] > metrics["label_entropy"]
    assert len(metrics["confusion"]) == 12


def test_the_artifact_drives_as_it_was_measured(write_frames: Write, encoder_dir: Path, tmp_path: Path) -> None:
    frames_dir, _ = write_frames()
    metrics = run(frames_dir, encoder_dir, tmp_path / "policy", previous_action_dropout=0.5)
    artifact = load_artifact(tmp_path / "policy", "policy", observation=OBSERVATION, actions=action_table(5))
    network = NetworkParams(**artifact.config["network"])
    policy = build_clone_policy(OBSERVATION, network, artifact.normalisation, artifact.config["num_actions"])
    policy.load_state_dict(artifact.tensors)
    frames = FrameDataset(frames_dir, "validation").batch(slice(None))
    with torch.no_grad():
        accuracy = (policy(frames.image, frames.floats).argmax(dim=1) == frames.action).float().mean().item()
    assert accuracy == pytest.approx(metrics["validation_accuracy"])


def test_it_starts_from_the_pretrained_encoder(write_frames: Write, encoder_dir: Path, tmp_path: Path) -> None:
    frames_dir, _ = write_frames(num_races=2, num_frames=8)
    run(frames_dir, encoder_dir, tmp_path / "policy", epochs=1, learning_rate=1e-12)
    before, after = load_artifact(encoder_dir, "encoder"), load_artifact(tmp_path / "policy", "policy")
    for name, tensor in before.tensors.items():
        torch.testing.assert_close(after.tensors[name], tensor, atol=1e-6, rtol=0)


def test_same_seed_same_weights(write_frames: Write, encoder_dir: Path, tmp_path: Path) -> None:
    frames_dir, _ = write_frames()
    weights = []
    for name, seed in [("a", 1), ("b", 1), ("c", 2)]:
        run(frames_dir, encoder_dir, tmp_path / name, epochs=1, seed=seed)
        weights.append(load_artifact(tmp_path / name, "policy").tensors["trunk.0.weight"])
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_single_race_claims_no_validation(write_frames: Write, encoder_dir: Path, tmp_path: Path) -> None:
    frames_dir, _ = write_frames(num_races=1)
    metrics = run(frames_dir, encoder_dir, tmp_path / "policy", epochs=1)
    assert metrics["measured_on"] == "train"
    assert metrics["validation_accuracy"] is None


def test_missing_inputs_say_what_to_run(write_frames: Write, encoder_dir: Path, tmp_path: Path) -> None:
    frames_dir, _ = write_frames()
    with pytest.raises(UserError, match="dvc repro capture"):
        run(tmp_path / "none", encoder_dir, tmp_path / "policy")
    with pytest.raises(UserError, match="dvc repro pretrain"):
        run(frames_dir, tmp_path / "none", tmp_path / "policy")
