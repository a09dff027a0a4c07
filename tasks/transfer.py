"""Stage `transfer`: builds the RL networks and copies into them what was learned before.

Reads  data/encoder/        the encoder of Level 0
       data/policy/         the cloned policy of Level 1
Writes data/agent_init/     an artifact of kind "agent_init" for `train.algorithm`, see rulka.artifacts
         report.json        what became of every tensor: copied, kept or refused, and why; report.md for people
         warmup_policy/     the frozen cloned policy, for algorithms whose first decisions it makes
         compared/<algorithm>/   the same for each of `train.compared`

PPO goes on as the cloned policy: it takes over every tensor of it by name, and only its value head is fresh. IQN takes
the encoder and the float head; a head trained with cross-entropy says how likely an action is, not what it is worth.
IQN that decides for blocks of actions takes the encoder alone: it sees more floats than the cloned policy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rulka.actions import ActionTable, action_table
from rulka.agents.networks import build_agent_network
from rulka.artifacts import Artifact, load_artifact, observation_contract, write_artifact
from rulka.errors import UserError
from rulka.observation import FLOATS
from rulka.params import (
    ActionParams,
    Algorithm,
    NetworkParams,
    ObservationParams,
    TrainParams,
    TransferParams,
    read_params,
)
from rulka.provenance import provenance
from rulka.stage import output_folder, require, run_stage

COMPARED_FOLDER = "compared"
WARMUP_FOLDER = "warmup_policy"
REPORT_FILE = "report.json"
READABLE_REPORT_FILE = "report.md"
TAKEN_BY_IQN = ("encoder.", "float_head.", "float_mean", "float_std")
"""Beginnings of the names of what IQN takes from the cloned policy."""


class TransferError(UserError):
    """What was learned before does not fit the network it should go into; the message names what differs."""


@dataclass(frozen=True)
class TensorReport:
    """What became of one tensor.

    Attributes:
        name: in the RL network or, if it was refused, where it comes from.
        action: copied from an earlier stage, kept as it was initialised, or refused.
        shape: of the tensor.
        reason: where it comes from, or why not.
    """

    name: str
    action: Literal["copied", "kept", "refused"]
    shape: list[int]
    reason: str


def agent_table(algorithm: Algorithm, actions: ActionParams, network: NetworkParams) -> ActionTable:
    """Returns what an agent's decisions are: blocks of actions for IQN alone, where the parameters say so."""
    return action_table(actions.ticks_per_action, network.iqn.actions_per_decision if algorithm == "iqn" else 1)


def transfer(
    observation: ObservationParams,
    actions: ActionParams,
    network: NetworkParams,
    train: TrainParams,
    transfer: TransferParams,
    *,
    encoder_dir: Path,
    policy_dir: Path,
    out_dir: Path,
) -> None:
    """Writes one initial agent for every algorithm that will be trained.

    Raises:
        UserError: if an input is missing or damaged, or does not fit the parameters or the other input.
    """
    require(encoder_dir, "pretrain")
    require(policy_dir, "clone")
    table = action_table(actions.ticks_per_action)
    encoder = load_artifact(encoder_dir, "encoder", observation=observation, actions=table)
    policy = load_artifact(policy_dir, "policy", observation=observation, actions=table)
    check_agreement(encoder, policy, network)
    sections = {"observation": observation, "actions": actions, "network": network, "transfer": transfer}
    origin = provenance("transfer", sections, {"encoder": encoder_dir, "policy": policy_dir})
    with output_folder(out_dir) as folder:
        for algorithm in (train.algorithm, *train.compared):
            inside = folder if algorithm == train.algorithm else folder / COMPARED_FOLDER / algorithm
            inside.mkdir(parents=True, exist_ok=True)
            decides = agent_table(algorithm, actions, network)
            tensors, report = initial_tensors(algorithm, encoder, policy, observation, network, transfer)
            _write_report(inside, algorithm, report)
            if algorithm == "iqn" and decides.actions_per_decision == 1:
                (inside / WARMUP_FOLDER).mkdir()
                write_artifact(inside / WARMUP_FOLDER, policy)
            initial = Artifact(
                kind="agent_init",
                tensors=tensors,
                config={
                    "algorithm": algorithm,
                    "num_actions": decides.num_actions,
                    "network": network.model_dump(mode="json"),
                },
                observation=observation_contract(observation, decides.actions_per_decision),
                actions=decides,
                normalisation=policy.normalisation.for_blocks(decides.actions_per_decision),
                provenance=origin,
            )
            write_artifact(inside, initial)


def check_agreement(encoder: Artifact, policy: Artifact, network: NetworkParams) -> None:
    """Makes sure that both inputs see the same numbers, and that the policy has the sizes of the network to build.

    Raises:
        TransferError: naming the field that differs.
    """
    for part in ("mean", "std"):
        seen, expected = getattr(encoder.normalisation, part), getattr(policy.normalisation, part)
        for name, where in FLOATS.items():
            if not np.array_equal(seen[where], expected[where]):
                message = (
                    f"normalisation.{part} of {name!r} is {_short(seen[where])} for the encoder "
                    f"and {_short(expected[where])} for the cloned policy"
                )
                raise TransferError(message, hint="Run `dvc repro clone` again.")
    stored = policy.config.get("network")
    if not isinstance(stored, Mapping):
        message = "the cloned policy does not say how large its network is"
        raise TransferError(message, hint="Run `dvc repro clone` again.")
    for name in ("float_hidden", "dense_hidden"):
        if stored.get(name) != getattr(network, name):
            message = f"network.{name} is {stored.get(name)} in the cloned policy, expected {getattr(network, name)}"
            raise TransferError(message, hint="Run `dvc repro clone` again.")


