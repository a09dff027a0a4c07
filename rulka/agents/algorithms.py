"""The registry of algorithms: one entry each, with everything that differs between them.

No other code branches on their names. A new algorithm is a file beside `iqn.py` and `ppo.py`, a parameter section and
an entry here; see docs/extending.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from rulka.agents.impala.learner import ImpalaLearner
from rulka.agents.iqn.actor import IqnActor, choose_by_iqn
from rulka.agents.iqn.params import IqnParams
from rulka.agents.params import Algorithm
from rulka.agents.ppo.learner import PpoLearner
from rulka.agents.pql.actor import PqlActor
from rulka.agents.pql.params import PqlParams
from rulka.agents.preferences.learner import DpoLearner, GrpoLearner
from rulka.agents.preferences.params import GivenPairsParams
from rulka.agents.shared.acting import PolicyActor, choose_by_policy, draw_by_policy
from rulka.agents.shared.learner import Learner
from rulka.agents.shared.network_params import CloneShape
from rulka.agents.shared.networks import (
    ACTOR_CRITIC_PARTS,
    IQN_PARTS,
    POLICY_PARTS,
    SEEING_PARTS,
    BuildNetwork,
    Cloned,
    build_actor_critic,
    build_clone_policy,
    build_cloned_iqn,
    build_iqn,
)
from rulka.agents.shared.spec import Actor, AgentSpec, Choose
from rulka.contracts.artifacts import Artifact
from rulka.contracts.schedule import Schedule
from rulka.machine.device import CPU


@dataclass(frozen=True, kw_only=True)
class AlgorithmEntry:
    """One algorithm. Its section in `params.yaml` and its part of `transfer` have the same name.

    Attributes:
        label: display name.
        build_network: builds an agent's network, initialised from torch's global generator.
        make_actor: see `make_actor`.
        make_learner: see `make_learner`.
        greedy_choice: maps a trained network, its artifact and a device to a greedy decision function.
        make_draw: maps a network, its artifact and a generator to a sampling decision function; None if the network
            gives no probabilities.
        parts: tensor name prefixes of each part that `transfer` knows.
        without_source: name prefixes of tensors that no earlier stage has. They start fresh unless their part comes
            from an agent.
        given_pairs: maps its parameter section to the source of given preference pairs; None if there is none.
        needs_demonstrations: True for a parameter section that makes it learn from captured races.
        clone_inside: name prefix of the tensors of a whole cloned policy inside its network; empty if there is none.
        describe_extra_help: describes to users, from its section in an artifact, its help besides initial weights.
    """

    label: str
    build_network: BuildNetwork[nn.Module]
    make_actor: Callable[[AgentSpec, int, torch.device], Actor]
    make_learner: Callable[[AgentSpec, int, torch.device], Learner]
    greedy_choice: Callable[[Any, Artifact, torch.device], Choose]
    parts: Mapping[str, tuple[str, ...]]
    without_source: tuple[str, ...]
    make_draw: Callable[[Any, Artifact, torch.Generator], Choose] | None = None
    given_pairs: Callable[[Any], GivenPairsParams | None] = lambda _section: None
    needs_demonstrations: Callable[[Any], bool] = lambda _section: False
    clone_inside: str = ""
    describe_extra_help: Callable[[Mapping[str, Any]], str] = lambda _section: ""


# Imported lazily: their replay imports torchrl, which takes 3 s and 95 MB. Collectors and evaluation only act and
# should not pay for it.
def _iqn_learner(spec: AgentSpec[IqnParams], seed: int, device: torch.device) -> Learner:
    from rulka.agents.iqn.learner import IqnLearner

    return IqnLearner(spec, seed, device)


def _pql_learner(spec: AgentSpec[PqlParams], seed: int, device: torch.device) -> Learner:
    from rulka.agents.pql.learner import PqlLearner

    return PqlLearner(spec, seed, device)


def _values_of(schedule: Any) -> list[float]:
    """Returns the values of a parameter in an artifact's metadata: a schedule, a number, or None."""
    return [] if schedule is None else list(Schedule.model_validate(schedule).values)


