"""Agent specification, and what actors decide.

An *actor* chooses actions in a collector; a *learner* turns experience into weights. Neither knows about processes.
Dimensions: N cars, L frames seen at once, H x W pixels, F floats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from models.encoders.config import EncoderConfig
from rulka.agents.params import Algorithm
from rulka.agents.shared.network_params import NetworkParams
from rulka.agents.shared.networks import BuildNetwork, seeded
from rulka.agents.shared.params import AlgorithmParams
from rulka.contracts.actions import ActionSpace, Choices
from rulka.contracts.observation import Normalisation
from rulka.contracts.observation_params import ObservationParams
from rulka.machine.errors import UserError
from rulka.machine.precision import ActingPrecision, Precision


class AgentError(UserError):
    """An agent was used in an unsupported way or with unsuitable weights."""


ParamsT = TypeVar("ParamsT", bound=AlgorithmParams)
NetworkT = TypeVar("NetworkT", bound=nn.Module)

Choose = Callable[[Tensor, Tensor], Tensor]
"""Maps images [N, L, H, W] uint8 and raw floats [N, F] to decisions [N, K], greedy or drawn."""


@dataclass(frozen=True)
class AgentSpec(Generic[ParamsT]):
    """Everything needed to build an actor or a learner in another process; picklable.

    Attributes:
        algorithm: its name.
        observation: image size.
        encoder: of the images.
        network: layer widths behind the encoder.
        params: the algorithm's parameter section.
        actions: action space: A actions in each of K places, or continuous numbers.
        normalisation: of the floats; becomes part of the network.
        decision_ms: length of a decision.
        precision: of the networks' body; see `chosen_precision`.
        acting_precision: of published weights and of inference in actors, see `rulka.agents.shared.quantisation`; None
            publishes float32 and runs inference in `precision`.
    """

    algorithm: Algorithm
    observation: ObservationParams
    encoder: EncoderConfig
    network: NetworkParams
    params: ParamsT
    actions: ActionSpace
    normalisation: Normalisation
    decision_ms: int = 50
    precision: Precision = "auto"
    acting_precision: ActingPrecision | None = None

    @property
    def choices(self) -> Choices:
        """The discrete action space, for algorithms that compare all actions.

        Raises:
            AgentError: if decisions are continuous.
        """
        if isinstance(self.actions, Choices):
            return self.actions
        raise AgentError(f"{self.algorithm} compares all actions, and cannot decide for numbers within intervals")

    def fresh_network(self, build: BuildNetwork[NetworkT], seed: int) -> NetworkT:
        """Returns a network initialised from a seed; torch's global generator does not change."""
        with seeded(seed):
            return build(self.observation, self.encoder, self.network, self.normalisation, self.actions.num_outputs)


class Decision(NamedTuple):
    """An actor's decisions for N cars; the fields are those of `ExperienceBlock`.

    Attributes:
        action: [N, K] int64, K = 1 included; [N, K] float32 if decisions are continuous.
        log_prob: [N] float32 under the policy that acted; 0 if it has no probabilities.
        is_greedy: [N] bool, all K actions are the greedy ones.
    """

    action: NDArray
    log_prob: NDArray[np.float32]
    is_greedy: NDArray[np.bool_]

    @property
    def for_environment(self) -> NDArray:
        """The decisions as environments take them: [N] if each is a single discrete action, else [N, K]."""
        is_single = self.action.shape[1] == 1 and self.action.dtype.kind == "i"
        return self.action[:, 0] if is_single else self.action


class ActionValues(NamedTuple):
    """An actor's values of all actions when it acts greedily.

    Attributes:
        name: "q_value", a mean return, or "probability". The greedy action has the largest of those that a guide
            allows.
        value: [N, A] float32; [N, K, A] if K > 1, each with the greedy ones as the decision's other actions.
    """

    name: str
    value: NDArray[np.float32]
