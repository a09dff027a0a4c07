"""Stage `pretrain` (Level 0): trains the image encoder on captured frames.

Reads  data/frames/         see rulka.datasets.formats.frames
Writes data/encoder/        an artifact of kind "encoder", see rulka.contracts.artifacts; tensors are named `encoder.*`
         metrics.json       losses of every epoch, the epoch kept (-1 without epochs, and losses are null then), the
                            reason if training stopped early; and probe
                            results of the features on held-out frames, with the split (`probed_on`)
         previews.png       frames, and below them their reconstructions, or two augmented views
Live   runs/pretrain/<fingerprint>/   checkpoints; see rulka.pretraining.fit
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from matplotlib.image import imsave

from rulka.contracts.actions import action_table
from rulka.contracts.artifacts import OWN_FILES, Artifact, network_input_contract, observation_contract, write_artifact
from rulka.contracts.observation import reference_normalisation
from rulka.datasets.card import contact_sheet
from rulka.datasets.formats.frames import FrameDataset, Images, check_contract
from rulka.datasets.formats.split import SPLITS
from rulka.machine.device import Generators, device_of, make_generator, upload_ahead, use_device, use_threads
from rulka.machine.errors import UserError
from rulka.machine.precision import raise_malloc_thresholds
from rulka.machine.progress import Progress
from rulka.machine.terminal import tell
from rulka.params import Params, params_of_stage, sections_of
from rulka.pretraining.backbones import first_encoder
from rulka.pretraining.fit import History, TrainingTask, fit, resumable, say_if_stopped
from rulka.pretraining.objectives import Objective, ViewsObjective, build_objective
from rulka.pretraining.params import PretrainParams
from rulka.pretraining.probes import probe_encoder, spread
from rulka.runtime.checkpoint import Checkpoints
from rulka.stages.folders import ENCODER, FRAMES, METRICS_FILE, PRETRAIN_RUNS, PREVIEWS_PICTURE
from rulka.stages.provenance import provenance
from rulka.stages.stage import check_not_cached, output_folder, require, run_stage

NUM_PREVIEWS = 12
VALIDATION_BATCH = 512
NO_LEARNING_RATIO = 0.99
"""Above this share of the loss of an encoder that tells no frames apart, pretraining warns that it learned nothing."""


def pretrain(params: Params, *, frames_dir: Path, out_dir: Path, runs_dir: Path) -> None:
    """Trains an encoder on the training frames and keeps the weights of the epoch with the best validation loss.

    Without epochs it keeps the first weights and only probes them. A stopped run resumes from its last checkpoint in
    `runs_dir`.

    Raises:
        UserError: if the frames are missing or of another size, a backbone is unavailable, or training diverges.
    """
    observation, pretrain = params.observation, params.pretrain
    table = action_table(params.actions.ticks_per_action)
    require(frames_dir, "capture")
    first = first_encoder(params.encoder, observation)
    train, validation, test = (FrameDataset(frames_dir, split, observation.channels) for split in SPLITS)
    check_contract(train.index, observation_contract(observation), table)
    torch.manual_seed(pretrain.seed)
    objective = build_objective(pretrain.objective, first.config, observation).to(use_device())
    fresh = copy.deepcopy(objective.encoder)
    if first.tensors is not None:
        objective.encoder.load_state_dict(first.tensors, strict=False)  # blocks behind a backbone stay fresh
    origin = provenance("pretrain", sections_of("pretrain", params), {"frames": frames_dir})
    origin |= {"first_weights": first.origin}
    with resumable(runs_dir, origin) as checkpoints:
        history = _train(objective, pretrain, train, validation, checkpoints)
        probed = next((frames for frames in (test, validation) if frames.on_main_track()), None)
        with torch.no_grad():
            probes = None if probed is None else probe_encoder(objective.encoder, fresh, train, probed)
        artifact = Artifact(
            kind="encoder",
            tensors={f"encoder.{name}": tensor for name, tensor in objective.encoder.state_dict().items()},
            config={"encoder": first.config.model_dump(mode="json")},
            observation=network_input_contract(observation),
            actions=table,
            normalisation=reference_normalisation(pretrain.normalisation),
            provenance=origin | {"probes": probes},
        )
        with output_folder(out_dir) as folder:
            best = history.best if history.epochs else None
            metrics = {
                "objective": pretrain.objective.kind,
                "num_train_frames": len(train),
                "num_validation_frames": len(validation),
                "train_loss": best and best.train_loss,
                "validation_loss": best and best.validation_loss,
                **history.to_json(),
                "probes": probes,
                "probed_on": probed.split if probed else None,
            }
            (folder / METRICS_FILE).write_text(json.dumps(metrics, indent=1) + "\n", encoding="utf-8")
            _draw_previews(folder, objective, pretrain, train if probed is None else probed)
            write_artifact(folder, artifact)


def _train(
    objective: Objective,
    pretrain: PretrainParams,
    train: FrameDataset,
    validation: FrameDataset,
    checkpoints: Checkpoints,
) -> History:
    if pretrain.epochs == 0:
        objective.eval()
        return History()
    device, num_frames = device_of(objective), _num_used(objective, train)
    _check_comparable(objective, train, validation)
    generators = Generators(device, pretrain.seed)
    num_batches = num_frames / pretrain.batch_size
    steps_per_epoch = max(1, int(num_batches)) if objective.compares_frames else math.ceil(num_batches)
    with Progress(f"pretrain ({pretrain.objective.kind})", pretrain.epochs * num_frames, "frames") as bar:
        history = fit(
            objective,
            pretrain,
            steps_per_epoch,
            TrainingTask(
                batches=lambda epoch: _batches(objective, train, pretrain, epoch, pretrain.batch_size),
                loss=lambda batch: objective.loss(batch.image, generators.device),
                validate=lambda: _validation_loss(objective, validation, pretrain),
                keeps={"generators": generators},
            ),
            bar,
            checkpoints,
        )
    say_if_stopped("pretrain", history)
    if isinstance(objective, ViewsObjective):
        loss, blind = history.best.train_loss, objective.blind_loss(min(pretrain.batch_size, num_frames))
        if loss > NO_LEARNING_RATIO * blind:
            said = f"the loss, {loss:.3f}, is no better than {blind:.3f}, as if no frames were told apart"
            tell(f"pretrain: {said}; frames that differ more, or more epochs, may help")
    return history


def _batches(
    objective: Objective, frames: FrameDataset, pretrain: PretrainParams, epoch: int, batch_size: int
) -> Iterator[Images]:
    """Yields batches in an order seeded by the epoch.

    Objectives that compare frames need batches of equal size, so an incomplete last batch is dropped.
    """
    size = min(batch_size, _num_used(objective, frames))
    for batch in frames.iterate_images(seed=pretrain.seed, epoch=epoch, batch_size=batch_size, later=objective.later):
        if len(batch.image) == size or not objective.compares_frames:
            yield batch


def _validation_loss(objective: Objective, validation: FrameDataset, pretrain: PretrainParams) -> float | None:
    """Returns the mean loss over the validation frames, with the same random numbers every epoch; None without any."""
    if not len(validation):
        return None
    device = device_of(objective)
    generator = make_generator(device, pretrain.seed)
    size = pretrain.batch_size if objective.compares_frames else VALIDATION_BATCH
    total, num_frames = 0.0, 0
    for batch in upload_ahead(_batches(objective, validation, pretrain, 0, size), device):
        total += float(objective.loss(batch.image, generator)) * len(batch.image)
        num_frames += len(batch.image)
    return total / num_frames


def _num_used(objective: Objective, frames: FrameDataset) -> int:
    """Counts the frames that the objective can use: those followed by another one `later` decisions on."""
    return sum(max(race.num_frames - objective.later, 0) for race in frames.races)


def _check_comparable(objective: Objective, train: FrameDataset, validation: FrameDataset) -> None:
    """Raises UserError if a split has one frame to compare, or `later` looks beyond all races of a split."""
    for name, frames in (("training", train), ("held-out", validation)):
        longest = max((race.num_frames for race in frames.races), default=0)
        if objective.later and 0 < longest < objective.later + 2:
            message = (
                f"pretrain.objective.later looks {objective.later} decisions ahead, and the longest {name} race has "
                f"{longest} frames: that leaves no two pairs to compare"
            )
            raise UserError(message, hint=f"Take a number up to {max(longest - 2, 0)}.")
        if objective.compares_frames and len(frames) == 1:
            message = f"the objective compares frames, and there is one {name} frame"
            raise UserError(message, hint="Capture more races, or set pretrain.objective to one that rebuilds frames.")


def _draw_previews(folder: Path, objective: Objective, pretrain: PretrainParams, frames: FrameDataset) -> None:
    """Draws frames, and in rows below their reconstructions or two views."""
    device = device_of(objective)
    images = torch.from_numpy(frames.frame_stacks(spread(np.arange(len(frames)), NUM_PREVIEWS)))
    generator = make_generator(device, pretrain.seed)
    with torch.no_grad():
        shown = [objective.preview(images.to(device), generator) for _ in range(1 + objective.compares_frames)]
    pixels = [(each * 128 + 128).round().clamp(0, 255).to(torch.uint8).cpu() for each in shown]
    rows = np.concatenate([each[:, -1].numpy() for each in (images, *pixels)])
    imsave(folder / PREVIEWS_PICTURE, contact_sheet(rows, len(images)), cmap="gray", vmin=0, vmax=255)


def main() -> None:
    """Runs the stage with the parameters and folders of the project."""
    use_threads()
    raise_malloc_thresholds()
    check_not_cached(ENCODER, "pretrain", OWN_FILES)
    pretrain(params_of_stage("pretrain"), frames_dir=FRAMES, out_dir=ENCODER, runs_dir=PRETRAIN_RUNS)


if __name__ == "__main__":
    run_stage(
        main, after_interrupt="Training goes on from its last checkpoint in runs/pretrain, where it had saved one."
    )
