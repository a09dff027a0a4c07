"""Stage `clone` (Level 1): behaviour cloning, from frames and floats to actions.

Reads  data/frames/         see rulka.datasets.formats.frames
       data/encoder/        the pretrained encoder
       data/races/          the main track, which the policy races on unless `dagger.tracks` names others
       data/takeovers/      what people drove in an agent's place, see rulka.datasets.takeovers
Writes data/policy/         an artifact of kind "policy", see rulka.contracts.artifacts; tensors of `ClonePolicy` or
                            `ClonedIqn`, and of `CloningHeads`, which are unused when driving
         metrics.json       accuracy on held-out races, overall, where the action changes, and per action, beside
                            baselines without learning; and every epoch. The validation loss, with the policy's own
                            previous actions as input and weighted as in training, selects the epoch unless races do.
                            Metrics are of the test split; `measured_on` is "validation" if that is empty, else "train".
                            `validation_*` are null if these races were trained on. `races` lists the races that select
                            the epoch. `driven` holds races of the kept weights from other starts; it is null unless
                            `race_every`, `dagger` or `maps: others` is set. `rounds` lists the DAgger drives. All are
                            of all tracks together. `num_takeover_frames` counts what people drove
Live   runs/clone/<fingerprint>/   checkpoints; see rulka.pretraining.fit
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from models.actor_critic import CloningHeads
from rulka.agents.shared.networks import Cloned, build_clone_policy, build_cloned_iqn, decision_table
from rulka.contracts.actions import ActionTable, action_table
from rulka.contracts.artifacts import (
    OWN_FILES,
    Artifact,
    load_artifact,
    network_input_contract,
    observation_contract,
    write_artifact,
)
from rulka.datasets.capture import CaptureSettings
from rulka.datasets.formats.frames import Batch, FrameDataset, check_contract, frames_of
from rulka.datasets.formats.races import RaceDataset, load_races
from rulka.datasets.formats.split import SPLITS, Split
from rulka.datasets.recovery import line_of_race
from rulka.datasets.takeovers import captured_takeovers, find_takeovers
from rulka.evaluation.closed_loop import drive
from rulka.evaluation.dagger import collect_dagger_races
from rulka.evaluation.race import EvaluationRaces, find_reference_race
from rulka.machine.device import Generators, device_of, use_device, use_threads
from rulka.machine.errors import UserError
from rulka.machine.precision import raise_malloc_thresholds
from rulka.machine.progress import Progress
from rulka.params import Params, params_of_stage, sections_of
from rulka.planner.planner import FOLLOW, RACE, RACE_ON_LINE, Line, Planner, line_of
from rulka.pretraining.cloning import (
    CloningTask,
    Labels,
    augment_floats,
    check_races,
    disconnect,
    measure,
    measured_races,
    predict_own,
    races_of,
)
from rulka.pretraining.dagger_frames import Visited
from rulka.pretraining.fit import History, TrainingTask, fit, resumable, say_if_stopped
from rulka.pretraining.params import CloneParams, DaggerParams
from rulka.runtime.checkpoint import Checkpoints
from rulka.simulator.race_settings import RaceSettings
from rulka.simulator.render import camera_array
from rulka.stages.folders import CLONE_RUNS, ENCODER, FRAMES, METRICS_FILE, POLICY, RACES, TAKEOVERS
from rulka.stages.provenance import provenance
from rulka.stages.stage import check_not_cached, output_folder, require, run_stage
from rulka.tracks.find import chosen_tracks

VISITED_SEED = 2_000_000
"""First seed of the DAgger races, which collect states to learn from."""
FIRST_SEED = 1_000_000
"""First seed of the races that select the epoch: far from the seeds of any evaluation."""
DRIVEN_SEED = 3_000_000
"""First seed of the races that measure the kept weights."""


class _Drives(NamedTuple):
    """Races that select the epoch or measure the policy, by track; with DAgger those of a round and their adviser."""

    races: list[EvaluationRaces]
    of_round: Callable[[int], Iterator[tuple[EvaluationRaces, Planner]]] | None


@dataclass(frozen=True)
class Folders:
    """Outputs of `races`, `capture` and `pretrain`, the stage's own output, live checkpoints, and takeovers."""

    races: Path
    frames: Path
    encoder: Path
    out: Path
    runs: Path
    takeovers: Path = TAKEOVERS


