"""Builds the networks of agents from a spec and a seed; torch's global generator is left as it was."""

from __future__ import annotations

import torch

from models.actor_critic import ActorCritic
from models.iqn import IqnNetwork
from rulka.agents.networks import build_agent_network
from rulka.agents.spec import AgentSpec
from rulka.params import Algorithm


def build_ppo(spec: AgentSpec, seed: int) -> ActorCritic:
    """Returns the network of a PPO agent with fresh weights."""
    network = _build("ppo", spec, spec.num_actions, seed)
    assert isinstance(network, ActorCritic)
    return network


def build_iqn(spec: AgentSpec, seed: int) -> IqnNetwork:
    """Returns the network of an IQN agent with fresh weights."""
    network = _build("iqn", spec, spec.num_outputs, seed)
    assert isinstance(network, IqnNetwork)
    return network


def _build(algorithm: Algorithm, spec: AgentSpec, num_outputs: int, seed: int) -> ActorCritic | IqnNetwork:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_agent_network(
            algorithm, spec.observation, spec.encoder, spec.network, spec.normalisation, num_outputs
        )
