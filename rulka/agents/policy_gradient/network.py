"""Builds the network of a policy and a value from parameters, and makes a driver of a trained one."""

from __future__ import annotations

import torch

from models.actor_critic import ActorCritic
from models.encoders.config import EncoderConfig
from rulka.agents.networks import SEEING_PARTS, input_shape, seeded
from rulka.agents.policy_gradient.distributions import distribution_of
from rulka.agents.spec import AgentSpec, Choose
from rulka.artifacts import Artifact
from rulka.observation import Normalisation
from rulka.params import NetworkParams, ObservationParams

PARTS = {**SEEING_PARTS, "trunk": ("trunk.",), "heads": ("policy_head.", "value_head.")}
"""How the names of its tensors begin, for each part that can be taken over or learn at a rate of its own."""


def build_network(
    observation: ObservationParams,
    encoder: EncoderConfig,
    network: NetworkParams,
    normalisation: Normalisation,
    num_outputs: int,
) -> ActorCritic:
    """Returns a network with fresh weights from torch's global generator; see `rulka.agents.algorithms`."""
    inputs = input_shape(observation, normalisation)
    return ActorCritic(inputs, encoder, network.float_hidden, network.dense_hidden, num_outputs, network.fusion)


def fresh_network(spec: AgentSpec, seed: int) -> ActorCritic:
    """Returns the network of an agent with the fresh weights of a seed."""
    with seeded(seed):
        return build_network(spec.observation, spec.encoder, spec.network, spec.normalisation, spec.actions.num_outputs)


def greedy_choice(network: ActorCritic, artifact: Artifact, _device: torch.device) -> Choose:
    """Returns the policy's greedy decisions."""
    distribution = distribution_of(artifact.actions.space)
    return lambda image, floats: distribution.greedy(network(image, floats).outputs)
