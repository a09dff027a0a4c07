"""Finds the code of an algorithm, which its section names; see `rulka.agents.params.ALGORITHMS`."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name

import torch

from rulka.agents.params import ALGORITHMS, Algorithm
from rulka.agents.shared.acting import NetworkActor
from rulka.agents.shared.learner import Learner
from rulka.agents.shared.network_params import CloneShape
from rulka.agents.shared.networks import (
    IQN_PARTS,
    SEEING_PARTS,
    BuildNetwork,
    Cloned,
    build_clone_policy,
    build_cloned_iqn,
)
from rulka.agents.shared.spec import AgentSpec
from rulka.machine.device import CPU

CLONED_PARTS: Mapping[str, tuple[str, ...]] = {
    **SEEING_PARTS,
    "trunk": ("trunk.", *IQN_PARTS["trunk"]),
    "heads": ("policy_head.", *IQN_PARTS["heads"]),
}
"""Tensor name prefixes of the cloned policy's parts, in either shape; the pretrained encoder is the first part."""

CLONED_SHAPES: Mapping[CloneShape, BuildNetwork[Cloned]] = {"policy": build_clone_policy, "iqn": build_cloned_iqn}
"""Network builders of a cloned policy, by its shape; they initialise from torch's global generator."""


def actor_class(algorithm: Algorithm) -> type[NetworkActor]:
    """Returns the actor class of an algorithm, which also knows its network."""
    return resolve_name(ALGORITHMS[algorithm].ACTOR)


def make_actor(spec: AgentSpec, seed: int, device: torch.device = CPU) -> NetworkActor:
    """Returns an actor on a device; `seed` seeds its random weights and its exploration."""
    return resolve_name(spec.params.ACTOR)(spec, seed, device)


def make_learner(spec: AgentSpec, seed: int = 0, device: torch.device = CPU) -> Learner:
    """Returns a learner on a device; `seed` seeds its random weights and its sampling."""
    return resolve_name(spec.params.LEARNER)(spec, seed, device)


def label_of(name: str) -> str:
    """Returns the display name of an algorithm; any other name, such as "cloning", is returned unchanged."""
    return ALGORITHMS[name].LABEL if name in ALGORITHMS else name