def initial_tensors(
    algorithm: Algorithm,
    encoder: Artifact,
    policy: Artifact,
    observation: ObservationParams,
    network: NetworkParams,
    transfer: TransferParams,
) -> tuple[dict[str, Tensor], list[TensorReport]]:
    """Returns the weights that an agent starts with, and what became of every tensor.

    Raises:
        TransferError: if a tensor that should be taken over has another shape, or the encoders are of two kinds.
    """
    _check_encoder_kind(algorithm, network, transfer)
    torch.manual_seed(transfer.seed)
    count = network.iqn.actions_per_decision if algorithm == "iqn" else 1
    num_outputs, normalisation = count * policy.actions.num_actions, policy.normalisation.for_blocks(count)
    fresh = build_agent_network(algorithm, observation, network, normalisation, num_outputs).state_dict()
    offered = _offers(algorithm, encoder, policy, transfer, network)
    reports = []
    for name, tensor in fresh.items():
        source, value = offered.pop(name, ("", None))
        if value is None:
            is_meant = name.startswith("encoder.") and transfer.iqn_encoder == "fresh"
            why = "transfer.iqn_encoder is fresh" if is_meant else _why_kept(name, count)
            reports.append(TensorReport(name, "kept", list(tensor.shape), f"initialised: {why}"))
            continue
        if value.shape != tensor.shape:
            message = f"{name!r} has shape {list(value.shape)} in the {source}, {algorithm} needs {list(tensor.shape)}"
            raise TransferError(message, hint="Run `dvc repro clone` again with the parameters of now.")
        tensor.copy_(value)
        reports.append(TensorReport(name, "copied", list(tensor.shape), f"from the {source}"))
    why_not = "logits trained with cross-entropy, and what leads to them, are no values of actions"
    reports += [
        TensorReport(name, "refused", list(tensor.shape), why_not)
        for name, tensor in policy.tensors.items()
        if name not in fresh and not name.startswith("encoder.")
    ]
    return fresh, reports


def _why_kept(name: str, actions_per_decision: int) -> str:
    if actions_per_decision > 1 and name.startswith("float_"):
        return f"decisions of {actions_per_decision} actions see more previous actions than the cloned policy"
    return "nothing before it has one"


def _check_encoder_kind(algorithm: Algorithm, network: NetworkParams, transfer: TransferParams) -> None:
    """Raises TransferError if IQN should take an encoder of another kind than its own."""
    if algorithm == "iqn" and network.iqn.encoder != "conv" and transfer.iqn_encoder != "fresh":
        message = (
            f"network.iqn.encoder is {network.iqn.encoder!r}, the {transfer.iqn_encoder} encoder that "
            "transfer.iqn_encoder names is 'conv'"
        )
        raise TransferError(message, hint="Set transfer.iqn_encoder to fresh, or network.iqn.encoder to conv.")


def _offers(
    algorithm: Algorithm, encoder: Artifact, policy: Artifact, transfer: TransferParams, network: NetworkParams
) -> dict[str, tuple[str, Tensor]]:
    """Returns what an algorithm takes over, by name, with the place it comes from."""
    offered = {name: ("cloned policy", tensor) for name, tensor in policy.tensors.items()}
    if algorithm == "ppo":
        return offered
    taken = TAKEN_BY_IQN if network.iqn.actions_per_decision == 1 else ("encoder.",)
    offered = {name: offer for name, offer in offered.items() if name.startswith(taken)}
    if transfer.iqn_encoder == "fresh":
        return {name: offer for name, offer in offered.items() if not name.startswith("encoder.")}
    if transfer.iqn_encoder == "pretrained":
        offered |= {name: ("pretrained encoder", tensor) for name, tensor in encoder.tensors.items()}
    return offered


def _write_report(folder: Path, algorithm: Algorithm, report: list[TensorReport]) -> None:
    content: dict[str, Any] = {"algorithm": algorithm, "tensors": [asdict(tensor) for tensor in report]}
    (folder / REPORT_FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    counts = {action: sum(tensor.action == action for tensor in report) for action in ("copied", "kept", "refused")}
    lines = [
        f"# What {algorithm} starts with",
        "",
        ", ".join(f"{count} tensors {action}" for action, count in counts.items()) + ".",
        "",
        "| tensor | shape | what | why |",
        "|---|---|---|---|",
        *(f"| {t.name} | {' x '.join(map(str, t.shape)) or 'one number'} | {t.action} | {t.reason} |" for t in report),
    ]
    (folder / READABLE_REPORT_FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _short(values: np.ndarray) -> str:
    numbers = ", ".join(f"{value:g}" for value in values[:3])
    return f"[{numbers}, ...]" if len(values) > 3 else f"[{numbers}]"


def main() -> None:
    """Runs the stage with the parameters and folders of the project."""
    params = read_params()
    transfer(
        params.observation,
        params.actions,
        params.network,
        params.train,
        params.transfer,
        encoder_dir=Path("data/encoder"),
        policy_dir=Path("data/policy"),
        out_dir=Path("data/agent_init"),
    )


if __name__ == "__main__":
    run_stage(main)
