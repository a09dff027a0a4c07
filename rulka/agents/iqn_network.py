"""Builds the network of an IQN agent from its spec and a seed."""

from __future__ import annotations

import torch

from models.iqn import IqnNetwork
from rulka.agents.networks import build_agent_network
from rulka.agents.spec import AgentSpec


def build_iqn(spec: AgentSpec, seed: int) -> IqnNetwork:
    """Returns the network of an IQN agent with fresh weights from a seed; torch's generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build_agent_network("iqn", spec.observation, spec.network, spec.normalisation, spec.num_outputs)
    assert isinstance(network, IqnNetwork)
    return network
