"""What a new agent begins with: what its network takes over from earlier stages, part by part, with a report of that.

A part that is asked for is taken over whole or not at all: a tensor that is missing on either side, or has another
shape, is an error. So a renamed layer never leaves a part half random.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.cloning_heads import AHEAD_HEADS
from rulka.agents.algorithms import ALGORITHMS, CLONED_PARTS, CLONED_SHAPES
from rulka.artifacts import Artifact, sight_contract
from rulka.errors import UserError
from rulka.observation import float_slices
from rulka.params import Algorithm, NetworkParams, ObservationParams, PartsParams, TransferParams

LABELS = {"pretrained": "pretrained encoder", "cloned": "cloned policy", "agent": "agent"}
"""Whose tensors are offered, by the words of the parameters."""

REMEDIES = {
    "pretrained": "Run `dvc repro pretrain` again with the parameters of now.",
    "cloned": "Run `dvc repro clone` again with the parameters of now.",
    "agent": "Name another one in transfer.agent, or take over fewer parts.",
}
NEW_NETWORK = "new network"
IQN_SIZES = ("tau_embedding", "embedding_at", "layer_norm", "noisy_sigma")
"""Of `network.iqn`, those that a cloned policy has which is shaped like IQN."""
REPORT_SCHEMA_VERSION = 2


class TransferError(UserError):
    """What was learned before does not fit the network it should go into; the message names what differs."""


class Sources(NamedTuple):
    """What parts of a new agent may be taken from.

    Attributes:
        pretrained: the encoder of Level 0.
        policy: the cloned one.
        agent: a trained one; None where none is named.
    """

    pretrained: Artifact
    policy: Artifact
    agent: Artifact | None = None


@dataclass(frozen=True)
class TensorReport:
    """What became of one tensor.

    Attributes:
        where: "new network", "pretrained encoder", "cloned policy" or "agent".
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


def check_agreement(pretrained: Artifact, policy: Artifact, network: NetworkParams) -> None:
    """Makes sure that both inputs see the same numbers, and that the policy has the sizes of the network to build.

    Parameters ask for an encoder; which backbone that is, `pretrain` finds out, and `clone` has it from there.

    Raises:
        TransferError: naming the field that differs.
    """
    normalisation = pretrained.normalisation.for_chunks(policy.normalisation.actions_per_decision)
    for part in ("mean", "std"):
        seen, expected = getattr(normalisation, part), getattr(policy.normalisation, part)
        for name, where in float_slices(normalisation.actions_per_decision).items():
            if not np.array_equal(seen[where], expected[where]):
                message = (
                    f"normalisation.{part} of {name!r} is {_short(seen[where])} for the encoder "
                    f"and {_short(expected[where])} for the cloned policy"
                )
                raise TransferError(message, hint="Run `dvc repro clone` again.")
    if pretrained.encoder != policy.encoder:
        message = "the cloned policy was made with another backbone than that of the encoder"
        raise TransferError(message, hint="Run `dvc repro clone` again.")
    stored, shape = policy.config.get("network"), policy.config.get("shape")
    if not isinstance(stored, Mapping) or shape not in CLONED_SHAPES:
        message = "the cloned policy does not say how large its network is, or whose"
        raise TransferError(message, hint="Run `dvc repro clone` again.")
    expected = network.model_dump(mode="json")
    sizes = {name: (stored.get(name), expected[name]) for name in ("float_hidden", "dense_hidden", "fusion")}
    if shape != "policy":
        sizes |= {f"iqn.{name}": (stored["iqn"].get(name), expected["iqn"][name]) for name in IQN_SIZES}
    for name, (found, wanted) in sizes.items():
        if found != wanted:
            message = f"network.{name} is {found} in the cloned policy, expected {wanted}"
            raise TransferError(message, hint="Run `dvc repro clone` again.")


