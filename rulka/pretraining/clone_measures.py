"""How well a policy does what was recorded, beside policies that learned nothing, and how far its confidence is right.

Most actions repeat the one before, so all of this is also said of the frames where the action changes.
Dimensions: N frames, or as many places as their decisions have together, A actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.actor_critic import CloningHeads
from rulka.actions import FORWARD, TICK_MS, ActionTable
from rulka.agents.networks import Cloned
from rulka.datasets.frames import FrameDataset, FrameRace, frames_of
from rulka.pretraining.cloning import (
    ControlPredictions,
    Labels,
    Measured,
    Predicted,
    Predictions,
    hidden_of,
    predict_own,
    predictions_of,
)

CALIBRATION_BINS = 15
"""As in Guo et al. 2017."""
NUM_TIMELINES = 2


def measure(
    policy: Cloned,
    heads: CloningHeads,
    train: FrameDataset,
    imitated: NDArray[np.int64],
    measured: Measured,
    table: ActionTable,
) -> dict[str, Any]:
    """Compares a policy with the labels of some races, and with policies that learned nothing.

    Losses are against the shares of the actions, or against controls where these are decided for. Everything else goes
    by the action that was held longest, and by that which numbers are nearest to, of which there are neither
    calibration nor entropy.

    Args:
        policy: call this without gradients.
        heads: those beside it.
        train: training frames.
        imitated: numbers of those that it learned from, in order, which the policies that learned nothing know.
        measured: races to measure on, at least one.
        table: what its actions are, A of them.

    Returns:
        Plain JSON: loss, accuracy (both with the recorded previous actions), the same with_own_actions,
        accuracy_without_previous_actions, accuracies of policies that learned nothing (see `Habits`), label_entropy,
        where_action_changes (the same on these frames, and their share), per_action, analog, by_offset, calibration
        and timelines (both drawn by `rulka.pretraining.clone_plots`), confusion.
    """
    frames, races = measured
    numbers = frames_of(races)
    count, decided = table.num_actions, frames.decided(numbers)
    action, share = decided.action.ravel(), torch.from_numpy(decided.share).flatten(0, 1)
    wanted = torch.from_numpy(frames.controls[numbers]) if table.is_analog else share
    hidden = hidden_of(policy, frames, numbers)
    seen = predictions_of(policy.read_out(hidden), table)
    blind = predictions_of(policy.read_out(hidden_of(policy, frames, numbers, hide_previous=True)), table)
    ahead = {offset: predictions_of(logits, table) for offset, logits in heads.ahead(hidden).items()}
    own = predict_own(policy, frames, races, table)
    before = action_before(decided.action, frames.race_index[numbers])
    habits = Habits.of(train, imitated, count)
    columns = {
        "loss": seen.losses(wanted),
        "accuracy": seen.predicted == action,
        "loss_with_own_actions": own.losses(wanted),
        "accuracy_with_own_actions": own.predicted == action,
        "accuracy_without_previous_actions": blind.predicted == action,
        "majority_accuracy": action == habits.majority,
        "repeat_last_action_accuracy": action == before,
        "likeliest_next_accuracy": action == habits.likeliest_next[before],
        "likeliest_change_accuracy": action == habits.likeliest_change[before],
    }
    told = seen.controls if isinstance(seen, ControlPredictions) else None
    has_changed = before != action
    confusion = confusion_matrix(action, seen.predicted, count)
    return {
        **_means(columns, np.ones(len(action), bool)),
        "label_entropy": None if table.is_analog else label_entropy(share.numpy()),
        "where_action_changes": {"share": float(has_changed.mean()), **_means(columns, has_changed)},
        "per_action": [_of_action(k, action, columns, has_changed) for k in range(count)],
        "analog": analog(told, train.controls[imitated], frames.controls[numbers]),
        "by_offset": by_offset({0: seen} | ahead, frames, numbers, habits.majority, is_analog=table.is_analog),
        "calibration": {
            name: calibration(each.confidence, each.predicted == action)
            for name, each in (("recorded_actions", seen), ("own_actions", own))
            if isinstance(each, Predictions)
        },
        "timelines": timelines(frames, races[:NUM_TIMELINES], own.predicted, table),
        "confusion": confusion.tolist(),
    }


def _means(columns: dict[str, NDArray], is_chosen: NDArray[np.bool_]) -> dict[str, float | None]:
    """Returns the mean of every column over some frames, None where there are none."""
    return {name: float(column[is_chosen].mean()) if is_chosen.any() else None for name, column in columns.items()}


def _of_action(
    number: int, action: NDArray[np.int64], columns: dict[str, NDArray], has_changed: NDArray[np.bool_]
) -> dict[str, float | int | None]:
    is_done = action == number
    wanted = ("loss", "accuracy", "accuracy_with_own_actions")
    return {
        "action": number,
        "num_frames": int(is_done.sum()),
        **_means({name: columns[name] for name in wanted}, is_done),
        "num_changes": int((is_done & has_changed).sum()),
        "accuracy_where_action_changes": _means(columns, is_done & has_changed)["accuracy"],
    }


def analog(
    controls: Tensor | None, known: NDArray[np.float32], wanted: NDArray[np.float32]
) -> dict[str, dict[str, float]] | None:
    """Says how far predicted controls are from those of N frames.

    Args:
        controls: [N, 3] predicted, with the recorded previous actions; None where nothing predicts them.
        known: [M, 3] of training frames, whose mean a predictor that learned nothing knows.
        wanted: [N, 3] as they were.

    Returns:
        Plain JSON: for steer, gas and brake the mean absolute error, and that of always telling the mean.
    """
    if controls is None:
        return None
    mean = known.mean(axis=0, dtype=np.float64)
    error, constant_error = (np.abs(told - wanted).mean(axis=0) for told in (controls.cpu().numpy(), mean))
    return {
        name: {"clone_error": float(error[place]), "constant_error": float(constant_error[place])}
        for place, name in enumerate(("steer", "gas", "brake"))
    }


def by_offset(
    predictions: Mapping[int, Predicted],
    frames: FrameDataset,
    numbers: NDArray[np.int64],
    majority: int,
    *,
    is_analog: bool = False,
) -> list[dict[str, float | int | None]]:
    """Says how well actions are known before they are taken, with the recorded previous actions.

    Args:
        predictions: of N frames, by how many decisions ahead.
        frames: where they are from.
        numbers: [N] of these frames.
        majority: action of the policy that learned nothing.
        is_analog: whether the policy decides for numbers.

    Returns:
        Plain JSON for each offset: how many frames have an action so long after them, loss, accuracy, that of the
        majority action, and that of doing what is done now until then.
    """
    labels, rows = Labels.of(frames, "soft", is_analog=is_analog), []
    action = frames.decided(numbers).action
    for offset, predicted in predictions.items():
        share, is_known = labels.ahead(torch.from_numpy(numbers), offset)
        later = frames.decided(numbers + offset * is_known.numpy()).action
        columns = {
            "loss": predicted.losses(share.reshape(action.size, -1)),
            "accuracy": predicted.predicted == later.ravel(),
            "majority_accuracy": later.ravel() == majority,
            "action_now_accuracy": later.ravel() == action.ravel(),
        }
        is_place = np.repeat(is_known.numpy(), action.shape[1])
        rows.append({"offset": offset, "num_frames": int(is_known.sum()), **_means(columns, is_place)})
    return rows


@dataclass(frozen=True)
class Habits:
    """What drivers of the training races most often do: policies that see nothing but the action before.

    Attributes:
        majority: the action with the largest share of all.
        likeliest_next: [A] what most often follows each action, mostly itself.
        likeliest_change: [A] the same where the action changes, as if somebody said when; what is most often changed to
            where an action is never changed.
    """

    majority: int
    likeliest_next: NDArray[np.int64]
    likeliest_change: NDArray[np.int64]

    @classmethod
    def of(cls, train: FrameDataset, numbers: NDArray[np.int64], num_actions: int) -> Habits:
        """Returns those of training frames by their numbers, each race's in order."""
        action, share = train.decided(numbers)
        before = action_before(action, train.race_index[numbers])
        following = confusion_matrix(before, action.ravel(), num_actions)
        changes = following * ~np.eye(num_actions, dtype=bool)
        is_changed = changes.any(axis=1, keepdims=True)
        return cls(
            majority=int(share.sum(axis=(0, 1), dtype=np.float64).argmax()),
            likeliest_next=following.argmax(axis=1),
            likeliest_change=np.where(is_changed, changes, changes.sum(axis=0)).argmax(axis=1),
        )