def clone(params: Params, *, folders: Folders) -> None:
    """Trains a policy by behaviour cloning and keeps the weights of its best epoch.

    A stopped run resumes from its last checkpoint.

    Raises:
        UserError: if an input is missing or made with other parameters, or training diverges.
    """
    observation, actions, network, clone = params.observation, params.actions, params.network, params.clone
    require(folders.frames, "capture")
    require(folders.encoder, "pretrain")
    single, table = action_table(actions.ticks_per_action), decision_table(actions, network)
    pretrained = load_artifact(folders.encoder, "encoder", observation=observation, encoder=params.encoder)
    splits: dict[Split, FrameDataset] = {
        split: FrameDataset(folders.frames, split, observation.frames, table.parts) for split in SPLITS
    }
    check_contract(splits["train"].index, observation_contract(observation), single)
    check_races(splits, clone)
    torch.manual_seed(clone.seed)
    build = build_clone_policy if clone.shape == "policy" else build_cloned_iqn
    normalisation = pretrained.normalisation.for_chunks(table.actions_per_decision)
    try:
        policy = build(observation, pretrained.encoder, network, normalisation, table.space.num_outputs)
    except ValueError as error:
        raise UserError(str(error), hint="Change network.fusion.model, width or the number of tokens.") from error
    policy.encoder.load_state_dict(
        {name.removeprefix("encoder."): tensor for name, tensor in pretrained.tensors.items()}
    )
    heads = CloningHeads(policy.num_hidden, table.space.num_outputs, clone.offsets[1:])
    nn.ModuleList([policy, heads]).to(use_device())
    drives = None
    if clone.race_every or clone.dagger or clone.maps == "others":
        require(folders.races, "races")
        settings = RaceSettings.for_evaluation(observation, actions, params.simulator, clone, params.race_end)
        settings = settings.decided_by(table)
        seeds = range(FIRST_SEED, FIRST_SEED + clone.num_races)
        dataset, dagger = load_races(folders.races), clone.dagger
        of_round = _dagger_rounds(dagger, dataset, splits["train"], folders.races, settings) if dagger else None
        tracks = chosen_tracks(dagger.tracks, dataset.main_track, dagger.rounds) if dagger else [dataset.main_track]
        drives = _Drives([EvaluationRaces(track, settings, seeds) for track in tracks], of_round)
    takeovers = find_takeovers(folders.takeovers) if clone.takeovers else []
    inputs = {"races": folders.races, "frames": folders.frames, "encoder": folders.encoder}
    inputs |= {path.name: path for path in takeovers}
    origin = provenance("clone", sections_of("clone", params), inputs)
    with resumable(folders.runs, origin) as checkpoints:
        visited = Visited(
            checkpoints.folder / "visited",
            observation_contract(observation, table.actions_per_decision),
            table,
            observation.frames,
            clone.labels,
        )
        camera = camera_array(params.simulator.camera)
        seen = CaptureSettings(observation.height, observation.width, single, steer_dead_zone=0.0, camera=camera)
        visited.add_takeovers(captured_takeovers(takeovers, seen, observation.frames))
        history = _train(policy, heads, clone, splits, table, drives, visited, checkpoints)
        artifact = Artifact(
            kind="policy",
            tensors=policy.state_dict() | heads.state_dict(),
            config={
                "encoder": pretrained.config["encoder"],
                "network": network.model_dump(mode="json"),
                "num_actions": table.num_actions,
                "shape": clone.shape,
            },
            observation=network_input_contract(observation, table.actions_per_decision),
            actions=table,
            normalisation=normalisation,
            provenance=origin | {"recoveries": sum(race.is_recovery for race in races_of(splits["train"], clone.maps))},
        )
        with output_folder(folders.out) as folder:
            raced = {"races": visited.raced, "driven": _driven(policy, clone, drives), "rounds": visited.rounds}
            raced["num_takeover_frames"] = visited.num_takeover_frames
            _write_results(folder, policy, heads, clone, splits, table, history, raced)
            write_artifact(folder, artifact)
        visited.clear()


def _train(
    policy: Cloned,
    heads: CloningHeads,
    clone: CloneParams,
    splits: Mapping[Split, FrameDataset],
    table: ActionTable,
    drives: _Drives | None,
    visited: Visited,
    checkpoints: Checkpoints,
) -> History:
    train, validation = splits["train"], splits["validation"]
    choosing = races_of(validation, clone.maps)
    disconnect(policy.float_head, "clock")
    if clone.previous_action_dropout == 1.0:
        disconnect(policy.float_head, "previous_actions")
    device = device_of(policy)
    generators = Generators(device, clone.seed)

    frames = frames_of(races_of(train, clone.maps))
    labels_of = partial(Labels.of, kind=clone.labels, is_analog=table.is_analog)
    labels = labels_of(train)
    task = CloningTask(policy, heads, labels.to(device), table)

    def loss(batch: Batch) -> torch.Tensor:
        floats = augment_floats(batch.floats, policy.float_mean, policy.float_std, clone, generators.device)
        return visited.with_visited_labels(task).loss(batch, floats)

    taught = nn.ModuleList([policy, heads])
    keep = clone.dagger is None or clone.dagger.keep
    epoch_frames = (clone.dagger and clone.dagger.epoch_frames) or len(frames)

    wanted = labels_of(validation).now[frames_of(choosing)] if choosing else None

    def validate() -> float | None:
        if wanted is None:
            return None
        return float(task.policy_loss(predict_own(policy, validation, choosing, table).outputs, wanted))

    def judge(epoch: int) -> tuple[float, float] | None:
        if drives is None:
            return None
        if clone.dagger:
            _visit_when_due(policy, clone.dagger, drives, visited, epoch)
        if not clone.race_every or ((epoch + 1) % clone.race_every and epoch + 1 < clone.epochs):
            return None
        driven = drive(policy, drives.races)
        visited.raced.append({"epoch": epoch} | driven.to_json())
        return driven.score

    with Progress("clone", clone.epochs * epoch_frames, "frames") as bar:
        history = fit(
            taught,
            clone,
            math.ceil(epoch_frames / clone.batch_size),
            TrainingTask(
                batches=lambda epoch: visited.batches(
                    train,
                    frames,
                    seed=clone.seed,
                    epoch=epoch,
                    batch_size=clone.batch_size,
                    keep=keep,
                    epoch_frames=epoch_frames,
                ),
                loss=loss,
                validate=validate,
                judge=judge if clone.race_every or clone.dagger else None,
                keeps={"generators": generators, "visited": visited},
            ),
            bar,
            checkpoints,
        )
    say_if_stopped("clone", history)
    return history


