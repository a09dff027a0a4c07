"""How well a policy does what was recorded, beside policies that learned nothing.

Most actions repeat the one before, so all of this is also said of the frames where the action changes.
Dimensions: N frames, or as many places as their decisions have together, A actions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.cloning_heads import CloningHeads
from rulka.actions import FORWARD, ActionTable
from rulka.agents.iqn_cloned import Cloned
from rulka.datasets.frames import FrameDataset, frames_of
from rulka.pretraining.cloning import Labels, Measured, Predictions, hidden_of, predict_own


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
    by the action that was held longest, and by that which numbers are nearest to.

    Args:
        policy: call this without gradients.
        heads: those beside it.
        train: training frames.
        imitated: numbers of those that it learned from, in order, which the policies that learned nothing know.
        measured: races to measure on, at least one.
        table: what its actions are, A of them.

    Returns:
        Plain JSON: loss, accuracy (both with the recorded previous actions), the same with_own_actions,
        accuracy_without_previous_actions, accuracies of the majority action and of the action before, label_entropy,
        where_action_changes (the same on these frames, and their share), per_action, analog, by_offset, confusion.
    """
    frames, races = measured
    numbers = frames_of(races)
    count, decided = table.num_actions, frames.decided(numbers)
    action, share = decided.action.ravel(), torch.from_numpy(decided.share).flatten(0, 1)
    wanted = torch.from_numpy(frames.controls[numbers]) if table.is_analog else share
    hidden = hidden_of(policy, frames, numbers)
    seen = Predictions(policy.read_out(hidden).cpu(), table)
    blind = Predictions(policy.read_out(hidden_of(policy, frames, numbers, hide_previous=True)).cpu(), table)
    own = predict_own(policy, frames, races, table)
    before = action_before(decided.action, frames.race_index[numbers])
    majority = int(train.decided(imitated).share.sum(axis=(0, 1), dtype=np.float64).argmax())
    columns = {
        "loss": seen.losses(wanted),
        "accuracy": seen.predicted == action,
        "loss_with_own_actions": own.losses(wanted),
        "accuracy_with_own_actions": own.predicted == action,
        "accuracy_without_previous_actions": blind.predicted == action,
        "majority_accuracy": action == majority,
        "repeat_last_action_accuracy": action == before,
    }
    has_changed = before != action
    return {
        **_means(columns, np.ones(len(action), bool)),
        "label_entropy": None if table.is_analog else label_entropy(share.numpy()),
        "where_action_changes": {"share": float(has_changed.mean()), **_means(columns, has_changed)},
        "per_action": [_of_action(k, action, columns, has_changed) for k in range(count)],
        "analog": analog(seen.controls, train.controls[imitated], frames.controls[numbers])
        if table.is_analog
        else None,
        "by_offset": by_offset({0: policy.read_out(hidden)} | heads.ahead(hidden), frames, numbers, table),
        "confusion": confusion_matrix(action, seen.predicted, count).tolist(),
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


def analog(controls: Tensor, known: NDArray[np.float32], wanted: NDArray[np.float32]) -> dict[str, dict[str, float]]:
    """Says how far predicted controls are from those of N frames.

    Args:
        controls: [N, 3] predicted, with the recorded previous actions.
        known: [M, 3] of training frames, whose mean a predictor that learned nothing knows.
        wanted: [N, 3] as they were.

    Returns:
        Plain JSON: for steer, gas and brake the mean absolute error, and that of always telling the mean.
    """
    mean = known.mean(axis=0, dtype=np.float64)
    error, constant_error = (np.abs(told - wanted).mean(axis=0) for told in (controls.numpy(), mean))
    return {
        name: {"clone_error": float(error[place]), "constant_error": float(constant_error[place])}
        for place, name in enumerate(("steer", "gas", "brake"))
    }


def by_offset(
    outputs: dict[int, Tensor], frames: FrameDataset, numbers: NDArray[np.int64], table: ActionTable
) -> list[dict[str, float | int | None]]:
    """Says how well actions are known before they are taken, with the recorded previous actions.

    Args:
        outputs: of N frames, by how many decisions ahead.
        frames: where they are from.
        numbers: [N] of these frames.
        table: what decisions are.

    Returns:
        Plain JSON for each offset: how many frames have an action so long after them, loss and accuracy.
    """
    labels, rows = Labels.of(frames, "soft", is_analog=table.is_analog), []
    for offset, each in outputs.items():
        predicted = Predictions(each.cpu(), table)
        wanted, is_known = labels.ahead(torch.from_numpy(numbers), offset)
        later = frames.decided(numbers + offset * is_known.numpy()).action
        columns = {"loss": predicted.losses(wanted), "accuracy": predicted.predicted == later.ravel()}
        is_place = np.repeat(is_known.numpy(), later.shape[1])
        rows.append({"offset": offset, "num_frames": int(is_known.sum()), **_means(columns, is_place)})
    return rows


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
