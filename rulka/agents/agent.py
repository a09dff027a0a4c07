"""The one door to all agents: what the runtime and the evaluation build them with."""

from __future__ import annotations

import torch

from rulka.agents.iqn import IqnLearner
from rulka.agents.iqn_actor import IqnActor
from rulka.agents.ppo import PpoLearner
from rulka.agents.ppo_actor import PpoActor
from rulka.agents.spec import Actor, AgentError, AgentSpec, Decision, Learner
from rulka.device import CPU

__all__ = ["Actor", "AgentError", "AgentSpec", "Decision", "Learner", "make_actor", "make_learner"]


def make_actor(spec: AgentSpec, seed: int, device: torch.device = CPU) -> Actor:
    """Returns an actor on a device with random weights; `seed` decides how it explores."""
    return PpoActor(spec, seed, device) if spec.algorithm == "ppo" else IqnActor(spec, seed, device)


def make_learner(spec: AgentSpec, seed: int = 0, device: torch.device = CPU) -> Learner:
    """Returns a learner on a device with random weights; `seed` decides these and the order in which it learns."""
    return PpoLearner(spec, seed, device) if spec.algorithm == "ppo" else IqnLearner(spec, seed, device)
