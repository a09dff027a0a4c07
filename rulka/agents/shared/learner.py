"""Base class of all learners: weights, optimizer, ranks, checkpoints; its smaller parts are in `weights.py`.

A *learner* turns blocks of experience into new weights, and does not know about processes. Every algorithm subclasses
`Learner` in its own file, which defines its experience, targets, loss and update.
Dimensions: B batch, L frames seen at once, H x W pixels, F floats.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic

import torch
from torch import Tensor

from rulka.agents.shared.diagnostics import inspect_training
from rulka.agents.shared.reductions import ALONE, Ranks, seed_of_rank
from rulka.agents.shared.spec import AgentError, AgentSpec, ParamsT
from rulka.agents.shared.weights import NetworkT, PartRates, RunningAverage
from rulka.buffers.experience import ExperienceBlock, PreferencePairs, StoredExperience
from rulka.contracts.schedule import Moment
from rulka.machine.device import CPU, Generators, state_on_host, weights_on_host
from rulka.machine.precision import Precision, chosen_precision


class Learner(ABC, Generic[ParamsT, NetworkT]):
    """Turns blocks of experience into new weights.

    Subclasses create `_optimizer` from the groups of `_rates`.

    Attributes:
        OWN_STATE: keys of `state_dict` that may differ between ranks; all others are the same.
        network: the network that collectors act with; read its weights whenever `version` has grown.
        version: number of updates so far.
        num_env_steps: decisions inserted so far, resets included; a resume restores it.
        precision: "float32" or "bfloat16", in which the network's body is trained.
    """

    OWN_STATE: ClassVar[tuple[str, ...]] = ("generator", "device_generator", "num_env_steps")

    _optimizer: torch.optim.Optimizer

    def __init__(
        self,
        spec: AgentSpec[ParamsT],
        network: NetworkT,
        parts: Mapping[str, tuple[str, ...]],
        seed: int = 0,
        device: torch.device = CPU,
    ) -> None:
        """Sets up everything but the optimizer.

        Args:
            spec: of the agent.
            network: to train; on the device.
            parts: tensor name prefixes of each part that can have its own learning rate.
            seed: of sampling.
            device: of training.
        """
        self.network = network
        self.version = 0
        self.num_env_steps = 0
        self._spec, self._params, self._seed, self._device = spec, spec.params, seed, device
        self._budget_share, self._env_steps_elsewhere = 0.0, 0
        self._ranks: Ranks = ALONE
        self.precision: Precision = chosen_precision(spec.precision, device)
        self._generators = Generators(device, seed)
        self._average = RunningAverage(network, spec.params.racer_tau)
        self._rates = PartRates(network, parts, spec.params.rate_of)

    @property
    def racer(self) -> NetworkT:
        """The network that drives greedy races and becomes the agent: `network`, or a running average of it."""
        return self._average.network

    @property
    def moment(self) -> Moment:
        """Progress of the run, for schedules."""
        return Moment(self.num_env_steps + self._env_steps_elsewhere, self._budget_share)

    @property
    @abstractmethod
    def allowed_lag(self) -> int | None:
        """Largest staleness of experience when it arrives, in weight versions; None for no limit."""

    def load_network(self, tensors: Mapping[str, Tensor]) -> None:
        """Loads initial weights into the network and everything that starts as its copy."""
        self.network.load_state_dict(dict(tensors))
        self._average.begin()

    @abstractmethod
    def insert(self, block: ExperienceBlock, collector: int, version: int) -> None:
        """Stores experience (copied) that `collector` recorded with weights of `version`."""

    def insert_demonstrations(self, blocks: Sequence[ExperienceBlock]) -> None:
        """Stores demonstrations.

        Raises:
            AgentError: if the algorithm cannot use them, or their observations differ from the agent's.
        """
        message = f"{self._spec.algorithm} cannot learn from {len(blocks)} blocks of demonstrations; clone them instead"
        raise AgentError(message)

    def insert_pairs(self, pairs: PreferencePairs) -> None:
        """Sets the preference pairs to learn from (not copied).

        Raises:
            AgentError: if the algorithm cannot use them.
        """
        raise AgentError(f"{self._spec.algorithm} cannot learn from {len(pairs.pairs)} pairs of races")

    def join(self, ranks: Ranks) -> None:
        """Joins other ranks, with a seed of its own; call it before inserting experience."""
        self._ranks = ranks
        self._generators.seed(seed_of_rank(self._seed, ranks.rank))

    def set_budget_share(self, share: float, env_steps_elsewhere: int = 0) -> None:
        """Sets the progress of the run, for schedules; 0 before the first call.

        Args:
            share: used share of the run's budget, 0 to 1.
            env_steps_elsewhere: decisions that other ranks have inserted.
        """
        self._budget_share, self._env_steps_elsewhere = share, env_steps_elsewhere

    @abstractmethod
    def num_allowed_env_steps(self) -> int:
        """Decisions that collectors may have taken by now; they may start a block while they have taken fewer."""

    @abstractmethod
    def is_ready(self) -> bool:
        """True if `update` would learn now; several ranks update once all are ready."""

    @abstractmethod
    def update(self) -> dict[str, float] | None:
        """Runs the gradient steps of one version and returns metrics; None if it needs more experience first.

        The runtime reads two of the metrics: `num_samples`, transitions learned from, counting repeats, and
        `gradient_steps`, if present.
        """

    def inspect(self) -> dict[str, float]:
        """Returns diagnostics by tags `Group/name`; changes nothing."""
        return inspect_training(self.network, self._optimizer) if self.version else {}

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns all but the experience: nested dictionaries and lists of tensors and numbers."""
        return {
            "network": weights_on_host(self.network),
            "average": self._average.state_dict(),
            "optimizer": state_on_host(self._optimizer.state_dict()),
            **self._generators.state_dict(),
            "version": self.version,
            "num_env_steps": self.num_env_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a `state_dict`; `load_experience` or `forget_experience` has to follow."""
        self.network.load_state_dict(state["network"])
        self._average.load_state_dict(state["average"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._generators.load_state_dict(state)
        self.version, self.num_env_steps = int(state["version"]), int(state["num_env_steps"])

    @abstractmethod
    def experience(self) -> StoredExperience:
        """Returns the experience still in use, for a checkpoint; its arrays are valid until the learner changes."""

    @abstractmethod
    def load_experience(self, experience: StoredExperience) -> None:
        """Resumes from an `experience`; copies it."""

    @abstractmethod
    def forget_experience(self) -> None:
        """Resumes without experience, which is collected again."""
