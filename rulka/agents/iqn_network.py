"""Builds IQN's network from parameters, and makes a driver of a trained one."""

from __future__ import annotations

import torch

from models.encoders.config import EncoderConfig
from models.guide import Guide
from models.iqn import IqnNetwork, fixed_fractions
from rulka.agents.iqn_cloned import iqn_sizes
from rulka.agents.networks import SEEING_PARTS, build_clone_policy, by_place, input_shape, seeded
from rulka.agents.spec import AgentSpec, Choose
from rulka.artifacts import Artifact
from rulka.observation import Normalisation
from rulka.params import IqnParams, NetworkParams, ObservationParams

PARTS = {**SEEING_PARTS, "trunk": ("tau_embed.",), "heads": ("advantage_head.", "value_head.")}
"""How the names of its tensors begin, for each part that can be taken over or learn at a rate of its own."""


def build_network(
    observation: ObservationParams,
    encoder: EncoderConfig,
    network: NetworkParams,
    normalisation: Normalisation,
    num_outputs: int,
) -> IqnNetwork:
    """Returns a network with fresh weights from torch's global generator; see `rulka.agents.algorithms`."""
    iqn = IqnNetwork(input_shape(observation, normalisation), encoder, iqn_sizes(network), num_outputs)
    if network.iqn.guided:  # last, so that the same seed makes the same weights with and without it
        policy = build_clone_policy(observation, encoder, network, normalisation, num_outputs)
        iqn.guide = Guide(policy, network.actions_per_decision)
    return iqn


def fresh_network(spec: AgentSpec[IqnParams], seed: int) -> IqnNetwork:
    """Returns the network of an agent with the fresh weights of a seed."""
    with seeded(seed):
        return build_network(spec.observation, spec.encoder, spec.network, spec.normalisation, spec.choices.num_outputs)


def greedy_choice(network: IqnNetwork, artifact: Artifact, device: torch.device) -> Choose:
    """Returns the actions with the largest mean advantages at the fractions of acting, within the guide's limits."""
    tau = fixed_fractions(artifact.config["iqn"]["num_quantiles_acting"]).to(device)
    decision_shape, guide = artifact.actions.decision_shape, network.guide
    is_limited = guide is not None and float(guide.floor) > 0.0

    def choose(image: torch.Tensor, floats: torch.Tensor) -> torch.Tensor:
        advantage = network.advantages(image, floats, tau)
        if guide is not None and is_limited:
            advantage = guide.limit(advantage, guide.log_probs(image, floats))
        return by_place(advantage, decision_shape).argmax(dim=-1)

    return choose
