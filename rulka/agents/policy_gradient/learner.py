"""How every policy learns from what it did itself: gathers blocks until there are enough, learns, drops them.

Dimensions: T decisions of a block, N cars, L frames seen at once, H x W pixels, F floats, E image features, P outputs.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from models.actor_critic import ActorCritic
from rulka.agents.averaging import RunningAverage
from rulka.agents.initial_pull import InitialPull
from rulka.agents.metrics import MetricMeans, inspect_training
from rulka.agents.part_rates import PartRates
from rulka.agents.policy_gradient.distributions import distribution_of
from rulka.agents.policy_gradient.network import PARTS, fresh_network
from rulka.agents.policy_gradient.segments import Segment, WaitingBlocks
from rulka.agents.precision import Precision, autocast, faster_precision
from rulka.agents.spec import AgentError, AgentSpec, Experience
from rulka.buffers.experience import ExperienceBlock
from rulka.device import CPU, Generators, state_on_host, weights_on_host
from rulka.params import PolicyGradientParams
from rulka.schedule import Moment

ADAM_EPSILON = 1e-5
SettingsT = TypeVar("SettingsT", bound=PolicyGradientParams)


class PolicyLearner(ABC, Generic[SettingsT]):
    """A `Learner` of `rulka.agents.spec`; what derives from it says how it learns from blocks, in `_learn`.

    Attributes:
        network: the network that collectors act with.
        version: grows by one with every update.
        num_env_steps: decisions inserted so far, resets included.
        precision: in which the network's body learns.
    """

    _params: SettingsT

    def __init__(self, spec: AgentSpec[SettingsT], seed: int = 0, device: torch.device = CPU) -> None:
        self.network = fresh_network(spec, seed).to(device)
        self.version = 0
        self.num_env_steps = 0
        self._budget_share = 0.0
        params = spec.settings
        self._params = params
        self._device, self._generators = device, Generators(device, seed)
        self._distribution = distribution_of(spec.actions)
        self._first: ActorCritic | None = None  # the policy it began as, while the loss holds on to it
        self._average = RunningAverage(self.network, params.racer_tau)
        self._rates = PartRates(self.network, PARTS, params.rate_of)
        self._pull = InitialPull(self._rates.groups, params.pull_of)
        self._optimizer = self._make_optimizer()
        self._waiting = WaitingBlocks(device)
        self.precision: Precision = spec.precision
        if self.precision == "measured":
            self.precision = self._measure(spec)

    @abstractmethod
    def _learn(self, segment: Segment, means: MetricMeans) -> dict[str, float]:
        """Learns from blocks side by side; returns metrics beside those that it adds to `means`."""

    @property
    def racer(self) -> ActorCritic:
        """The network itself, or a running average of its weights."""
        return self._average.network

    def load_network(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes initial weights."""
        self.network.load_state_dict(dict(tensors))
        self._first = copy.deepcopy(self.network).requires_grad_(False) if self._params.holds_on else None
        self._pull.begin()
        self._average.begin()

    def insert(self, block: ExperienceBlock, collector: int, version: int) -> None:
        """Copies what is learned from in a block."""
        del collector
        self._waiting.insert(block, version)
        self.num_env_steps += block.is_reset.size

    def insert_demonstrations(self, blocks: Sequence[ExperienceBlock]) -> None:
        """Refuses: a policy learns only from what it did itself."""
        message = f"a policy cannot learn from {len(blocks)} blocks of demonstrations; clone them instead"
        raise AgentError(message)

    def set_budget_share(self, share: float) -> None:
        """Tells which share of the run's budget is used, for schedules."""
        self._budget_share = share

    @property
    def moment(self) -> Moment:
        """How far learning has come."""
        return Moment(self.num_env_steps, self._budget_share)

    def num_allowed_env_steps(self) -> int:
        """As many decisions as are used up, and those of the update to come and of `max_versions_behind` more."""
        num_used = self.num_env_steps - self._waiting.num_decisions
        return num_used + self._num_needed() + self._params.max_versions_behind * self._params.steps_per_update

    def update(self) -> dict[str, float] | None:
        """Learns from the waiting blocks, or returns None while they are too few."""
        if self._waiting.num_decisions < self._num_needed():
            return None
        means = MetricMeans()
        rate = self._params.learning_rate.at(self.moment)
        self._rates.apply(self._optimizer, rate, self.moment)
        segment, version = self._waiting.take(self._num_taken())
        facts = self._learn(segment, means)
        facts["versions_behind"] = self.version - version
        self._average.move()
        self.version += 1
        facts |= {"learning_rate": rate, "entropy_weight": self._params.entropy_weight.at(self.moment)}
        return facts | means.result()

    def inspect(self) -> dict[str, float]:
        """Looks closer at gradients and weights; see `rulka.agents.metrics`."""
        return inspect_training(self.network, self._optimizer) if self.version else {}

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer, counters and random state; not the waiting experience."""
        return {
            "network": weights_on_host(self.network),
            "optimizer": state_on_host(self._optimizer.state_dict()),
            **self._generators.state_dict(),
            "version": self.version,
            "num_env_steps": self.num_env_steps,
            "first": {} if self._first is None else weights_on_host(self._first),
            "pull": self._pull.state_dict(),
            "average": self._average.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` returned."""
        self.network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._generators.load_state_dict(state)
        self.version, self.num_env_steps = int(state["version"]), int(state["num_env_steps"])
        if self._first is not None:
            self._first.load_state_dict(state["first"])
        self._pull.load_state_dict(state["pull"])
        self._average.load_state_dict(state["average"])

    def experience(self) -> Experience:
        """Blocks that wait for the next update; see `rulka.agents.spec.Learner`."""
        return self._waiting.experience()

    def load_experience(self, experience: Experience) -> None:
        """Goes on with what `experience` returned."""
        self._waiting.load_experience(experience)

    def forget_experience(self) -> None:
        """Drops what waits for the next update."""
        self._waiting.drop()

    def _make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self._rates.groups, lr=0.0, eps=ADAM_EPSILON, fused=True)

    def _num_needed(self) -> int:
        """Decisions that the next update waits for."""
        return self._params.steps_per_update

    def _num_taken(self) -> int:
        """Decisions that an update learns from: all that wait."""
        return self._waiting.num_decisions

    def _step(self, loss: Tensor) -> Tensor:
        """Makes a gradient step and returns the norm of the gradient."""
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self._params.max_grad_norm.at(self.moment))
        self._optimizer.step()
        self._pull.apply(self._optimizer, self.moment)
        return norm

    def _encode(self, image: Tensor, floats: Tensor) -> Tensor:
        """Returns image features [..., E] of images [..., L, H, W]; there are as many floats [..., F]."""
        return self._in_parts(lambda part, _: self.network.encode(part), image, floats)

    def _in_parts(self, compute: Callable[[Tensor, Tensor], Tensor], image: Tensor, floats: Tensor) -> Tensor:
        """Applies `compute` to images [..., L, H, W] and floats [..., F], some rows at a time and without gradients."""
        size, lead = self._params.batch_size, floats.shape[:-1]
        rows = zip(image.flatten(0, -4).split(size), floats.flatten(0, -2).split(size), strict=True)
        # In evaluation mode, as collectors act: in training mode spectral norms move on with every part.
        self.network.eval()
        with torch.no_grad(), autocast(self.precision, self._device):
            computed = torch.cat([compute(*part) for part in rows]).unflatten(0, lead)
        self.network.train()
        return computed

    def _clone_weight(self) -> float:
        return 0.0 if self._first is None else self._params.clone_weight.at(self.moment)

    def _first_outputs(self, image: Tensor, floats: Tensor) -> Tensor:
        """Returns what the policy that it began as puts out [M, P] for images [M, L, H, W] and floats [M, F]."""
        first = self._first
        assert first is not None
        return self._in_parts(lambda seen, beside: first.decide(first.encode(seen), beside).outputs, image, floats)

    def _measure(self, spec: AgentSpec[SettingsT]) -> Precision:
        rows = min(256, self._params.batch_size)
        shape = (rows, *spec.observation.image_shape)
        image = torch.zeros(shape, dtype=torch.uint8, device=self._device)
        floats = self.network.float_mean.expand(rows, -1)

        def run(precision: Precision) -> None:
            with autocast(precision, self._device):
                decided = self.network(image, floats)
            (decided.outputs.sum() + decided.value.sum()).backward()
            self._optimizer.zero_grad(set_to_none=True)

        return faster_precision(run, self._device)