def check_agent(agent: Artifact, policy: Artifact, observation: ObservationParams) -> None:
    """Makes sure that a trained agent has seen what new ones will see, in the same numbers.

    Its encoder may have taken several frames as channels where the new one takes one, see `_summed`.

    Raises:
        TransferError: naming what differs, and both sides.
    """
    seen, wanted = agent.observation.params(), observation
    if seen.frames > 1 and seen.frames_as == "channels" and wanted.frames == 1:
        seen = seen.model_copy(update={"frames": 1})
    matters_not = {"frames_as"} if wanted.frames == 1 else set()
    for name, value in seen.model_dump(exclude=matters_not).items():
        if value != getattr(wanted, name):
            message = f"observation.{name} is {value!r} for the agent and {getattr(wanted, name)!r} for the new one"
            raise TransferError(message, hint=REMEDIES["agent"])
    for part in ("mean", "std"):
        if not np.array_equal(getattr(agent.normalisation, part), getattr(policy.normalisation, part)):
            message = f"normalisation.{part} is another one for the agent than for the cloned policy"
            raise TransferError(message, hint=REMEDIES["agent"])


def initial_agent(
    algorithm: Algorithm,
    sources: Sources,
    observation: ObservationParams,
    network: NetworkParams,
    transfer: TransferParams,
    origin: dict[str, Any],
) -> tuple[Artifact, list[TensorReport]]:
    """Returns an agent that has not learned yet, and what became of every tensor.

    Args:
        algorithm: of the agent.
        sources: what parts may be taken from.
        observation: what it sees.
        network: how large its network is.
        transfer: what it takes over.
        origin: its provenance.

    Raises:
        TransferError: if a part is asked for that there is not, or that has other tensors or shapes.
    """
    parts, entry, (pretrained, policy, agent) = transfer.of(algorithm), ALGORITHMS[algorithm], sources
    for message in parts.impossible(algorithm, network, policy.config["shape"]):
        raise TransferError(message)
    if agent is not None and parts.float_head == "agent":
        _check_fusion(agent, network)
    table, normalisation = policy.table, policy.normalisation
    torch.manual_seed(transfer.seed)
    tensors = entry.build_network(
        observation, pretrained.encoder, network, normalisation, table.space.num_outputs
    ).state_dict()
    offered = {"pretrained": pretrained.tensors, "cloned": policy.tensors}
    if agent is not None:
        offered["agent"] = agent.tensors
    report = take_over(algorithm, tensors, offered, parts)
    config = {
        "algorithm": algorithm,
        "num_actions": table.num_actions,
        "encoder": pretrained.config["encoder"],
        "network": network.model_dump(mode="json"),
    }
    contract = sight_contract(observation, table.actions_per_decision)
    return Artifact("agent_init", tensors, config, contract, table, normalisation, origin), report


def _check_fusion(agent: Artifact, network: NetworkParams) -> None:
    """Makes sure that the fusion of a trained agent is the new one's: not all of it shows in the shapes of tensors."""
    found, wanted = agent.config["network"].get("fusion"), network.fusion.model_dump(mode="json")
    if found != wanted:
        message = f"network.fusion is {found} for the agent and {wanted} for the new one"
        raise TransferError(message, hint=REMEDIES["agent"])


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
        if wish != "fresh" and not any(name.startswith(ALGORITHMS[algorithm].parts[part]) for name in copied):
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
    entry, shape = ALGORITHMS[algorithm], list(tensor.shape)
    part = part_of(entry.parts, name)
    if name.startswith(entry.without_source) and (part is None or wishes[part] != "agent"):
        return TensorReport(NEW_NETWORK, name, "kept", shape, "initialised: no earlier stage has one")
    if entry.clone_inside and name.startswith(entry.clone_inside):
        tensor.copy_(offered["cloned"][name.removeprefix(entry.clone_inside)])
        return TensorReport(NEW_NETWORK, name, "copied", shape, f"from the {LABELS['cloned']}, which it carries whole")
    if part is None:
        message = f"tensor {name!r} belongs to no part of an {algorithm} agent that parameters know"
        raise TransferError(message)
    wish = wishes[part]
    if wish not in offered:
        return TensorReport(NEW_NETWORK, name, "kept", shape, f"initialised: transfer.{algorithm}.{part} is {wish}")
    hint = REMEDIES[wish]
    if name not in offered[wish]:
        message = f"transfer.{algorithm}.{part} is {wish}, but the {LABELS[wish]} has no tensor {name!r}"
        raise TransferError(message, hint=hint)
    value, how = offered[wish][name], ""
    if wish == "agent":
        value, how = _summed(value, tensor)
    if value.shape != tensor.shape:
        message = f"{name!r} has shape {list(value.shape)} in the {LABELS[wish]}, {algorithm} needs {shape}"
        raise TransferError(message, hint=hint)
    tensor.copy_(value)
    return TensorReport(NEW_NETWORK, name, "copied", shape, f"from the {LABELS[wish]}{how}")


