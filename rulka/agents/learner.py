"""The base of all learners: weights, optimizer, rates by part, running average, ranks, checkpoints, metrics.

A *learner* turns blocks of experience into new weights, and knows of no processes. Every algorithm derives from
`Learner` in a file of its own, which says what it learns from, its targets, its loss and its update.
Dimensions: B batch, L frames seen at once, H x W pixels, F floats.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from models.torso import Torso
from rulka.agents.params import ByPartParams
from rulka.agents.precision import Precision, chosen_precision
from rulka.agents.ranks import ALONE, Ranks, seed_of_rank
from rulka.agents.spec import AgentError, AgentSpec, SettingsT
from rulka.buffers.experience import Experience, ExperienceBlock, PreferencePairs
from rulka.device import CPU, Generators, state_on_host, weights_on_host
from rulka.schedule import Moment, Schedule

NetworkT = TypeVar("NetworkT", bound=Torso)


class Learner(ABC, Generic[SettingsT, NetworkT]):
    """Turns blocks of experience into new weights.

    What derives from it makes `_optimizer`, of the groups of `_rates`.

    Attributes:
        OWN_STATE: names in `state_dict` of what may differ between ranks; everything else is the same for all.
        network: the network that collectors act with; read its weights whenever `version` has grown.
        version: number of updates so far.
        num_env_steps: decisions inserted so far, resets included; after a resume, the count to go on from.
        precision: "float32" or "bfloat16", in which the network's body learns.
    """

    OWN_STATE: ClassVar[tuple[str, ...]] = ("generator", "device_generator", "num_env_steps")

    _optimizer: torch.optim.Optimizer

    def __init__(
        self,
        spec: AgentSpec[SettingsT],
        network: NetworkT,
        parts: Mapping[str, tuple[str, ...]],
        seed: int = 0,
        device: torch.device = CPU,
    ) -> None:
        """Prepares all but the optimizer.

        Args:
            spec: of the agent.
            network: learns; on the device.
            parts: how the names of its tensors begin, for each part that can have a learning rate of its own.
            seed: of the order in which it learns.
            device: where it learns.
        """
        self.network = network
        self.version = 0
        self.num_env_steps = 0
        self._spec, self._params, self._seed, self._device = spec, spec.settings, seed, device
        self._budget_share, self._env_steps_elsewhere = 0.0, 0
        self._ranks: Ranks = ALONE
        self.precision: Precision = chosen_precision(spec.precision, device)
        self._generators = Generators(device, seed)
        self._average = RunningAverage(network, spec.settings.racer_tau)
        self._rates = PartRates(network, parts, spec.settings.rate_of)

    @property
    def racer(self) -> NetworkT:
        """The network that drives greedy races and becomes the agent: `network`, or a running average of it."""
        return self._average.network

    @property
    def moment(self) -> Moment:
        """Progress of the run, which schedules go by."""
        return Moment(self.num_env_steps + self._env_steps_elsewhere, self._budget_share)

    @property
    @abstractmethod
    def allowed_lag(self) -> int | None:
        """By how many versions the weights that made experience may lag when it arrives; None for any number."""

    def load_network(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes initial weights for the network and for everything that starts as its copy."""
        self.network.load_state_dict(dict(tensors))
        self._average.begin()

    @abstractmethod
    def insert(self, block: ExperienceBlock, collector: int, version: int) -> None:
        """Takes experience that `collector` made with weights of `version`; copies it."""

    def insert_demonstrations(self, blocks: Sequence[ExperienceBlock]) -> None:
        """Takes demonstrations.

        Raises:
            AgentError: if the algorithm has no use for them, or they show something else than the agent sees.
        """
        message = f"{self._spec.algorithm} cannot learn from {len(blocks)} blocks of demonstrations; clone them instead"
        raise AgentError(message)

    def insert_pairs(self, pairs: PreferencePairs) -> None:
        """Takes all preferences to learn from; copies nothing.

        Raises:
            AgentError: if the algorithm has no use for them.
        """
        message = f"{self._spec.algorithm} cannot learn from {len(pairs.pairs)} pairs of races"
        raise AgentError(message)

    def join(self, ranks: Ranks) -> None:
        """Learns as one with other ranks from now on, with random numbers of its own; before any experience."""
        self._ranks = ranks
        self._generators.seed(seed_of_rank(self._seed, ranks.rank))

    def set_budget_share(self, share: float, env_steps_elsewhere: int = 0) -> None:
        """Sets how far the run is, for schedules; 0 before the first call.

        Args:
            share: of the run's budget that is used, 0 to 1.
            env_steps_elsewhere: decisions that other ranks have inserted.
        """
        self._budget_share, self._env_steps_elsewhere = share, env_steps_elsewhere

    @abstractmethod
    def num_allowed_env_steps(self) -> int:
        """Decisions that collectors may have taken by now; they may start a block while they have taken fewer."""

    @abstractmethod
    def is_ready(self) -> bool:
        """True if `update` would learn now; several ranks update when all of them are."""

    @abstractmethod
    def update(self) -> dict[str, float] | None:
        """Makes the gradient steps of one version and returns metrics; None if more experience must come first.

        The runtime reads two of the metrics: `num_samples`, transitions learned from, each as often as it was used,
        and `gradient_steps`, if there is one.
        """

    def inspect(self) -> dict[str, float]:
        """Returns diagnostics by tags `Group/name`; changes nothing."""
        return inspect_training(self.network, self._optimizer) if self.version else {}

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
    def experience(self) -> Experience:
        """Returns the experience still in use, for a checkpoint; its arrays hold until the learner's next change."""

    @abstractmethod
    def load_experience(self, experience: Experience) -> None:
        """Resumes from an `experience`; copies it."""

    @abstractmethod
    def forget_experience(self) -> None:
        """Resumes without experience, which is gathered anew."""


