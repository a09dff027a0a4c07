"""Stage `pretrain` on tiny data."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from models.encoders.build import build_encoder
from models.encoders.config import EncoderConfig
from rulka.contracts.artifacts import load_artifact
from rulka.contracts.observation_params import ObservationParams
from rulka.machine.errors import UserError
from rulka.params import Params, reference_params
from rulka.pretraining import objectives
from rulka.pretraining.backbones import FirstEncoder
from rulka.pretraining.objectives import AutoencoderObjective, SimclrObjective, nt_xent_loss
from rulka.pretraining.params import PretrainParams
from tasks.pretrain import pretrain
from tests.conftest import Killed, sees, synthetic_race

Write = Callable[..., tuple[Path, Any]]
OBSERVATION = sees(64, 64)

CONV = reference_params().encoder
PRECISIONS = ("float32", "bfloat16", "auto")
OBJECTIVES: dict[str, dict[str, Any]] = {params().kind: params().model_dump() for params in objectives.OBJECTIVES}


def params(encoder: EncoderConfig = CONV, observation: ObservationParams = OBSERVATION, **changes: Any) -> Params:
    values: dict[str, Any] = {"epochs": 3, "patience": None, "batch_size": 32, "learning_rate": 0.003}
    values |= {"weight_decay": 0.0, "precision": "float32", "objective": OBJECTIVES["autoencoder"]}
    sections = {"observation": observation, "encoder": encoder, "pretrain": PretrainParams(**values | changes)}
    return reference_params().model_copy(update=sections)


def run(frames_dir: Path, out_dir: Path, *, draws: bool = False, **changes: Any) -> dict[str, Any]:
    """Runs the stage; its plots, which take longer than such short trainings, are empty files unless it `draws`."""
    paths = {"frames_dir": frames_dir, "out_dir": out_dir, "runs_dir": out_dir.parent / "runs"}
    with pytest.MonkeyPatch.context() as patches:
        if not draws:
            patches.setattr(Figure, "savefig", lambda _, path, **__: Path(path).touch())
        pretrain(params(**changes), **paths)
    return json.loads((out_dir / "metrics.json").read_text())


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "autoencoder" else pytest.mark.slow) for kind in OBJECTIVES]
)
def test_it_learns_and_its_encoder_can_be_loaded(write_frames: Write, tmp_path: Path, kind: str) -> None:
    frames_dir, _ = write_frames()
    metrics = run(frames_dir, tmp_path / "encoder", draws=True, objective=OBJECTIVES[kind])
    losses = [epoch["train_loss"] for epoch in metrics["epochs"]]
    assert losses[-1] < losses[0]
    assert metrics["validation_loss"] == min(epoch["validation_loss"] for epoch in metrics["epochs"])
    artifact = load_artifact(tmp_path / "encoder", "encoder", observation=OBSERVATION)
    assert artifact.config == {"encoder": CONV.model_dump()}
    encoder = build_encoder(CONV, 64, 64)
    encoder.load_state_dict({name.removeprefix("encoder."): tensor for name, tensor in artifact.tensors.items()})
    assert sum(tensor.numel() for tensor in artifact.tensors.values()) == 45_456
    assert artifact.provenance["parameters"]["pretrain"]["objective"] == OBJECTIVES[kind]
    names = {path.name for path in (tmp_path / "encoder").iterdir()}
    assert names == {"weights.safetensors", "meta.json", "metrics.json", "previews.png"}
    assert artifact.provenance["probes"] == metrics["probes"]
    assert metrics["probes"]["speed_mps"]["constant_error"] > 0
    assert '"error"' not in json.dumps(metrics)  # `dvc plots diff` would take it for an error of its own


@pytest.mark.parametrize(("test_fraction", "split"), [(0.1, "test"), (0.0, "validation")])
def test_probes_are_measured_on_races_that_chose_nothing(
    write_frames: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, test_fraction: float, split: str
) -> None:
    frames_dir, _ = write_frames(test_fraction=test_fraction)
    probed = []

    def probe(*networks_and_frames: Any) -> None:
        probed.append([frames.split for frames in networks_and_frames[2:]])

    monkeypatch.setattr("tasks.pretrain.probe_encoder", probe)
    assert run(frames_dir, tmp_path / "encoder", epochs=1)["probed_on"] == split
    assert probed == [["train", split]]


def test_a_single_race_has_no_validation(write_frames: Write, tmp_path: Path) -> None:
    frames_dir, _ = write_frames(num_races=1)
    metrics = run(frames_dir, tmp_path / "encoder", draws=True, epochs=1)
    assert metrics["validation_loss"] is None
    assert metrics["num_validation_frames"] == 0
    assert metrics["probes"] is metrics["probed_on"] is None


def test_contrastive_batches_are_one_size(write_frames: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a batch of B frames a blind guess costs log(2 B - 1): batches of other sizes cannot be compared with it."""
    frames_dir, index = write_frames()
    num_train, num_held_out = (index.statistics["num_frames"][split] for split in ("train", "validation"))
    assert num_train > 64
    assert num_train % 64
    assert num_held_out > 32
    sizes: list[tuple[bool, int]] = []

    def blind(objective: SimclrObjective, image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        sizes.append((torch.is_grad_enabled(), len(image)))
        guess = torch.ones(len(image), 4)
        return nt_xent_loss(guess, guess, 0.5) + 0 * objective.projector.layers[0].get_parameter("bias").sum()

    monkeypatch.setattr(SimclrObjective, "loss", blind)
    for batch_size in (32, 64):
        sizes.clear()
        metrics = run(frames_dir, tmp_path / "encoder", objective=OBJECTIVES["simclr"], epochs=2, batch_size=batch_size)
        assert {size for is_training, size in sizes if is_training} == {batch_size}
        assert {size for is_training, size in sizes if not is_training} == {min(batch_size, num_held_out)}
        assert metrics["train_loss"] == pytest.approx(math.log(2 * batch_size - 1), rel=1e-5)
        assert metrics["validation_loss"] == pytest.approx(math.log(2 * min(batch_size, num_held_out) - 1), rel=1e-5)


def test_an_encoder_that_tells_no_frames_apart_is_said_to(
    write_frames: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def alike(*arguments: Any) -> Any:
        race = synthetic_race(*arguments)
        return replace(race, image=np.full_like(race.image, 100))

    monkeypatch.setattr("tests.conftest.synthetic_race", alike)
    frames_dir, _ = write_frames(num_races=2, num_frames=20)
    run(frames_dir, tmp_path / "encoder", epochs=1, objective=OBJECTIVES["simclr"])
    assert "no better than 3.714, as if no frames were told apart" in capsys.readouterr().err


def test_a_single_frame_cannot_be_told_apart(write_frames: Write, tmp_path: Path) -> None:
    frames_dir, _ = write_frames(num_races=1, num_frames=1)
    with pytest.raises(UserError, match="there is one training frame"):
        run(frames_dir, tmp_path / "encoder", objective=OBJECTIVES["simclr"])


def test_views_of_later_frames(write_frames: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs of each race end before its end; a number that leaves a split no two pairs is refused."""
    frames_dir, index = write_frames(num_races=3, num_frames=20)
    lengths = {split: [race.num_frames for race in index.races if race.split == split] for split in index.shards}
    sizes = []

    def blind(objective: SimclrObjective, image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        sizes.append(tuple(image.shape))
        return 0 * objective.projector.layers[0].get_parameter("bias").sum()

    monkeypatch.setattr(SimclrObjective, "loss", blind)
    run(frames_dir, tmp_path / "encoder", epochs=1, batch_size=1000, objective=OBJECTIVES["simclr"] | {"later": 4})
    pairs = [sum(length - 4 for length in lengths[split]) for split in ("train", "validation")]
    assert sizes == [(count, 2, 1, 64, 64) for count in pairs]
    most = max(lengths["validation"]) - 2
    run(frames_dir, tmp_path / "most", epochs=1, objective=OBJECTIVES["simclr"] | {"later": most})
    assert max(lengths["train"]) > most + 2
    with pytest.raises(
        UserError, match=f"looks {most + 1} decisions ahead, and the longest held-out race has"
    ) as caught:
        run(frames_dir, tmp_path / "other", objective=OBJECTIVES["simclr"] | {"later": most + 1})
    assert f"up to {most}" in caught.value.for_people()


@pytest.mark.parametrize("kind", ["autoencoder", "simclr"])
@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_it_had_not_been_killed(
    write_frames: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """In mid-epoch; nothing is left once the encoder is there."""
    frames_dir, _ = write_frames()
    changes = {"objective": OBJECTIVES[kind], "precision": "auto", "checkpoint_s": 1e-9}
    whole = run(frames_dir, tmp_path / "whole", **changes)
    objective = AutoencoderObjective if kind == "autoencoder" else SimclrObjective
    real, calls = objective.loss, []

    def dying(self: Any, image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        calls.extend([1] * torch.is_grad_enabled())
        if len(calls) == 6:
            raise Killed
        return real(self, image, generator)

    monkeypatch.setattr(objective, "loss", dying)
    with pytest.raises(Killed):
        run(frames_dir, tmp_path / "resumed", **changes)
    assert not (tmp_path / "resumed").exists()
    resumed = run(frames_dir, tmp_path / "resumed", **changes)
    assert len(calls) < 6 + 3 * 6
    assert list((tmp_path / "runs").rglob("*.ckpt")) == []
    assert whole == resumed
    tensors = [load_artifact(tmp_path / name, "encoder").tensors for name in ("whole", "resumed")]
    assert all(torch.equal(tensor, tensors[1][name]) for name, tensor in tensors[0].items())


def test_frames_of_another_size_are_refused(write_frames: Write, tmp_path: Path) -> None:
    frames_dir, _ = write_frames()
    with pytest.raises(UserError, match=r"observation.height 64, expected 128"):
        run(frames_dir, tmp_path / "encoder", observation=sees(128, 64))
    assert not (tmp_path / "encoder").exists()


@pytest.mark.parametrize(
    ("kind", "precision"),
    [
        ("vae", "float32"),
        ("autoencoder", "bfloat16"),
        *(pytest.param(kind, precision, marks=pytest.mark.slow) for kind in OBJECTIVES for precision in PRECISIONS),
    ],
)
def test_it_learns_on_another_device(
    write_frames: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
    kind: str,
    precision: str,
) -> None:
    """The losses are those of the CPU, to rounding, where the device draws the same numbers."""

    def losses(name: str, precision: str) -> list[float]:
        metrics = run(frames_dir, tmp_path / name, objective=OBJECTIVES[kind], epochs=2, precision=precision)
        return [epoch["train_loss"] for epoch in metrics["epochs"]]

    frames_dir, _ = write_frames(num_races=3)
    expected = losses("here", "float32")
    monkeypatch.setattr("tasks.pretrain.use_device", lambda: device)
    found = losses("there", precision)
    if device.type == "standin" or kind == "autoencoder":
        assert found == pytest.approx(expected, rel=1e-3 if precision == "float32" else 0.1)
    else:  # other views and noise: with five other seeds the CPU's second losses of VICReg are 140 to 275
        assert found[0] == pytest.approx(expected[0], rel=0.1)
        assert all(math.isfinite(loss) for loss in found)
    artifact = load_artifact(tmp_path / "there", "encoder", observation=OBSERVATION)
    assert all(tensor.device.type == "cpu" for tensor in artifact.tensors.values())


def test_without_epochs_the_first_weights_are_kept_and_probed(
    write_frames: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a backbone reaches agents as it is."""
    tensors = {name: torch.full_like(tensor, 0.01) for name, tensor in build_encoder(CONV, 64, 64).state_dict().items()}
    monkeypatch.setattr("tasks.pretrain.first_encoder", lambda *_: FirstEncoder(CONV, tensors))
    frames_dir, _ = write_frames()
    metrics = run(frames_dir, tmp_path / "encoder", epochs=0)
    kept = load_artifact(tmp_path / "encoder", "encoder", observation=OBSERVATION).tensors
    assert all(torch.equal(kept[f"encoder.{name}"], tensor) for name, tensor in tensors.items())
    assert (metrics["epochs"], metrics["train_loss"], metrics["validation_loss"]) == ([], None, None)
    assert metrics["probes"]["speed_mps"]["pretrained_error"] > 0