def _summed(value: Tensor, wanted: Tensor) -> tuple[Tensor, str]:
    """Returns the weights of a convolution over several channels as those over one, and how, in words.

    The one channel stands for the average of the several: where these are alike, the result is the same.
    """
    several = [*value.shape[:1], 1, *value.shape[2:]] == list(wanted.shape) and value.dim() == 4 and value.shape[1] > 1
    if not several:
        return value, ""
    return value.sum(dim=1, keepdim=True), f", whose {value.shape[1]} channels became one"


def _row_of_source(
    algorithm: Algorithm,
    source: str,
    name: str,
    tensor: Tensor,
    network: Mapping[str, Tensor],
    wishes: Mapping[str, str],
) -> TensorReport:
    parts = ALGORITHMS[algorithm].parts if source == "agent" else CLONED_PARTS
    part, shape, where = part_of(parts, name), list(tensor.shape), LABELS[source]
    if name.startswith(AHEAD_HEADS):
        offset = name.removeprefix(AHEAD_HEADS).partition(".")[0]
        return TensorReport(where, name, "refused", shape, f"looks {offset} decision{'s' * (offset != '1')} ahead")
    if part is None:
        return TensorReport(where, name, "refused", shape, "belongs to no part of an agent")
    if wishes[part] != source:
        return TensorReport(where, name, "refused", shape, f"transfer.{algorithm}.{part} is {wishes[part]}")
    if name not in network:
        message = f"{name!r} of the {where} has no place in the network of {algorithm}"
        raise TransferError(message, hint=REMEDIES[source])
    return TensorReport(where, name, "copied", shape, "into the new network")


def part_of(parts: Mapping[str, tuple[str, ...]], name: str) -> str | None:
    """Returns the part that a tensor belongs to by the beginning of its name, None if there is no such part."""
    return next((part for part, beginnings in parts.items() if name.startswith(beginnings)), None)


def report_json(algorithm: Algorithm, parts: PartsParams, report: Sequence[TensorReport]) -> dict[str, Any]:
    """Returns plain JSON of what became of every tensor."""
    return {
        "schema_version": REPORT_SCHEMA_VERSION,
        "algorithm": algorithm,
        "parts": parts.by_part(),
        "tensors": [asdict(tensor) for tensor in report],
    }


def report_text(algorithm: Algorithm, report: Sequence[TensorReport]) -> str:
    """Returns the same as Markdown, a table for each network."""
    lines = [f"# What {algorithm} starts with"]
    for where in dict.fromkeys(row.where for row in report):
        rows = [row for row in report if row.where == where]
        counts = Counter(row.action for row in rows)
        lines += [
            "",
            f"## Tensors of the {where}",
            "",
            ", ".join(f"{count} {action}" for action, count in sorted(counts.items())) + ".",
            "",
            "| tensor | shape | what | why |",
            "|---|---|---|---|",
            *(
                f"| {t.name} | {' x '.join(map(str, t.shape)) or 'one number'} | {t.action} | {t.reason} |"
                for t in rows
            ),
        ]
    return "\n".join(lines) + "\n"


def _short(values: np.ndarray) -> str:
    numbers = ", ".join(f"{value:g}" for value in values[:3])
    return f"[{numbers}, ...]" if len(values) > 3 else f"[{numbers}]"
