"""Stage `transfer`: builds the RL networks and copies into them what was learned before.

Reads  data/encoder/        the encoder of Level 0
       data/policy/         the cloned policy of Level 1
Writes data/agent_init/     an artifact of kind "agent_init" for `train.algorithm`, see rulka.artifacts
         report.json        what became of every tensor of the new network and of both sources: copied, kept or
                            refused, and why; report.md for people
         warmup_policy/     the frozen cloned policy, where `iqn.warmup_steps` lets it make the first decisions
         compared/<algorithm>/   the same for each of `train.compared`

Where each part comes from, `transfer` says for each algorithm: PPO can go on as the cloned policy, with a fresh value
head. IQN can take the encoder and the float head; a head trained with cross-entropy says how likely an action is, not
what it is worth. With every part fresh, an agent learns from scratch; both inputs are read all the same, for the
normalisation that all networks share.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.encoders.config import ENCODER_CONFIG, EncoderConfig
from rulka.actions import action_table
from rulka.agents.networks import agent_table, build_agent_network
from rulka.artifacts import Artifact, load_artifact, observation_contract, write_artifact
from rulka.folders import AGENT_INIT, COMPARED, ENCODER, POLICY, TRANSFER_REPORT, WARMUP_POLICY
from rulka.observation import FLOATS
from rulka.params import (
    ActionParams,
    Algorithm,
    IqnParams,
    NetworkParams,
    ObservationParams,
    PartsParams,
    TrainParams,
    TransferParams,
    read_params,
)
from rulka.pretraining.initial_weights import TensorReport, TransferError, take_over
from rulka.provenance import provenance
from rulka.stage import output_folder, require, run_stage

READABLE_REPORT_FILE = "report.md"
REPORT_SCHEMA_VERSION = 2


def transfer(  # noqa: PLR0913 - a stage takes exactly the sections it reads
    observation: ObservationParams,
    actions: ActionParams,
    encoder: EncoderConfig,
    network: NetworkParams,
    train: TrainParams,
    transfer: TransferParams,
    iqn: IqnParams,
    *,
    encoder_dir: Path,
    policy_dir: Path,
    out_dir: Path,
) -> None:
    """Writes one initial agent for every algorithm that will be trained.

    Raises:
        UserError: if an input is missing or damaged, does not fit the parameters or the other input, or lacks what a
            part should be taken from.
    """
    require(encoder_dir, "pretrain")
    require(policy_dir, "clone")
    table = action_table(actions.ticks_per_action)
    pretrained = load_artifact(encoder_dir, "encoder", observation=observation, actions=table, encoder=encoder)
    policy = load_artifact(policy_dir, "policy", observation=observation, actions=table, encoder=encoder)
    check_agreement(pretrained, policy, network)
    sections = {
        "observation": observation,
        "actions": actions,
        "encoder": encoder,
        "network": network,
        "transfer": transfer,
    }
    origin = provenance("transfer", sections, {"encoder": encoder_dir, "policy": policy_dir})
    with output_folder(out_dir) as folder:
        for algorithm in (train.algorithm, *train.compared):
            inside = folder if algorithm == train.algorithm else folder / COMPARED / algorithm
            inside.mkdir(parents=True, exist_ok=True)
            decides = agent_table(algorithm, actions, network)
            tensors, report = initial_tensors(algorithm, pretrained, policy, observation, network, transfer)
            _write_report(inside, algorithm, transfer.of(algorithm), report)
            if algorithm == "iqn" and iqn.warmup_steps:
                (inside / WARMUP_POLICY).mkdir()
                write_artifact(inside / WARMUP_POLICY, policy)
            initial = Artifact(
                kind="agent_init",
                tensors=tensors,
                config={
                    "algorithm": algorithm,
                    "num_actions": decides.num_actions,
                    "encoder": encoder.model_dump(mode="json"),
                    "network": network.model_dump(mode="json"),
                },
                observation=observation_contract(observation, decides.actions_per_decision),
                actions=decides,
                normalisation=policy.normalisation.for_blocks(decides.actions_per_decision),
                provenance=origin,
            )
            write_artifact(inside, initial)


def check_agreement(pretrained: Artifact, policy: Artifact, network: NetworkParams) -> None:
    """Makes sure that both inputs see the same numbers, and that the policy has the sizes of the network to build.

    Raises:
        TransferError: naming the field that differs.
    """
    for part in ("mean", "std"):
        seen, expected = getattr(pretrained.normalisation, part), getattr(policy.normalisation, part)
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
    pretrained: Artifact,
    policy: Artifact,
    observation: ObservationParams,
    network: NetworkParams,
    transfer: TransferParams,
) -> tuple[dict[str, Tensor], list[TensorReport]]:
    """Returns the weights that an agent starts with, and what became of every tensor.

    Raises:
        TransferError: if a part is asked for that there is not, or that has other tensors or shapes.
    """
    for is_there, message in transfer.impossible(algorithm, network):
        if is_there:
            raise TransferError(message)
    torch.manual_seed(transfer.seed)
    count = network.iqn.actions_per_decision if algorithm == "iqn" else 1
    num_outputs, normalisation = count * policy.actions.num_actions, policy.normalisation.for_blocks(count)
    encoder = ENCODER_CONFIG.validate_python(pretrained.config["encoder"])
    tensors = build_agent_network(algorithm, observation, encoder, network, normalisation, num_outputs).state_dict()
    offered = {"pretrained": pretrained.tensors, "cloned": policy.tensors}
    return tensors, take_over(algorithm, tensors, offered, transfer.of(algorithm))


def _write_report(folder: Path, algorithm: Algorithm, parts: PartsParams, report: list[TensorReport]) -> None:
    content: dict[str, Any] = {
        "schema_version": REPORT_SCHEMA_VERSION,
        "algorithm": algorithm,
        "parts": parts.by_part(),
        "tensors": [asdict(tensor) for tensor in report],
    }
    (folder / TRANSFER_REPORT).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
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
        params.encoder,
        params.network,
        params.train,
        params.transfer,
        params.iqn,
        encoder_dir=ENCODER,
        policy_dir=POLICY,
        out_dir=AGENT_INIT,
    )


if __name__ == "__main__":
    run_stage(main)
