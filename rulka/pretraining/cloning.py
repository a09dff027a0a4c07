"""Behaviour cloning except for the loop: input augmentation, labels, losses, predictions and metrics.

The floats include the previous actions, and most actions repeat the one before. A cloned policy that only copies its
last action therefore looks good on recorded frames, and then drives straight on forever. Three measures guard against
that: dropout of the previous actions, selection of the epoch by races in which the policy sees its own previous
actions, and comparison with the policy that always repeats.

The clock of the mini-race is always hidden: recorded races have none, so its weights would be trained as a second bias,
and IQN, which sees the clock run, would get another function than was cloned.
Dimensions: N frames, B batch, F floats, K actions per decision, A actions.
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

from models.actor_critic import CloningHeads
from rulka.agents.shared.distributions import SquashedGaussian, distribution_of
from rulka.agents.shared.networks import Cloned
from rulka.contracts.actions import FORWARD, PRESSED, STEER_GAS_BRAKE, ActionTable
from rulka.contracts.observation import actions_per_decision_of, float_slices
from rulka.datasets.formats.frames import Batch, FrameDataset, FrameRace, frames_of
from rulka.datasets.formats.split import Split
from rulka.machine.device import device_of, upload_ahead
from rulka.machine.errors import UserError
from rulka.pretraining.params import CloneParams, ImitatedMaps, LabelKind

EVALUATION_BATCH = 512
NEAREST_END = 0.98
HALF_LOCK = 0.5
"""Steering beyond which a pressed direction key is nearer than none."""
_OF_NUMBERS = SquashedGaussian(STEER_GAS_BRAKE)


def augment_floats(floats: Tensor, mean: Tensor, std: Tensor, clone: CloneParams, generator: torch.Generator) -> Tensor:
    """Returns augmented copies of raw floats [B, F], with the clock hidden.

    Hidden floats are set to the mean of the normalisation, so that the network sees zeros.

    Args:
        floats: [B, F] raw.
        mean: [F] of the normalisation.
        std: [F] of the normalisation.
        clone: for its `previous_action_dropout` and `float_noise`.
        generator: of random numbers, on the device of the floats.
    """
    noise = torch.randn(floats.shape, generator=generator, device=floats.device)
    disturbed = hide(floats + clone.float_noise * std * noise, mean, "clock")
    is_hidden = torch.rand(len(floats), 1, generator=generator, device=floats.device) < clone.previous_action_dropout
    part = _part("previous_actions", mean)
    disturbed[:, part] = torch.where(is_hidden, mean[part], disturbed[:, part])
    return disturbed


def hide(floats: Tensor, mean: Tensor, part: str) -> Tensor:
    """Returns raw floats [B, F] with one part, by its name in `FLOATS`, set to the mean."""
    hidden, where = floats.clone(), _part(part, mean)
    hidden[:, where] = mean[where]
    return hidden


def _part(name: str, floats: Tensor) -> slice:
    """Returns the slice of a part in the last dimension [F] of floats, or of weights, means or stds per float."""
    return float_slices(actions_per_decision_of(floats.shape[-1]))[name]


def disconnect(float_head: nn.Sequential, part: str) -> None:
    """Disconnects one part of the floats, by its name in `FLOATS`, from a float head's first layer.

    Use it for a part that is always hidden in training: its random weights would otherwise disturb the acting policy.
    They stay zero, because no gradient reaches them.
    """
    weight = float_head[0].get_parameter("weight")
    with torch.no_grad():
        weight[:, _part(part, weight)] = 0.0


def races_of(frames: FrameDataset, maps: ImitatedMaps) -> list[FrameRace]:
    """Returns the races of a split on the chosen maps."""
    main = frames.index.main_track
    return [race for race in frames.races if maps == "all" or (race.map_uid == main) == (maps == "main")]


class Measured(NamedTuple):
    """Races of one split on which a policy is evaluated."""

    frames: FrameDataset
    races: list[FrameRace]


def measured_races(splits: Mapping[Split, FrameDataset], maps: ImitatedMaps) -> Measured:
    """Returns the races of the test split; if it has none, those of validation, and then those of training.

    They are on the imitated maps, or on the main track if all others are imitated.
    """
    tested: ImitatedMaps = "main" if maps == "others" else maps
    parts = [Measured(splits[split], races_of(splits[split], tested)) for split in ("test", "validation", "train")]
    return next((part for part in parts if part.races), parts[-1])


def check_races(splits: Mapping[Split, FrameDataset], clone: CloneParams) -> None:
    """Checks that there are training races, and that every race is longer than the largest offset.

    Raises:
        UserError: if there is no training race, or a race is too short; the message names the shortest one.
    """
    used, offsets = {split: races_of(frames, clone.maps) for split, frames in splits.items()}, clone.offsets
    if not used["train"]:
        if clone.maps == "others" and splits["train"].races:
            message = "the frames hold no race to learn from: all are on the main track, and clone.maps is others"
            raise UserError(message, hint="Set capture.maps: all, and add recordings of other maps.")
        message = "the frames hold no race to learn from: all are held out"
        raise UserError(message, hint="Lower capture.validation_fraction, or capture more races.")
    shortest = min((race for races in used.values() for race in races), key=lambda race: race.num_frames)
    if offsets[-1] >= shortest.num_frames:
        message = (
            f"clone.offsets looks {offsets[-1]} decisions ahead, and race {shortest.race_id} has "
            f"{shortest.num_frames}: none of its frames has such a label"
        )
        raise UserError(message, hint=f"Take offsets below {shortest.num_frames}.")


@dataclass(frozen=True)
class Labels:
    """Labels of all frames of a split, with lookup any number of decisions ahead.

    Attributes:
        now: [N, K A] labels at offset 0: shares of the actions at each place of a decision, or one-hot for the action
            held longest there; if decisions are continuous, [N, 3] steering, gas and brake.
        num_left: [N] number of later frames in the same race.
    """

    now: Tensor
    num_left: Tensor

    @classmethod
    def of(cls, frames: FrameDataset, kind: LabelKind, *, is_analog: bool = False) -> Labels:
        """Returns the labels of a split, in main memory."""
        action, share = (torch.from_numpy(each) for each in frames.decided(slice(None)))
        now = share if kind == "soft" else functional.one_hot(action, share.shape[2]).to(share.dtype)
        now = torch.from_numpy(frames.controls[:]) if is_analog else now.flatten(1)
        num_left = torch.zeros(len(frames), dtype=torch.int64)
        for race in frames.races:
            num_left[race.start : race.start + race.num_frames] = torch.arange(race.num_frames).flip(0)
        return cls(now, num_left)

    @classmethod
    def joined(cls, parts: Sequence[Labels]) -> Labels:
        """Concatenates the labels of several datasets; frame numbers continue."""
        return cls(torch.cat([part.now for part in parts]), torch.cat([part.num_left for part in parts]))

    def to(self, device: torch.device) -> Labels:
        """Returns the labels on a device."""
        return Labels(self.now.to(device), self.num_left.to(device))

    def ahead(self, number: Tensor, offset: int) -> tuple[Tensor, Tensor]:
        """Returns labels [B, K A] `offset` decisions after frames with numbers [B], and a mask [B] of existing ones.

        If the race has ended by then, the label is that of its last frame and is masked out.
        """
        num_left = self.num_left[number]
        return self.now[number + num_left.clamp(max=offset)], num_left >= offset


@dataclass(frozen=True)
class CloningTask:
    """Networks and loss of Level 1.

    Attributes:
        policy: predicts the current decision, offset 0.
        heads: predict later decisions.
        labels: of the training frames, on the device of the networks.
        table: action table of the decisions.
    """

    policy: Cloned
    heads: CloningHeads
    labels: Labels
    table: ActionTable

    def loss(self, batch: Batch, floats: Tensor) -> Tensor:
        """Returns the mean loss [] over all offsets.

        Args:
            batch: observations, with frame numbers for the lookup of labels.
            floats: [B, F] used instead of the batch's.
        """
        hidden = self.policy.hidden(self.policy.encode(batch.image), floats)
        losses = [self.policy_loss(self.policy.read_out(hidden), self.labels.now[batch.number])]
        for offset, logits in self.heads.ahead(hidden).items():
            losses.append(self.policy_loss(logits, *self.labels.ahead(batch.number, offset)))
        return torch.stack(losses).mean()

    def policy_loss(self, logits: Tensor, labels: Tensor, is_known: Tensor | None = None) -> Tensor:
        """Returns the mean loss [] of one offset.

        Args:
            logits: see `losses_of`.
            labels: see `losses_of`.
            is_known: [B] mask of frames that have a label; None if all have.
        """
        losses = losses_of(logits, labels, self.table)
        if is_known is None:
            return losses.mean()
        is_known = is_known.repeat_interleave(len(losses) // len(is_known))
        return torch.where(is_known, losses, 0.0).sum() / is_known.sum().clamp(min=1)


def losses_of(outputs: Tensor, labels: Tensor, table: ActionTable) -> Tensor:
    """Returns the losses [B K] of each place of decisions: cross-entropy, or `control_losses` if continuous.

    Args:
        outputs: logits [B, K A], or [B, 6] if decisions are continuous.
        labels: shares of the actions [B, K A] in any shape, or controls [B, 3], on the same device.
        table: action table of the decisions.
    """
    if table.is_analog:
        return control_losses(outputs, labels)
    by_place = (-1, table.num_actions)
    return functional.cross_entropy(outputs.float().view(by_place), labels.reshape(by_place), reduction="none")


def control_losses(outputs: Tensor, controls: Tensor) -> Tensor:
    """Returns negative log-likelihoods [N] of controls [N, 3] under a continuous policy with outputs [N, 6].

    Keys are at the ends of the intervals, which a tanh-squashed Gaussian never reaches: controls are scaled towards the
    middle by `NEAREST_END`.
    """
    low, high = (controls.new_tensor(ends) for ends in (STEER_GAS_BRAKE.low, STEER_GAS_BRAKE.high))
    middle = (low + high) / 2.0
    return -_OF_NUMBERS.log_prob(outputs, middle + NEAREST_END * (controls - middle))


@dataclass(frozen=True)
class Predictions:
    """Outputs of a policy for N frames.

    Attributes:
        outputs: logits [N, K A], or [N, 6] if decisions are continuous; float32, in main memory.
        table: action table of the decisions.
    """

    outputs: Tensor
    table: ActionTable

    @property
    def controls(self) -> Tensor:
        """[N, 3] greedy steering, gas and brake of a continuous policy."""
        return _OF_NUMBERS.greedy(self.outputs)

    @property
    def predicted(self) -> NDArray[np.int64]:
        """[N K] the most likely action at each place, or [N] the action nearest to the continuous controls."""
        if self.table.is_analog:
            steer, gas, brake = self.controls.numpy().T
            return self.table.index_of(gas, brake, steer, HALF_LOCK)
        return self.outputs.view(-1, self.table.num_actions).argmax(dim=1).numpy()

    def losses(self, labels: Tensor) -> NDArray[np.float64]:
        """Returns the loss [N K] of each place against labels, nats; see `losses_of`."""
        return losses_of(self.outputs, labels, self.table).double().numpy()


def hidden_of(
    policy: Cloned, frames: FrameDataset, numbers: NDArray[np.int64], *, hide_previous: bool = False
) -> Tensor:
    """Returns the trunk's output [N, W] for frames with numbers [N], on the policy's device; call it without gradients.

    The policy sees the recorded previous actions, or none if `hide_previous`.
    """
    hidden = []
    for batch in _in_order(policy, frames, numbers):
        floats = hide(batch.floats, policy.float_mean, "previous_actions") if hide_previous else batch.floats
        hidden.append(policy.hidden(policy.encode(batch.image), floats))
    return torch.cat(hidden)


def predict_own(policy: Cloned, frames: FrameDataset, races: Sequence[FrameRace], table: ActionTable) -> Predictions:
    """Runs a policy along recorded races with its own actions as the previous actions, as when it drives.

    The car still follows the recorded path. Previous actions before the first frame are the recorded ones. Call it
    without gradients.

    Args:
        policy: to run.
        frames: frames of the races.
        races: at least one.
        table: action table of the decisions.

    Returns:
        Predictions for all frames of the races, in the order of `frames_of`.
    """
    numbers = frames_of(races)
    encoded = torch.cat([policy.encode(batch.image).float() for batch in _in_order(policy, frames, numbers)])
    device = encoded.device
    floats, keys = (torch.from_numpy(array).to(device) for array in (frames.floats_seen(numbers), table.keys()))
    distribution = distribution_of(table.space)
    length = torch.tensor([race.num_frames for race in races], device=device)
    start, part = length.cumsum(0) - length, _part("previous_actions", floats)
    outputs = torch.empty(len(numbers), table.space.num_outputs, device=device)
    previous = floats[start, part]
    for step in range(int(length.max())):
        is_going = step < length
        at = start[is_going] + step
        seen = floats[at]
        seen[:, part] = previous[is_going]
        outputs[at] = policy.decide(encoded[at], seen)
        chosen = distribution.greedy(outputs[at])
        pressed = keys_of_controls(chosen) if table.is_analog else keys[chosen].flatten(1)
        previous[is_going] = torch.cat([previous[is_going], pressed], dim=1)[:, -previous.shape[1] :]
    return Predictions(outputs.cpu(), table)


def keys_of_controls(controls: Tensor) -> Tensor:
    """Returns the keys [B, 4] that the simulator derives from controls [B, 3]; see `rulka.simulator.physics`."""
    steer, gas, brake = controls.unbind(dim=1)
    return torch.stack([gas > PRESSED, brake > PRESSED, steer < 0.0, steer > 0.0], dim=1).to(controls.dtype)


def _in_order(policy: Cloned, frames: FrameDataset, numbers: NDArray[np.int64]) -> Iterator[Batch]:
    """Yields batches of frames in order, on the policy's device."""
    parts = range(0, len(numbers), EVALUATION_BATCH)
    batches = (frames.batch(numbers[start : start + EVALUATION_BATCH]) for start in parts)
    return upload_ahead(batches, device_of(policy))