def action_before(action: NDArray[np.int64], race_index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns [N K] the recorded action before each; "forward" at the start of a race.

    Args:
        action: [N, K] recorded actions, each race's frames in order.
        race_index: [N] race of every frame.
    """
    previous = np.roll(action.ravel(), 1)
    is_first = np.ones(len(action), bool)
    is_first[1:] = race_index[1:] != race_index[:-1]
    previous[np.flatnonzero(is_first) * action.shape[1]] = FORWARD
    return previous


def label_entropy(action_share: NDArray[np.float32]) -> float:
    """Returns the mean entropy of the labels in nats: the cross-entropy that no policy can go below."""
    share = action_share.astype(np.float64)
    return float(-(share * np.log(np.where(share > 0, share, 1.0))).sum(axis=1).mean())


def confusion_matrix(action: NDArray[np.int64], predicted: NDArray[np.int64], num_actions: int) -> NDArray[np.int64]:
    """Returns [A, A] counts, rows what was done and columns what was predicted."""
    counts = np.bincount(action * num_actions + predicted, minlength=num_actions**2)
    return counts.reshape(num_actions, num_actions)


def calibration(confidence: NDArray[np.float32], is_right: NDArray[np.bool_]) -> dict[str, Any]:
    """Says how far the probability of the most likely action is how often it is right.

    Frames are sorted by confidence into bins of equal numbers (Nguyen and O'Connor 2015, arXiv:1508.05154): of equal
    width, the last would hold nearly all. The error is the mean distance of confidence and accuracy over bins, weighed
    by their frames: Guo et al. 2017, arXiv:1706.04599, eq. 3.

    Args:
        confidence: [N] in [0, 1], at least one.
        is_right: [N] whether that action was done.

    Returns:
        Plain JSON: expected_calibration_error, and bins with the confidence, accuracy and num_frames of each.
    """
    parts = [part for part in np.array_split(np.argsort(confidence, kind="stable"), CALIBRATION_BINS) if len(part)]
    bins = [
        {
            "confidence": float(confidence[part].mean(dtype=np.float64)),
            "accuracy": float(is_right[part].mean()),
            "num_frames": len(part),
        }
        for part in parts
    ]
    distances = [each["num_frames"] * abs(each["confidence"] - each["accuracy"]) for each in bins]
    return {"expected_calibration_error": sum(distances) / len(confidence), "bins": bins}


def timelines(
    frames: FrameDataset, races: Sequence[FrameRace], predicted: NDArray[np.int64], table: ActionTable
) -> list[dict[str, Any]]:
    """Returns what driver and policy do along some races.

    Args:
        frames: frames of the races.
        races: the first of those that were predicted.
        predicted: [N] actions, race after race.
        table: what they are.

    Returns:
        Plain JSON for each race: race_id, end_ms (the race time of its last frame), and for driver and policy every
        change: the race time in ms and the action since then.
    """
    rows, start = [], 0
    for race in races:
        own = frames_of([race])
        done = frames.decided(own).action
        within_ms = np.arange(done.shape[1]) * table.ticks_per_action * TICK_MS
        time_ms = (frames.time_ms[own][:, None] + within_ms).ravel()
        chosen = predicted[start : start + done.size]
        start += done.size
        changes = {"driver": _changes(time_ms, done.ravel()), "policy": _changes(time_ms, chosen)}
        rows.append({"race_id": race.race_id, "end_ms": int(time_ms[-1]), **changes})
    return rows


def _changes(time_ms: NDArray[np.int64], action: NDArray[np.int64]) -> list[list[int]]:
    is_new = np.append(True, action[1:] != action[:-1])
    return np.stack([time_ms[is_new], action[is_new]], axis=1).tolist()
