"""The policy's half in a process of its own, the paper's P-learner: local copies of all it needs, a buffer of states.

It reads what the critics' half owns, torso and critics, and owns trunk and heads of the policy. Of the blocks that it
is shown only observations are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rulka.agents.metrics import MetricMeans
from rulka.agents.pql.features import FeatureKeeper
from rulka.agents.pql.halves import DECIDING, PolicyHalf
from rulka.agents.pql.network import PARTS, fresh_parts
from rulka.agents.pql.replay import PqlReplay
from rulka.agents.spec import AgentSpec
from rulka.buffers.experience import ExperienceBlock
from rulka.device import Generators
from rulka.params import PqlParams
from rulka.schedule import Moment

DECIDING_NAMES = tuple(f"network.{beginning}" for part in DECIDING for beginning in PARTS[part])
"""How the names of what this half owns begin, beside those of what it reads."""


class PolicyElsewhere:
    """A `Half` of `rulka.agents.spec`: the policy, with copies of its own of all that it needs."""

    def __init__(self, spec: AgentSpec[PqlParams], seed: int, device: torch.device, state: Mapping[str, Any]) -> None:
        """Goes on from a state.

        Args:
            spec: of the agent, with the precision in which it learns.
            seed: of what it draws.
            device: where it learns.
            state: network and critics, the half, and whether the encoder is as it was given.
        """
        params: PqlParams = spec.settings
        parts, precision = fresh_parts(spec, seed, device), spec.precision
        self._network, self._critics = parts.network, parts.critics
        self._network.load_state_dict(state["network"])
        self._critics.load_state_dict(state["critics"])
        self._half = PolicyHalf(*parts, params, precision)
        self._half.load_state_dict(state["policy_half"])
        self._replay = PqlReplay(spec, device, Generators(device, seed).host)
        self._features = FeatureKeeper(self._network, self._replay, params, spec.precision)
        self._features.is_as_given = bool(state["is_encoder_as_given"])
        self._moment = Moment(0)
        self._num_blocks = 0

    @property
    def num_updates(self) -> int:
        """So far, those before it began among them."""
        return self._half.num_updates

    @property
    def can_learn(self) -> bool:
        """Whether it has seen anything."""
        return self._replay.has_states()

    def insert(self, block: ExperienceBlock) -> None:
        """Copies states in."""
        self._features.look(self._moment)
        self._replay.insert(block, self._num_blocks)  # a stream of its own: no transition runs across blocks
        self._num_blocks += 1

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes torso and critics."""
        for name, network in (("network.", self._network), ("critics.", self._critics)):
            found = {key.removeprefix(name): tensor for key, tensor in tensors.items() if key.startswith(name)}
            network.load_state_dict(network.state_dict() | found)

    def learn(self, moment: Moment) -> dict[str, float]:
        """Makes one update from random states."""
        self._moment = moment
        self._features.look(moment)
        self._half.set_rates(moment)
        means = MetricMeans()
        self._half.learn(self._replay.draw_states(), moment, means)
        return {name: value for name, value in means.result().items() if name != "gradient_steps"}

    def tensors(self) -> dict[str, Tensor]:
        """Returns trunk and heads of the policy, and the state of their optimizer."""
        return self._half.tensors()


def copied_to_host(state: Any) -> Any:
    """Returns copies of all tensors in nested dictionaries and lists, in main memory."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, Mapping):
        return {name: copied_to_host(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return [copied_to_host(value) for value in state]
    return state
