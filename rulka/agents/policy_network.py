"""Networks of policies, with a value or without, built from parameters; and drivers made of trained ones."""

from __future__ import annotations

import torch

from models.actor_critic import ActorCritic, ClonePolicy, PolicyAndValue
from models.encoders.config import EncoderConfig
from rulka.agents.distributions import distribution_of
from rulka.agents.networks import SEEING_PARTS, build_clone_policy, input_shape, seeded
from rulka.agents.spec import AgentSpec, Choose
from rulka.artifacts import Artifact
from rulka.observation import Normalisation
from rulka.params import NetworkParams, ObservationParams

ACTOR_PARTS = {**SEEING_PARTS, "trunk": ("trunk.",), "heads": ("policy_head.",)}
"""How the names of a policy's tensors begin, for each part that can be taken over or learn at a rate of its own."""
PARTS = {**ACTOR_PARTS, "heads": ("policy_head.", "value_head.")}
"""The same with a value."""


def build_network(
    observation: ObservationParams,
    encoder: EncoderConfig,
    network: NetworkParams,
    normalisation: Normalisation,
    num_outputs: int,
) -> ActorCritic:
    """Returns a policy with a value, its weights fresh from torch's global generator; see `rulka.agents.algorithms`."""
    inputs = input_shape(observation, normalisation)
    return ActorCritic(inputs, encoder, network.float_hidden, network.dense_hidden, num_outputs, network.fusion)


def fresh_network(spec: AgentSpec, seed: int) -> ActorCritic:
    """Returns the policy and value of an agent with the fresh weights of a seed."""
    with seeded(seed):
        return build_network(spec.observation, spec.encoder, spec.network, spec.normalisation, spec.actions.num_outputs)


def fresh_actor(spec: AgentSpec, seed: int) -> ClonePolicy:
    """Returns the policy of an agent, without a value, with the fresh weights of a seed."""
    sizes = spec.observation, spec.encoder, spec.network, spec.normalisation, spec.actions.num_outputs
    with seeded(seed):
        return build_clone_policy(*sizes)


def greedy_choice(network: ActorCritic | ClonePolicy, artifact: Artifact, _device: torch.device) -> Choose:
    """Returns the policy's greedy decisions."""
    distribution = distribution_of(artifact.actions.space)

    def choose(image: torch.Tensor, floats: torch.Tensor) -> torch.Tensor:
        decided = network(image, floats)
        return distribution.greedy(decided.outputs if isinstance(decided, PolicyAndValue) else decided)

    return choose
