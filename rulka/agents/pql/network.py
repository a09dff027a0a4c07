"""Builds the policy of parallel Q-learning, the network of the cloned policy, and makes a driver of a trained one."""

from __future__ import annotations

import torch

from models.actor_critic import ClonePolicy
from rulka.agents.networks import SEEING_PARTS, build_clone_policy, seeded
from rulka.agents.pql.decisions import decisions_of
from rulka.agents.spec import AgentSpec, Choose
from rulka.artifacts import Artifact
from rulka.params import PqlParams

PARTS = {**SEEING_PARTS, "trunk": ("trunk.",), "heads": ("policy_head.",)}
"""How the names of its tensors begin, for each part that can be taken over or learn at a rate of its own."""


def fresh_network(spec: AgentSpec[PqlParams], seed: int) -> ClonePolicy:
    """Returns the policy of an agent with the fresh weights of a seed."""
    sizes = spec.observation, spec.encoder, spec.network, spec.normalisation, spec.actions.num_outputs
    with seeded(seed):
        return build_clone_policy(*sizes)


def greedy_choice(network: ClonePolicy, artifact: Artifact, _device: torch.device) -> Choose:
    """Returns the policy's decisions without noise."""
    decisions = decisions_of(artifact.actions.space)
    return lambda image, floats: decisions.greedy(network(image, floats))
