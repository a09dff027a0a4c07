"""The one door to all agents: what the runtime and the evaluation build them with."""

from __future__ import annotations

from rulka.agents.iqn import IqnLearner
from rulka.agents.iqn_actor import IqnActor
from rulka.agents.ppo import PpoLearner
from rulka.agents.ppo_actor import PpoActor
from rulka.agents.spec import Actor, AgentError, AgentSpec, Decision, Learner

__all__ = ["Actor", "AgentError", "AgentSpec", "Decision", "Learner", "make_actor", "make_learner"]


def make_actor(spec: AgentSpec, seed: int) -> Actor:
    """Returns an actor with random weights; `seed` decides how it explores."""
    return PpoActor(spec, seed) if spec.algorithm == "ppo" else IqnActor(spec, seed)


def make_learner(spec: AgentSpec, seed: int = 0) -> Learner:
    """Returns a learner with random weights; `seed` decides these and the order in which it learns."""
    return PpoLearner(spec, seed) if spec.algorithm == "ppo" else IqnLearner(spec, seed)