def _given_to_iqn(iqn: Mapping[str, Any]) -> str:
    parts = []
    if iqn.get("warmup_steps"):
        parts.append(f"The first {iqn['warmup_steps']:,} decisions of IQN are those of the frozen cloned policy.")
    if any(_values_of(iqn.get("guide_floor"))):
        parts.append("The cloned policy limits which actions IQN may take while `iqn.guide_floor` is above 0.")
    shown = _values_of(iqn.get("demonstration_share"))
    if any(shown):
        most = "Up to " if len(set(shown)) > 1 else ""
        parts.append(f"{most}{max(shown):.0%} of every batch of IQN comes from demonstrations.")
    return " ".join(parts)


def _given_to_dpo(dpo: Mapping[str, Any]) -> str:
    is_given = dpo.get("pairs", {}).get("kind", "online") != "online"
    return "DPO learns which of two captured races to prefer, and nothing of its own races." if is_given else ""


CLONED_PARTS: Mapping[str, tuple[str, ...]] = {
    **SEEING_PARTS,
    "trunk": ("trunk.", *IQN_PARTS["trunk"]),
    "heads": ("policy_head.", *IQN_PARTS["heads"]),
}
"""Tensor name prefixes of the cloned policy's parts, in either shape; the pretrained encoder is the first part."""

CLONED_SHAPES: Mapping[CloneShape, BuildNetwork[Cloned]] = {"policy": build_clone_policy, "iqn": build_cloned_iqn}
"""Network builders of a cloned policy, by its shape; they initialise from torch's global generator."""

_of_policy = partial(
    AlgorithmEntry,
    build_network=build_actor_critic,
    make_actor=PolicyActor,
    greedy_choice=choose_by_policy,
    parts=ACTOR_CRITIC_PARTS,
    without_source=("value_head.",),
    make_draw=draw_by_policy,
)
"""Entry of an algorithm that learns a policy, with the common fields set."""

ALGORITHMS: Mapping[Algorithm, AlgorithmEntry] = {
    "ppo": _of_policy(label="PPO", make_learner=PpoLearner),
    "impala": _of_policy(label="IMPALA", make_learner=ImpalaLearner),
    "iqn": AlgorithmEntry(
        label="IQN",
        build_network=build_iqn,
        make_actor=IqnActor,
        make_learner=_iqn_learner,
        greedy_choice=choose_by_iqn,
        parts=IQN_PARTS,
        without_source=("guide.floor",),
        needs_demonstrations=attrgetter("has_demonstrations"),
        clone_inside="guide.policy.",
        describe_extra_help=_given_to_iqn,
    ),
    "grpo": _of_policy(label="GRPO", make_learner=GrpoLearner),
    "dpo": _of_policy(
        label="DPO",
        make_learner=DpoLearner,
        given_pairs=attrgetter("given_pairs"),
        describe_extra_help=_given_to_dpo,
    ),
    "pql": AlgorithmEntry(
        label="PQL",
        build_network=build_clone_policy,
        make_actor=PqlActor,
        make_learner=_pql_learner,
        greedy_choice=choose_by_policy,
        parts=POLICY_PARTS,
        without_source=(),
    ),
}


def make_actor(spec: AgentSpec, seed: int, device: torch.device = CPU) -> Actor:
    """Returns an actor on a device; `seed` seeds its random weights and its exploration."""
    return ALGORITHMS[spec.algorithm].make_actor(spec, seed, device)


def make_learner(spec: AgentSpec, seed: int = 0, device: torch.device = CPU) -> Learner:
    """Returns a learner on a device; `seed` seeds its random weights and its sampling."""
    return ALGORITHMS[spec.algorithm].make_learner(spec, seed, device)


def label_of(name: str) -> str:
    """Returns the display name of an algorithm; any other name, such as "cloning", is returned unchanged."""
    return next((entry.label for algorithm, entry in ALGORITHMS.items() if algorithm == name), name)