def _dagger_rounds(
    dagger: DaggerParams, dataset: RaceDataset, train: FrameDataset, races_dir: Path, settings: RaceSettings
) -> Callable[[int], Iterator[tuple[EvaluationRaces, Planner]]]:
    """Returns a function that yields the races of a round (from 0) with their adviser, track by track.

    Plans begin with the line of a reference lap, if there is one, or with that of the fastest training race.
    """
    race = None
    if dagger.adviser != "planner":
        learned = {race.race_id for race in train.races}
        finished = [race for race in dataset.on_main_track() if race.race_time_ms and race.race_id in learned]
        if not finished:
            message = f"no race of training on the main track was finished, which adviser {dagger.adviser} needs"
            raise UserError(message, hint="Set clone.dagger.adviser: planner, or add a recording that finishes.")
        race = min(finished, key=lambda race: race.race_time_ms or 0)
    aim = {"planner": RACE, "recording": FOLLOW, "recorded_line": RACE_ON_LINE}[dagger.adviser]

    def line(races: EvaluationRaces) -> Line | None:
        if race is not None:
            return line_of_race(race, races.track)
        lap = find_reference_race(races_dir, races)
        return None if lap is None else line_of(races.track, lap.cars.astype(np.float64))

    def of_round(number: int) -> Iterator[tuple[EvaluationRaces, Planner]]:
        first = VISITED_SEED + number * dagger.num_races
        physics, table = settings.simulator.physics, settings.table
        for track in chosen_tracks(dagger.tracks, dataset.main_track, number):
            races = EvaluationRaces(track, settings, range(first, first + dagger.num_races))
            plans, start = dagger.planner, line(races)
            yield races, Planner(track, physics, table, dagger.num_races, plans, seed=first, aim=aim, line=start)

    return of_round


def _visit_when_due(policy: Cloned, dagger: DaggerParams, drives: _Drives, visited: Visited, epoch: int) -> None:
    """Drives a DAgger round with the policy if one is due after `epoch` (from 0), and adds the visited states."""
    number = len(visited.rounds)
    if drives.of_round is None or (epoch + 1) % dagger.every or number == dagger.rounds:
        return
    visited.add(epoch, collect_dagger_races(policy, drives.of_round(number), f"visited-{epoch + 1}"))


def _driven(policy: Cloned, clone: CloneParams, drives: _Drives | None) -> dict[str, Any] | None:
    """Returns the results of races from starts that did not select the weights; None if the policy does not race."""
    if drives is None:
        return None
    seeds = range(DRIVEN_SEED, DRIVEN_SEED + clone.num_races)
    with torch.no_grad():
        return drive(policy, [replace(races, seeds=seeds) for races in drives.races]).to_json()


def _write_results(
    folder: Path,
    policy: Cloned,
    heads: CloningHeads,
    clone: CloneParams,
    splits: Mapping[Split, FrameDataset],
    table: ActionTable,
    history: History,
    raced: dict[str, Any],
) -> None:
    imitated = frames_of(races_of(splits["train"], clone.maps))
    choosing, judged = races_of(splits["validation"], clone.maps), measured_races(splits, clone.maps)
    is_held_out = judged.frames.split != "train" or clone.maps == "others"
    with torch.no_grad():
        measured = measure(policy, heads, splits["train"], imitated, judged, table)
    metrics = {
        "num_train_frames": len(imitated),
        "num_validation_frames": len(frames_of(choosing)),
        "num_validation_races": len(choosing),
        "num_measured_races": len(judged.races),
        "measured_on": judged.frames.split,
        "train_loss": history.best.train_loss,
        **history.to_json(),
        **raced,
        **measured,
        **{f"validation_{name}": measured[name] if is_held_out else None for name in ("loss", "accuracy")},
    }
    (folder / METRICS_FILE).write_text(json.dumps(metrics, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Runs the stage with the parameters and folders of the project."""
    use_threads()
    raise_malloc_thresholds()
    check_not_cached(POLICY, "clone", OWN_FILES)
    folders = Folders(races=RACES, frames=FRAMES, encoder=ENCODER, out=POLICY, runs=CLONE_RUNS)
    clone(params_of_stage("clone"), folders=folders)


if __name__ == "__main__":
    run_stage(main, after_interrupt="Training goes on from its last checkpoint in runs/clone, where it had saved one.")
