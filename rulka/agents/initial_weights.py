"""Initial weights of a new agent: transfers them from earlier stages part by part, and reports every tensor.

A requested part is transferred completely or not at all: a tensor that is missing on either side, or has another shape,
is an error. So a renamed layer never leaves a part half random.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.actor_critic import AHEAD_HEADS
from rulka.agents.algorithms import CLONED_PARTS, CLONED_SHAPES, actor_class
from rulka.agents.params import Algorithm, TransferParams
from rulka.agents.shared.network_params import NetworkParams
from rulka.agents.shared.params import PartsParams
from rulka.contracts.artifacts import Artifact, network_input_contract
from rulka.contracts.observation import float_slices
from rulka.contracts.observation_params import ObservationParams
from rulka.machine.errors import UserError

LABELS = {"pretrained": "pretrained encoder", "cloned": "cloned policy", "agent": "agent"}
"""Display names of the weight sources, by parameter value."""

REMEDIES = {
    "pretrained": "Run `dvc repro pretrain` again with the parameters of now.",
    "cloned": "Run `dvc repro clone` again with the parameters of now.",
    "agent": "Name another one in transfer.agent, or take over fewer parts.",
}
NEW_NETWORK = "new network"
IQN_SIZES = ("tau_embedding", "embedding_at", "layer_norm", "noisy_sigma")
"""Keys of `network.iqn` that apply to a cloned policy of shape `iqn`."""
REPORT_SCHEMA_VERSION = 2


class TransferError(UserError):
    """Earlier weights do not fit the new network; the message names the difference."""


class TensorReport(NamedTuple):
    """Transfer result of one tensor.

    Attributes:
        where: its owner: "new network", "pretrained encoder", "cloned policy" or "agent".
        name: there.
        action: copied into the new network (or, in a row of a source, from it), kept as initialised, or refused.
        shape: of the tensor.
        reason: its source, or why it was not copied.
    """

    where: str
    name: str
    action: Literal["copied", "kept", "refused"]
    shape: list[int]
    reason: str


def check_agreement(pretrained: Artifact, policy: Artifact, network: NetworkParams) -> None:
    """Checks that both inputs have the same normalisation and backbone, and the policy the sizes of the new network.

    Parameters name an encoder; `pretrain` resolves its backbone, and `clone` inherits that.

    Raises:
        TransferError: naming the field that differs.
    """
    hint = "Run `dvc repro clone` again."
    normalisation = pretrained.normalisation.for_chunks(policy.normalisation.actions_per_decision)
    for part in ("mean", "std"):
        seen, expected = getattr(normalisation, part), getattr(policy.normalisation, part)
        for name, where in float_slices(normalisation.actions_per_decision).items():
            if not np.array_equal(seen[where], expected[where]):
                message = (
                    f"normalisation.{part} of {name!r} is {_short(seen[where])} for the encoder "
                    f"and {_short(expected[where])} for the cloned policy"
                )
                raise TransferError(message, hint=hint)
    if pretrained.encoder != policy.encoder:
        raise TransferError("the cloned policy was made with another backbone than that of the encoder", hint=hint)
    stored, shape = policy.config.get("network"), policy.config.get("shape")
    if not isinstance(stored, Mapping) or shape not in CLONED_SHAPES:
        raise TransferError("the cloned policy does not say how large its network is, or whose", hint=hint)
    expected = network.model_dump(mode="json")
    sizes = {name: (stored.get(name), expected[name]) for name in ("float_hidden", "dense_hidden", "fusion")}
    if shape != "policy":
        sizes |= {f"iqn.{name}": (stored["iqn"].get(name), expected["iqn"][name]) for name in IQN_SIZES}
    for name, (found, wanted) in sizes.items():
        if found != wanted:
            raise TransferError(f"network.{name} is {found} in the cloned policy, expected {wanted}", hint=hint)


def check_agent(agent: Artifact, policy: Artifact, observation: ObservationParams) -> None:
    """Checks that a trained agent has the observation and normalisation of the new ones.

    Raises:
        TransferError: naming the difference, and both sides.
    """
    seen = agent.observation.params()
    matters_not = {"frames_as"} if observation.frames == 1 else set()
    for name, value in seen.model_dump(exclude=matters_not).items():
        if value != getattr(observation, name):
            message = (
                f"observation.{name} is {value!r} for the agent and {getattr(observation, name)!r} for the new one"
            )
            raise TransferError(message, hint=REMEDIES["agent"])
    for part in ("mean", "std"):
        if not np.array_equal(getattr(agent.normalisation, part), getattr(policy.normalisation, part)):
            message = f"normalisation.{part} is another one for the agent than for the cloned policy"
            raise TransferError(message, hint=REMEDIES["agent"])


def initial_agent(
    algorithm: Algorithm,
    sources: Mapping[str, Artifact],
    observation: ObservationParams,
    network: NetworkParams,
    transfer: TransferParams,
    origin: dict[str, Any],
) -> tuple[Artifact, list[TensorReport]]:
    """Returns an untrained agent, and the transfer report.

    Args:
        algorithm: of the agent.
        sources: of weights: `pretrained`, the encoder of Level 0; `cloned`, the policy; and `agent`, a trained one, if
            one is named.
        observation: of the agent.
        network: network sizes.
        transfer: source of each part.
        origin: its provenance.

    Returns:
        The agent; and one row for every tensor of its network, then one for every tensor of each source.

    Raises:
        TransferError: if a requested part does not exist, or has other tensors or shapes.
    """
    parts, policy = transfer.of(algorithm), sources["cloned"]
    for message in parts.impossible(algorithm, network, policy.config["shape"]):
        raise TransferError(message)
    if "agent" in sources and parts.float_head == "agent":
        # Tensor shapes do not reveal every setting of a fusion.
        found, wanted = sources["agent"].config["network"].get("fusion"), network.fusion.model_dump(mode="json")
        if found != wanted:
            message = f"network.fusion is {found} for the agent and {wanted} for the new one"
            raise TransferError(message, hint=REMEDIES["agent"])
    encoder, table, normalisation = sources["pretrained"].encoder, policy.table, policy.normalisation
    torch.manual_seed(transfer.seed)
    build = actor_class(algorithm).build_network
    new = build(observation, encoder, network, normalisation, table.space.num_outputs).state_dict()
    offered = {source: artifact.tensors for source, artifact in sources.items()}
    config = {
        "algorithm": algorithm,
        "num_actions": table.num_actions,
        "encoder": sources["pretrained"].config["encoder"],
        "network": network.model_dump(mode="json"),
    }
    report = _take_over(algorithm, new, offered, dict(parts))
    contract = network_input_contract(observation, table.actions_per_decision)
    return Artifact("agent_init", new, config, contract, table, normalisation, origin), report


def _take_over(
    algorithm: Algorithm,
    network: Mapping[str, Tensor],
    offered: Mapping[str, Mapping[str, Tensor]],
    wishes: Mapping[str, str],
) -> list[TensorReport]:
    """Copies the requested parts into the tensors of a new network; tensor names are the same in all sources."""
    rows = [_fill(algorithm, name, tensor, offered, wishes) for name, tensor in network.items()]
    copied = {row.name for row in rows if row.action == "copied"}
    for part, wish in wishes.items():
        if wish != "fresh" and not any(name.startswith(actor_class(algorithm).parts[part]) for name in copied):
            message = f"transfer.{algorithm}.{part} is {wish}, but no earlier stage has that part of {algorithm}"
            raise TransferError(message, hint=f"Set transfer.{algorithm}.{part} to fresh in params.yaml.")
    for source, tensors in offered.items():
        for name, tensor in tensors.items():
            reason = _refusal(algorithm, source, name, wishes)
            if not reason and name not in network:
                message = f"{name!r} of the {LABELS[source]} has no place in the network of {algorithm}"
                raise TransferError(message, hint=REMEDIES[source])
            action = "refused" if reason else "copied"
            row = TensorReport(LABELS[source], name, action, list(tensor.shape), reason or "into the new network")
            rows.append(row)
    return rows


def _fill(
    algorithm: Algorithm,
    name: str,
    tensor: Tensor,
    offered: Mapping[str, Mapping[str, Tensor]],
    wishes: Mapping[str, str],
) -> TensorReport:
    """Fills one tensor of the new network, unless it starts fresh."""
    actor, shape = actor_class(algorithm), list(tensor.shape)
    part = _part_of(actor.parts, name)
    is_agents = part is not None and wishes[part] == "agent" and name in offered["agent"]
    if name.startswith(actor.without_source) and not is_agents:
        return TensorReport(NEW_NETWORK, name, "kept", shape, "initialised: no earlier stage has one")
    if actor.clone_inside and name.startswith(actor.clone_inside):
        tensor.copy_(offered["cloned"][name.removeprefix(actor.clone_inside)])
        return TensorReport(NEW_NETWORK, name, "copied", shape, f"from the {LABELS['cloned']}, which it carries whole")
    if part is None:
        raise TransferError(f"tensor {name!r} belongs to no part of an {algorithm} agent that parameters know")
    wish = wishes[part]
    if wish not in offered:
        return TensorReport(NEW_NETWORK, name, "kept", shape, f"initialised: transfer.{algorithm}.{part} is {wish}")
    if name not in offered[wish]:
        message = f"transfer.{algorithm}.{part} is {wish}, but the {LABELS[wish]} has no tensor {name!r}"
        raise TransferError(message, hint=REMEDIES[wish])
    value = offered[wish][name]
    if value.shape != tensor.shape:
        message = f"{name!r} has shape {list(value.shape)} in the {LABELS[wish]}, {algorithm} needs {shape}"
        raise TransferError(message, hint=REMEDIES[wish])
    tensor.copy_(value)
    return TensorReport(NEW_NETWORK, name, "copied", shape, f"from the {LABELS[wish]}")


def _refusal(algorithm: Algorithm, source: str, name: str, wishes: Mapping[str, str]) -> str:
    """Returns why a tensor of a source is not transferred; empty if it is."""
    part = _part_of(actor_class(algorithm).parts if source == "agent" else CLONED_PARTS, name)
    if name.startswith(AHEAD_HEADS):
        offset = name.removeprefix(AHEAD_HEADS).partition(".")[0]
        return f"looks {offset} decision{'s' * (offset != '1')} ahead"
    if part is None:
        return "belongs to no part of an agent"
    return "" if wishes[part] == source else f"transfer.{algorithm}.{part} is {wishes[part]}"


def _part_of(parts: Mapping[str, tuple[str, ...]], name: str) -> str | None:
    """Returns the part whose name prefix a tensor has; None if there is none."""
    return next((part for part, beginnings in parts.items() if name.startswith(beginnings)), None)


def report_json(algorithm: Algorithm, parts: PartsParams, report: Sequence[TensorReport]) -> dict[str, Any]:
    """Returns the transfer report as plain JSON."""
    return {
        "schema_version": REPORT_SCHEMA_VERSION,
        "algorithm": algorithm,
        "parts": dict(parts),
        "tensors": [row._asdict() for row in report],
    }


def _short(values: np.ndarray) -> str:
    numbers = ", ".join(f"{value:g}" for value in values[:3])
    return f"[{numbers}, ...]" if len(values) > 3 else f"[{numbers}]"