class PartRates:
    """Gives every part of a network a learning rate of its own.

    A part whose factor is 0 is frozen: it gets no gradients, and the optimizer leaves it alone, weight decay included.
    """

    def __init__(self, network: nn.Module, parts: Mapping[str, tuple[str, ...]], factors: ByPartParams) -> None:
        """Sorts the weights of a network into groups.

        Args:
            network: learns.
            parts: how the names of its tensors begin, for each part; see `rulka.agents.algorithms`.
            factors: of the learning rate, by part.
        """
        self._factors: dict[str, Schedule] = dict(factors)
        named = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
        self.groups: list[dict[str, Any]] = [
            {"part": part, "params": [parameter for name, parameter in named if name.startswith(beginnings)]}
            for part, beginnings in parts.items()
        ]
        assert sum(len(group["params"]) for group in self.groups) == len(named), "all that may learn is in one part"

    def factor(self, part: str, moment: Moment) -> float:
        """Returns the factor of a part's learning rate; 1 for what is no part of the network."""
        return self._factors[part].at(moment) if part in self._factors else 1.0

    def apply(self, optimizer: torch.optim.Optimizer, learning_rate: float, moment: Moment) -> None:
        """Sets the rates of an optimizer that was made of `groups`, and freezes or unfreezes each part."""
        for group in optimizer.param_groups:
            factor = self.factor(group["part"], moment)
            group["lr"] = learning_rate * factor
            for parameter in group["params"]:
                parameter.requires_grad_(factor > 0.0)
                if factor == 0.0:
                    parameter.grad = None


class RunningAverage(Generic[NetworkT]):
    """A running average of a network's weights, which races in its place (Polyak and Juditsky 1992).

    What a network would do greedily changes from one update to the next while it learns; what an average of its weights
    would do hardly does.

    Attributes:
        network: the average; the network that learns itself, where the share is 1.
    """

    def __init__(self, learning: NetworkT, share: float) -> None:
        """Begins at the weights of now; the average moves by `share`, in (0, 1], of the way each time."""
        self._learning, self._share = learning, share
        self.network = learning if share == 1.0 else copy.deepcopy(learning).requires_grad_(False)

    def begin(self) -> None:
        """Begins anew at the weights of now."""
        if self.network is not self._learning:
            self.network.load_state_dict(self._learning.state_dict())

    @torch.no_grad()
    def move(self) -> None:
        """Moves towards the weights of now; buffers, such as limits and power iterations, are taken as they are."""
        if self.network is self._learning:
            return
        for average, parameter in zip(self.network.parameters(), self._learning.parameters(), strict=True):
            average.lerp_(parameter, self._share)
        for kept, buffer in zip(self.network.buffers(), self._learning.buffers(), strict=True):
            kept.copy_(buffer)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns its weights; none where it is the network itself."""
        return {} if self.network is self._learning else weights_on_host(self.network)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Resumes from a `state_dict`."""
        if self.network is not self._learning:
            self.network.load_state_dict(dict(state))


class MetricMeans:
    """Sums metrics over gradient steps without waiting for each one's value."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, **values: Tensor) -> None:
        """Adds scalars of one gradient step."""
        for name, value in values.items():
            value = value.detach()
            self._sums[name] = self._sums[name] + value if name in self._sums else value
            self._counts[name] = self._counts.get(name, 0) + 1

    def result(self) -> dict[str, float]:
        """Returns the mean of every metric, and the largest number of steps as `gradient_steps`."""
        means = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        return means | {"gradient_steps": float(max(self._counts.values(), default=0))}


@torch.no_grad()
def inspect_training(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Returns norms of each parameter's weights, last gradient (after clipping) and moments in the optimizer.

    Only reads. Tags are those of Linesight and the peer (docs/runtime.md). `adaptive_lr_L2` is the norm of the learning
    rate over the root of the second moment, which is what the step of each single weight is scaled by (not yet
    corrected for the first steps).
    """
    found: dict[str, Tensor] = {}
    settings = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in network.named_parameters():
        if parameter not in settings:  # never learns
            continue
        found[f"Network/weights/{name}/L2"] = parameter.norm()
        if parameter.grad is not None:
            found[f"Gradients/by_layer/{name}/L2"] = parameter.grad.norm()
            found[f"Gradients/by_layer/{name}/Linf"] = parameter.grad.abs().max()
        state = optimizer.state.get(parameter, {})
        if "exp_avg_sq" in state:
            group, tag = settings[parameter], f"Network/optimizer/{name}"
            found[f"{tag}/exp_avg_L2"] = state["exp_avg"].norm()
            found[f"{tag}/exp_avg_sq_L2"] = state["exp_avg_sq"].norm()
            found[f"{tag}/adaptive_lr_L2"] = (group["lr"] / (state["exp_avg_sq"].sqrt() + group["eps"])).norm()
    return {tag: float(value) for tag, value in found.items()}
