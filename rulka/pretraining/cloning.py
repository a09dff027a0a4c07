"""What behaviour cloning needs beside the loop: disturbed inputs, and honest measures of what was learned.

The previous actions are among the floats, and most actions repeat the one before, so a cloned policy that only copies
its own last action looks good on recorded frames and then drives straight on for ever. Hiding them from a share of the
samples, and comparing with the policy that does nothing but repeat, guard against that.
Dimensions: N frames, B batch, F floats, A actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rulka.actions import FORWARD
from rulka.datasets.frames import FrameDataset
from rulka.losses.cloning import soft_cross_entropy
from rulka.observation import FLOATS

EVALUATION_BATCH = 512


@dataclass(frozen=True)
class Disturbance:
    """How inputs are disturbed while cloning.

    Attributes:
        previous_action_dropout: share of samples whose previous actions are hidden.
        float_noise: standard deviation of the noise, in standard deviations of the normalisation.
    """

    previous_action_dropout: float
    float_noise: float


def disturb(floats: Tensor, mean: Tensor, std: Tensor, disturbance: Disturbance, generator: torch.Generator) -> Tensor:
    """Returns disturbed copies of raw floats [B, F].

    Hidden previous actions become the mean of the normalisation, which the network sees as zeros.

    Args:
        floats: [B, F] raw.
        mean: [F] of the normalisation.
        std: [F] of the normalisation.
        disturbance: how much.
        generator: source of randomness.
    """
    noise = torch.randn(floats.shape, generator=generator)
    disturbed = floats + disturbance.float_noise * std * noise
    is_hidden = torch.rand(len(floats), 1, generator=generator) < disturbance.previous_action_dropout
    part = FLOATS["previous_actions"]
    disturbed[:, part] = torch.where(is_hidden, mean[part], disturbed[:, part])
    return disturbed


def hide_previous_actions(floats: Tensor, mean: Tensor) -> Tensor:
    """Returns raw floats [B, F] in which the previous actions say nothing."""
    hidden = floats.clone()
    hidden[:, FLOATS["previous_actions"]] = mean[FLOATS["previous_actions"]]
    return hidden


def forget_previous_actions(float_head: nn.Sequential) -> None:
    """Disconnects the previous actions from a float head whose first layer takes the normalised floats.

    For policies that never see them while learning, whose random weights would otherwise disturb them when they act.
    """
    with torch.no_grad():
        float_head[0].get_parameter("weight")[:, FLOATS["previous_actions"]] = 0.0


def frames_of_fastest(frames: FrameDataset, share: float) -> NDArray[np.int64]:
    """Returns the numbers of all frames of the fastest races, at least of one.

    Args:
        frames: races that all reached the finish, so that fewer frames mean a faster race.
        share: share of the races to take, fastest first; in [0, 1].
    """
    ordered = sorted(frames.races, key=lambda race: (race.num_frames, race.race_id))
    chosen = ordered[: max(1, round(share * len(ordered)))]
    return np.concatenate([np.arange(race.start, race.start + race.num_frames) for race in chosen])


@dataclass(frozen=True)
class Predictions:
    """What a policy makes of all frames of a dataset.

    Attributes:
        loss: mean cross-entropy against the shares of the actions, nats.
        predicted: [N] most likely action.
    """

    loss: float
    predicted: NDArray[np.int64]


def predict(policy: nn.Module, frames: FrameDataset, *, hide_previous: bool = False) -> Predictions:
    """Runs a policy over all frames; call it without gradients."""
    total, predicted = 0.0, [np.zeros(0, np.int64)]
    mean = policy.get_buffer("float_mean")
    for batch in frames.iterate_in_order(EVALUATION_BATCH):
        floats = hide_previous_actions(batch.floats, mean) if hide_previous else batch.floats
        logits = policy(batch.image, floats)
        total += float(soft_cross_entropy(logits, batch.action_share)) * len(floats)
        predicted.append(logits.argmax(dim=1).numpy())
    return Predictions(total / len(frames), np.concatenate(predicted))


def repeat_last_action(action: NDArray[np.int64], race_index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns [N] what a policy would do that repeats the recorded action before; "forward" at the start of a race.

    Args:
        action: [N] recorded actions, each race's frames in order.
        race_index: [N] race of every frame.
    """
    previous = np.roll(action, 1)
    is_first = np.ones(len(action), bool)
    is_first[1:] = race_index[1:] != race_index[:-1]
    previous[is_first] = FORWARD
    return previous


def label_entropy(action_share: NDArray[np.float32]) -> float:
    """Returns the mean entropy of the labels in nats: the cross-entropy that no policy can go below."""
    share = action_share.astype(np.float64)
    return float(-(share * np.log(np.where(share > 0, share, 1.0))).sum(axis=1).mean())


def confusion_matrix(action: NDArray[np.int64], predicted: NDArray[np.int64], num_actions: int) -> NDArray[np.int64]:
    """Returns [A, A] counts, rows what was done and columns what was predicted."""
    counts = np.bincount(action * num_actions + predicted, minlength=num_actions**2)
    return counts.reshape(num_actions, num_actions)


def measure(policy: nn.Module, train: FrameDataset, frames: FrameDataset, num_actions: int) -> dict[str, Any]:
    """Compares a policy with the labels of some frames, and with policies that learned nothing.

    Args:
        policy: maps images and floats to logits; call it without gradients.
        train: frames that the majority action is taken from.
        frames: frames to measure on.
        num_actions: A.

    Returns:
        Plain JSON: loss, accuracy, accuracy_without_previous_actions, majority_accuracy, repeat_last_action_accuracy,
        accuracy_where_action_changes (and the share of such frames), label_entropy, per_action, confusion.
    """
    action = frames.action[:].astype(np.int64)
    seen, hidden = predict(policy, frames), predict(policy, frames, hide_previous=True)
    repeated = repeat_last_action(action, frames.race_index[:])
    majority = int(train.action_share[:].sum(axis=0, dtype=np.float64).argmax())
    has_changed = repeated != action
    confusion = confusion_matrix(action, seen.predicted, num_actions)
    return {
        "loss": seen.loss,
        "accuracy": _share(seen.predicted == action),
        "accuracy_without_previous_actions": _share(hidden.predicted == action),
        "majority_accuracy": _share(action == majority),
        "repeat_last_action_accuracy": _share(~has_changed),
        "accuracy_where_action_changes": _share((seen.predicted == action)[has_changed]),
        "share_where_action_changes": _share(has_changed),
        "label_entropy": label_entropy(frames.action_share[:]),
        "per_action": _per_action(confusion),
        "confusion": confusion.tolist(),
    }


def _per_action(confusion: NDArray[np.int64]) -> list[dict[str, float | int | None]]:
    rows = []
    for action, row in enumerate(confusion):
        num_frames = int(row.sum())
        accuracy = float(row[action] / num_frames) if num_frames else None
        rows.append({"action": action, "num_frames": num_frames, "accuracy": accuracy})
    return rows


def _share(is_true: NDArray[np.bool_]) -> float | None:
    return float(is_true.mean()) if len(is_true) else None
