"""Stage `pretrain` on tiny data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from models.encoder import ConvEncoder
from rulka.artifacts import load_artifact
from rulka.errors import UserError
from rulka.params import ActionParams, ObservationParams, PretrainParams
from tasks.pretrain import pretrain

Write = Callable[..., tuple[Path, Any]]
OBSERVATION, ACTIONS = ObservationParams(height=64, width=64), ActionParams(ticks_per_action=5)


def params(**changes: Any) -> PretrainParams:
    values: dict[str, Any] = {
        "task": "autoencoder",
        "epochs": 3,
        "batch_size": 32,
        "learning_rate": 0.003,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "precision": "float32",
        "seed": 1,
        "vae_latent": 8,
        "kl_weight": 0.001,
        "simclr_projection": 16,
        "simclr_temperature": 0.5,
        "simclr_crop_pixels": 8.0,
        "simclr_brightness": 0.2,
    }
    return PretrainParams(**values | changes)


def run(frames_dir: Path, out_dir: Path, **changes: Any) -> dict[str, Any]:
    pretrain(OBSERVATION, ACTIONS, params(**changes), frames_dir=frames_dir, out_dir=out_dir)
    return json.loads((out_dir / "metrics.json").read_text())


@pytest.mark.parametrize("task", ["autoencoder", "vae", "simclr"])
def test_it_learns_and_its_encoder_can_be_used(write_frames: Write, tmp_path: Path, task: str) -> None:
    frames_dir, _ = write_frames()
    metrics = run(frames_dir, tmp_path / "encoder", task=task)
    losses = [epoch["train_loss"] for epoch in metrics["epochs"]]
    assert losses[-1] < losses[0]
    assert metrics["validation_loss"] == min(epoch["validation_loss"] for epoch in metrics["epochs"])
    artifact = load_artifact(tmp_path / "encoder", "encoder", observation=OBSERVATION)
    encoder = ConvEncoder(64, 64)
    encoder.load_state_dict({name.removeprefix("encoder."): tensor for name, tensor in artifact.tensors.items()})
    assert sum(tensor.numel() for tensor in artifact.tensors.values()) == 45_456
    assert artifact.provenance["parameters"]["pretrain"]["task"] == task
    names = {path.name for path in (tmp_path / "encoder").iterdir()}
    assert names == {
        "weights.safetensors",
        "meta.json",
        "metrics.json",
        "loss_curve.png",
        "reconstructions.png",
    }


def test_same_seed_same_weights(write_frames: Write, tmp_path: Path) -> None:
    frames_dir, _ = write_frames()
    weights = []
    for name, seed in [("a", 1), ("b", 1), ("c", 2)]:
        run(frames_dir, tmp_path / name, epochs=1, seed=seed)
        weights.append(load_artifact(tmp_path / name, "encoder").tensors["encoder.layers.0.weight"])
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_single_race_has_no_validation(write_frames: Write, tmp_path: Path) -> None:
    frames_dir, _ = write_frames(num_races=1)
    metrics = run(frames_dir, tmp_path / "encoder", epochs=1)
    assert metrics["validation_loss"] is None
    assert metrics["num_validation_frames"] == 0


def test_missing_frames_say_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="dvc repro capture"):
        run(tmp_path / "none", tmp_path / "encoder")


def test_frames_of_another_size_are_refused(write_frames: Write, tmp_path: Path) -> None:
    frames_dir, _ = write_frames()
    with pytest.raises(UserError, match=r"observation.height 64, expected 128"):
        pretrain(
            ObservationParams(height=128, width=64),
            ACTIONS,
            params(),
            frames_dir=frames_dir,
            out_dir=tmp_path / "encoder",
        )
    assert not (tmp_path / "encoder").exists()
