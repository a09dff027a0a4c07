"""Builds the policy of parallel Q-learning, the network of the cloned policy, its critics, and makes a driver of it."""

from __future__ import annotations

from typing import NamedTuple

import torch

from models.actor_critic import ClonePolicy
from models.critics import Critics
from rulka.agents.networks import SEEING_PARTS, build_clone_policy, seeded
from rulka.agents.pql.decisions import Decisions, decisions_of
from rulka.agents.pql.returns import Returns, returns_of
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


class Parts(NamedTuple):
    """What learns, and how it is to be understood."""

    network: ClonePolicy
    critics: Critics
    decisions: Decisions
    returns: Returns


def fresh_parts(spec: AgentSpec[PqlParams], seed: int, device: torch.device) -> Parts:
    """Returns the policy of an agent and its critics, with the fresh weights of a seed, on a device."""
    network = fresh_network(spec, seed).to(device)
    decisions, returns = decisions_of(spec.actions), returns_of(spec.settings.critic, device)
    with seeded(seed + 1):
        critics = decisions.make_critics(network.num_state, spec.network.dense_hidden, returns.num_atoms)
    return Parts(network, critics.to(device), decisions, returns)


def greedy_choice(network: ClonePolicy, artifact: Artifact, _device: torch.device) -> Choose:
    """Returns the policy's decisions without noise."""
    decisions = decisions_of(artifact.actions.space)
    return lambda image, floats: decisions.greedy(network(image, floats))
