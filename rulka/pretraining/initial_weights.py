"""What the network of a new agent takes over from earlier stages, part by part, with a report of every tensor.

A part that is asked for is taken over whole or not at all: a tensor that is missing on either side, or has another
shape, is an error. So a renamed layer never leaves a part half random.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from rulka.errors import UserError
from rulka.params import Algorithm, PartsParams

LABELS = {"pretrained": "pretrained encoder", "cloned": "cloned policy"}
"""Whose tensors are offered, by the words of the parameters."""

STAGES = {"pretrained": "pretrain", "cloned": "clone"}
NEW_NETWORK = "new network"

_SEES = {"encoder": ("encoder.",), "float_head": ("float_head.", "float_mean", "float_std")}
PARTS: Mapping[Algorithm, Mapping[str, tuple[str, ...]]] = {
    "ppo": _SEES | {"trunk": ("trunk.",), "heads": ("policy_head.", "value_head.")},
    "iqn": _SEES | {"trunk": ("tau_embed.",), "heads": ("advantage_head.", "value_head.")},
}
"""How the names of the tensors of each part begin, for the network of each algorithm."""

OFFERED_PARTS = _SEES | {"trunk": ("trunk.",), "heads": ("policy_head.",)}
"""The same for the cloned policy, and for the pretrained encoder, which is its first part."""

WITHOUT_SOURCE: Mapping[Algorithm, tuple[str, ...]] = {
    "ppo": ("value_head.",),
    "iqn": ("tau_embed.", "advantage_head.", "value_head."),
}
"""How the names of tensors begin that no earlier stage has: they start fresh whatever their part comes from."""


class TransferError(UserError):
    """What was learned before does not fit the network it should go into; the message names what differs."""


@dataclass(frozen=True)
class TensorReport:
    """What became of one tensor.

    Attributes:
        where: "new network", "pretrained encoder" or "cloned policy".
        name: there.
        action: copied into the new network (or, in a row of a source, from it), kept as it was initialised, or refused.
        shape: of the tensor.
        reason: where it comes from, or why not.
    """

    where: str
    name: str
    action: Literal["copied", "kept", "refused"]
    shape: list[int]
    reason: str


def take_over(
    algorithm: Algorithm,
    network: Mapping[str, Tensor],
    offered: Mapping[str, Mapping[str, Tensor]],
    parts: PartsParams,
) -> list[TensorReport]:
    """Copies what the parameters ask for into the tensors of a new network.

    Args:
        algorithm: whose network it is.
        network: its tensors by name, freshly initialised; written to.
        offered: tensors of each source, by the names that the same tensors have in the network.
        parts: where each part comes from.

    Returns:
        One row for every tensor of the network, then one for every tensor of each source.

    Raises:
        TransferError: if something asked for is not there, has another shape, or has no place in the network.
    """
    wishes = parts.by_part()
    rows = [_fill(algorithm, name, tensor, offered, wishes) for name, tensor in network.items()]
    copied = {row.name for row in rows if row.action == "copied"}
    for part, wish in wishes.items():
        if wish != "fresh" and not any(name.startswith(PARTS[algorithm][part]) for name in copied):
            message = f"transfer.{algorithm}.{part} is {wish}, but no earlier stage has that part of {algorithm}"
            raise TransferError(message, hint=f"Set transfer.{algorithm}.{part} to fresh in params.yaml.")
    for source, tensors in offered.items():
        rows += [_row_of_source(algorithm, source, name, tensors[name], network, wishes) for name in tensors]
    return rows


def _fill(
    algorithm: Algorithm,
    name: str,
    tensor: Tensor,
    offered: Mapping[str, Mapping[str, Tensor]],
    wishes: Mapping[str, str],
) -> TensorReport:
    """Fills one tensor of the new network, unless it starts fresh."""
    part = part_of(PARTS[algorithm], name)
    if part is None:
        message = f"tensor {name!r} belongs to no part of an {algorithm} agent that parameters know"
        raise TransferError(message)
    wish, shape = wishes[part], list(tensor.shape)
    if name.startswith(WITHOUT_SOURCE[algorithm]):
        return TensorReport(NEW_NETWORK, name, "kept", shape, "initialised: no earlier stage has one")
    if wish not in offered:
        return TensorReport(NEW_NETWORK, name, "kept", shape, f"initialised: transfer.{algorithm}.{part} is {wish}")
    hint = f"Run `dvc repro {STAGES[wish]}` again with the parameters of now."
    if name not in offered[wish]:
        message = f"transfer.{algorithm}.{part} is {wish}, but the {LABELS[wish]} has no tensor {name!r}"
        raise TransferError(message, hint=hint)
    value = offered[wish][name]
    if value.shape != tensor.shape:
        message = f"{name!r} has shape {list(value.shape)} in the {LABELS[wish]}, {algorithm} needs {shape}"
        raise TransferError(message, hint=hint)
    tensor.copy_(value)
    return TensorReport(NEW_NETWORK, name, "copied", shape, f"from the {LABELS[wish]}")


def _row_of_source(
    algorithm: Algorithm,
    source: str,
    name: str,
    tensor: Tensor,
    network: Mapping[str, Tensor],
    wishes: Mapping[str, str],
) -> TensorReport:
    part, shape, where = part_of(OFFERED_PARTS, name), list(tensor.shape), LABELS[source]
    if part is None:
        return TensorReport(where, name, "refused", shape, "belongs to no part of an agent")
    if wishes[part] != source:
        return TensorReport(where, name, "refused", shape, f"transfer.{algorithm}.{part} is {wishes[part]}")
    if name not in network:
        message = f"{name!r} of the {where} has no place in the network of {algorithm}"
        raise TransferError(message, hint=f"Run `dvc repro {STAGES[source]}` again with this version of the code.")
    return TensorReport(where, name, "copied", shape, "into the new network")


def part_of(parts: Mapping[str, tuple[str, ...]], name: str) -> str | None:
    """Returns the part that a tensor belongs to by the beginning of its name, None if there is no such part."""
    return next((part for part, beginnings in parts.items() if name.startswith(beginnings)), None)