# Measures -------------------------------------------------------------------------------------------------------------


def measure(
    policy: Cloned,
    heads: CloningHeads,
    train: FrameDataset,
    imitated: NDArray[np.int64],
    measured: Measured,
    table: ActionTable,
) -> dict[str, Any]:
    """Evaluates a policy on labelled races and compares it with trivial baselines.

    Losses use the shares of the actions, or the controls if the policy is continuous. All other metrics use the action
    held longest, and for a continuous policy the action nearest to its controls. Call it without gradients.

    Args:
        policy: to evaluate.
        heads: its heads for later decisions.
        train: training frames.
        imitated: numbers of the frames used for training, in order; the baselines are computed from these.
        measured: races to evaluate on, at least one.
        table: action table with A actions.

    Returns:
        Plain JSON: loss, accuracy (both with the recorded previous actions), the same with_own_actions,
        accuracy_without_previous_actions, accuracies of the majority action and of the action before, label_entropy,
        where_action_changes (the same on these frames, and their share), by_offset, confusion.
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
        "by_offset": by_offset({0: policy.read_out(hidden)} | heads.ahead(hidden), frames, numbers, table),
        "confusion": confusion_matrix(action, seen.predicted, count).tolist(),
    }


def _means(columns: dict[str, NDArray], is_chosen: NDArray[np.bool_]) -> dict[str, float | None]:
    """Returns the mean of every column over chosen frames; None if there are none."""
    return {name: float(column[is_chosen].mean()) if is_chosen.any() else None for name, column in columns.items()}


def by_offset(
    outputs: dict[int, Tensor], frames: FrameDataset, numbers: NDArray[np.int64], table: ActionTable
) -> list[dict[str, float | int | None]]:
    """Returns loss and accuracy of predicting later decisions, with the recorded previous actions.

    Args:
        outputs: of N frames, by offset in decisions.
        frames: dataset of the frames.
        numbers: [N] of these frames.
        table: action table of the decisions.

    Returns:
        Plain JSON for each offset: number of frames with an action that far ahead, loss and accuracy.
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
    """Returns the mean entropy of the labels in nats, a lower bound of the cross-entropy."""
    share = action_share.astype(np.float64)
    return float(-(share * np.log(np.where(share > 0, share, 1.0))).sum(axis=1).mean())


def confusion_matrix(action: NDArray[np.int64], predicted: NDArray[np.int64], num_actions: int) -> NDArray[np.int64]:
    """Returns the confusion matrix [A, A]: rows are recorded actions, columns predicted ones."""
    counts = np.bincount(action * num_actions + predicted, minlength=num_actions**2)
    return counts.reshape(num_actions, num_actions)
