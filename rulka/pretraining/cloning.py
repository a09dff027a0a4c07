"""What behaviour cloning needs beside the loop: disturbed inputs, and honest measures of what was learned.

The previous actions are among the floats, and most actions repeat the one before, so a cloned policy that only copies
its own last action looks good on recorded frames and then drives straight on for ever. Hiding them from a share of the
samples, choosing the epoch by races in which the policy sees its own previous actions, and comparing with the policy
that does nothing but repeat, guard against that.

The clock of the mini-race is always hidden: recorded races have none, so its weights would be trained as a second bias,
and IQN, which sees the clock run, would find another function than was cloned.
Dimensions: N frames, B batch, F floats, A actions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from models.actor_critic import ClonePolicy
from rulka.actions import FORWARD, ActionTable
from rulka.datasets.frames import Batch, FrameDataset, FrameRace, frames_of
from rulka.datasets.split import Split
from rulka.device import device_of, upload_ahead
from rulka.observation import FLOATS
from rulka.params import CloneParams, LabelKind, MapChoice

EVALUATION_BATCH = 512


def disturb(floats: Tensor, mean: Tensor, std: Tensor, clone: CloneParams, generator: torch.Generator) -> Tensor:
    """Returns disturbed copies of raw floats [B, F], in which the clock says nothing.

    What is hidden becomes the mean of the normalisation, which the network sees as zeros.

    Args:
        floats: [B, F] raw.
        mean: [F] of the normalisation.
        std: [F] of the normalisation.
        clone: how much: its `previous_action_dropout` and `float_noise`.
        generator: of random numbers, on the device of the floats.
    """
    noise = torch.randn(floats.shape, generator=generator, device=floats.device)
    disturbed = hide(floats + clone.float_noise * std * noise, mean, "clock")
    is_hidden = torch.rand(len(floats), 1, generator=generator, device=floats.device) < clone.previous_action_dropout
    part = FLOATS["previous_actions"]
    disturbed[:, part] = torch.where(is_hidden, mean[part], disturbed[:, part])
    return disturbed


def hide(floats: Tensor, mean: Tensor, part: str) -> Tensor:
    """Returns raw floats [B, F] of which one part, by its name in `FLOATS`, says nothing."""
    hidden = floats.clone()
    hidden[:, FLOATS[part]] = mean[FLOATS[part]]
    return hidden


def disconnect(float_head: nn.Sequential, part: str) -> None:
    """Disconnects one part of the floats, by its name in `FLOATS`, from a float head's first layer.

    For what is always hidden while learning: its random weights would otherwise disturb the policy when it acts. They
    stay zero, as no gradient reaches them.
    """
    with torch.no_grad():
        float_head[0].get_parameter("weight")[:, FLOATS[part]] = 0.0


def fastest_of(races: Sequence[FrameRace], share: float) -> list[FrameRace]:
    """Returns the fastest races of each map, at least one of each.

    Args:
        races: all reached the finish, so that fewer frames mean a faster race.
        share: share of a map's races to take, fastest first; in [0, 1].
    """
    by_map: dict[str, list[FrameRace]] = {}
    for race in sorted(races, key=lambda race: (race.num_frames, race.race_id)):
        by_map.setdefault(race.map_uid, []).append(race)
    return [race for ordered in by_map.values() for race in ordered[: max(1, round(share * len(ordered)))]]


def races_of(frames: FrameDataset, maps: MapChoice) -> list[FrameRace]:
    """Returns the races of a split on the main track, or on all maps."""
    return frames.on_main_track() if maps == "main" else frames.races


class Measured(NamedTuple):
    """Races of one split that a policy is measured on."""

    frames: FrameDataset
    races: list[FrameRace]


def measured_races(splits: Mapping[Split, FrameDataset], maps: MapChoice) -> Measured:
    """Returns the races of the test split, or where it has none, those that choose, or at last those that teach."""
    parts = [Measured(splits[split], races_of(splits[split], maps)) for split in ("test", "validation", "train")]
    return next((part for part in parts if part.races), parts[-1])


def as_labels(action: Tensor, share: Tensor, labels: LabelKind) -> Tensor:
    """Returns labels [B, A] of decisions, from the actions held longest [B] and the shares of all [B, A]."""
    return share if labels == "soft" else functional.one_hot(action, share.shape[1]).to(share.dtype)


def labels_of(frames: FrameDataset, numbers: NDArray[np.int64], labels: LabelKind) -> Tensor:
    """Returns the labels [N, A] of frames by their numbers."""
    action, share = frames.action[numbers].astype(np.int64), frames.action_share[numbers]
    return as_labels(torch.from_numpy(action), torch.from_numpy(share), labels)


@dataclass(frozen=True)
class Predictions:
    """What a policy makes of N frames.

    Attributes:
        loss: mean cross-entropy against the shares of the actions, nats.
        predicted: [N] most likely action.
    """

    loss: float
    predicted: NDArray[np.int64]


def predict(
    policy: ClonePolicy, frames: FrameDataset, numbers: NDArray[np.int64], *, hide_previous: bool = False
) -> Predictions:
    """Runs a policy over frames by their numbers [N], with the recorded previous actions; call it without gradients."""
    total, predicted = 0.0, [np.zeros(0, np.int64)]
    for batch in _in_order(policy, frames, numbers):
        floats = hide(batch.floats, policy.float_mean, "previous_actions") if hide_previous else batch.floats
        logits = policy(batch.image, floats)
        total += float(functional.cross_entropy(logits, batch.action_share)) * len(floats)
        predicted.append(logits.argmax(dim=1).cpu().numpy())
    return Predictions(total / len(numbers), np.concatenate(predicted))


def predict_own(
    policy: ClonePolicy,
    frames: FrameDataset,
    races: Sequence[FrameRace],
    table: ActionTable,
    labels: LabelKind = "soft",
) -> Predictions:
    """Runs a policy along races such that it sees its own actions as the previous ones, as it does when it drives.

    The car still goes where the recorded driver went. Previous actions from before the first frame are the recorded
    ones. Call it without gradients.

    Args:
        policy: to run.
        frames: frames of the races.
        races: at least one.
        table: what its actions are, one a decision.
        labels: what its loss is against.

    Returns:
        Over all frames of the races, in the order of `frames_of`.
    """
    numbers = frames_of(races)
    encoded = torch.cat([policy.encode(batch.image).float() for batch in _in_order(policy, frames, numbers)])
    device = encoded.device
    floats, keys = (torch.from_numpy(array).to(device) for array in (frames.floats[numbers], table.keys()))
    length = torch.tensor([race.num_frames for race in races], device=device)
    start, part = length.cumsum(0) - length, FLOATS["previous_actions"]
    logits = torch.empty(len(numbers), table.num_actions, device=device)
    previous = floats[start, part]
    for step in range(int(length.max())):
        is_going = step < length
        at = start[is_going] + step
        seen = floats[at]
        seen[:, part] = previous[is_going]
        logits[at] = policy.decide(encoded[at], seen)
        pressed = keys[logits[at].argmax(dim=1)]
        previous[is_going] = torch.cat([previous[is_going][:, keys.shape[1] :], pressed], dim=1)
    wanted = labels_of(frames, numbers, labels).to(device)
    return Predictions(float(functional.cross_entropy(logits, wanted)), logits.argmax(dim=1).cpu().numpy())


def _in_order(policy: ClonePolicy, frames: FrameDataset, numbers: NDArray[np.int64]) -> Iterator[Batch]:
    """Yields batches of frames where the policy is."""
    parts = range(0, len(numbers), EVALUATION_BATCH)
    batches = (frames.batch(numbers[start : start + EVALUATION_BATCH]) for start in parts)
    return upload_ahead(batches, device_of(policy))


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


def measure(
    policy: ClonePolicy,
    train: FrameDataset,
    imitated: NDArray[np.int64],
    measured: Measured,
    table: ActionTable,
) -> dict[str, Any]:
    """Compares a policy with the labels of some races, and with policies that learned nothing.

    Args:
        policy: call this without gradients.
        train: training frames.
        imitated: numbers of those that it learned from, which the majority action is taken from.
        measured: races to measure on.
        table: what its actions are, A of them.

    Returns:
        Plain JSON: loss, accuracy (both with the recorded previous actions), loss_with_own_actions,
        accuracy_with_own_actions, accuracy_without_previous_actions, majority_accuracy, repeat_last_action_accuracy,
        accuracy_where_action_changes (and the share of such frames), label_entropy, per_action, confusion.
    """
    frames, races = measured
    numbers = frames_of(races)
    action = frames.action[numbers].astype(np.int64)
    seen, hidden = predict(policy, frames, numbers), predict(policy, frames, numbers, hide_previous=True)
    own = predict_own(policy, frames, races, table)
    repeated = repeat_last_action(action, frames.race_index[numbers])
    majority = int(train.action_share[imitated].sum(axis=0, dtype=np.float64).argmax())
    has_changed = repeated != action
    confusion = confusion_matrix(action, seen.predicted, table.num_actions)
    return {
        "loss": seen.loss,
        "accuracy": _share(seen.predicted == action),
        "loss_with_own_actions": own.loss,
        "accuracy_with_own_actions": _share(own.predicted == action),
        "accuracy_without_previous_actions": _share(hidden.predicted == action),
        "majority_accuracy": _share(action == majority),
        "repeat_last_action_accuracy": _share(~has_changed),
        "accuracy_where_action_changes": _share((seen.predicted == action)[has_changed]),
        "share_where_action_changes": _share(has_changed),
        "label_entropy": label_entropy(frames.action_share[numbers]),
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
