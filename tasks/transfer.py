"""Stage `transfer`: builds the RL networks and copies pretrained weights into them.

Reads  data/encoder/        the encoder of Level 0
       data/policy/         the cloned policy of Level 1
Writes data/agent_init/     an artifact of kind "agent_init" for `train.algorithm`, see rulka.contracts.artifacts
         report.json        for every tensor of the new network and of the sources: copied, kept or refused, and why
         compared/<algorithm>/   the same for each of `train.compared`

With `transfer.agent`, parts may also come from a trained agent, or from the driver that comes with the package.

The section `transfer` sets the source of each part per algorithm. PPO can start as the cloned policy, with a fresh
value head. IQN can take the encoder and the float head, but no head trained with cross-entropy: that predicts action
probabilities, not values. It can take trunk and heads from a cloned policy of its own shape (`clone.shape`). With every
part fresh, an agent learns from scratch; both inputs are still read, for the normalisation that all networks share.
"""

from __future__ import annotations

import json
from pathlib import Path

from rulka.agents.initial_weights import check_agent, check_agreement, initial_agent, report_json
from rulka.agents.load import DRIVING_KINDS, SHIPPED, SHIPPED_AGENT
from rulka.agents.shared.networks import decision_table
from rulka.contracts.actions import action_table
from rulka.contracts.artifacts import load_artifact, write_artifact
from rulka.params import Params, params_of_stage, sections_of
from rulka.stages.folders import AGENT_INIT, COMPARED, ENCODER, POLICY, TRANSFER_REPORT
from rulka.stages.provenance import provenance
from rulka.stages.stage import output_folder, require, run_stage


def transfer(params: Params, *, encoder_dir: Path, policy_dir: Path, out_dir: Path) -> None:
    """Writes one initial agent for every algorithm to be trained.

    Raises:
        UserError: if an input is missing or damaged, does not match the parameters or the other input, or lacks a part
            to copy.
    """
    observation, actions, encoder = params.observation, params.actions, params.encoder
    network, train, transfer = params.network, params.train, params.transfer
    require(encoder_dir, "pretrain")
    require(policy_dir, "clone")
    single, table = action_table(actions.ticks_per_action), decision_table(actions, network)
    pretrained = load_artifact(encoder_dir, "encoder", observation=observation, actions=single, encoder=encoder)
    policy = load_artifact(policy_dir, "policy", observation=observation, actions=table, encoder=encoder)
    check_agreement(pretrained, policy, network)
    sources = {"pretrained": pretrained, "cloned": policy}
    inputs = {"encoder": encoder_dir, "policy": policy_dir}
    if transfer.agent is not None:
        inputs["agent"] = SHIPPED_AGENT if transfer.agent == SHIPPED else Path(transfer.agent)
        sources["agent"] = load_artifact(inputs["agent"], DRIVING_KINDS, encoder=encoder)
        check_agent(sources["agent"], policy, observation)
    origin = provenance("transfer", sections_of("transfer", params), inputs)
    with output_folder(out_dir) as folder:
        for algorithm in train.algorithms:
            initial, report = initial_agent(algorithm, sources, observation, network, transfer, origin)
            inside = folder if algorithm == train.algorithm else folder / COMPARED / algorithm
            inside.mkdir(parents=True, exist_ok=True)
            content = json.dumps(report_json(algorithm, transfer.of(algorithm), report), indent=1)
            (inside / TRANSFER_REPORT).write_text(content + "\n", encoding="utf-8")
            write_artifact(inside, initial)


def main() -> None:
    """Runs the stage with the parameters and folders of the project."""
    transfer(params_of_stage("transfer"), encoder_dir=ENCODER, policy_dir=POLICY, out_dir=AGENT_INIT)


if __name__ == "__main__":
    run_stage(main)
