"""How every policy learns: gathers experience until there is enough, learns from it, drops it.

Dimensions: T decisions of a block, N cars, L frames seen at once, H x W pixels, F floats, E image features, P outputs.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from models.actor_critic import ActorCritic, PolicyAndValue
from rulka.agents.averaging import RunningAverage
from rulka.agents.metrics import MetricMeans, inspect_training
from rulka.agents.part_rates import PartRates
from rulka.agents.policy_gradient.distributions import distribution_of
from rulka.agents.policy_gradient.network import PARTS, fresh_network
from rulka.agents.policy_gradient.segments import Segment, WaitingBlocks
from rulka.agents.precision import Precision, autocast, faster_precision
from rulka.agents.ranks import ALONE, Ranks, average_gradients, fewest, seed_of_rank
from rulka.agents.spec import AgentError, AgentSpec, Experience
from rulka.buffers.experience import ExperienceBlock
from rulka.device import CPU, Generators, state_on_host, weights_on_host
from rulka.params import EpochsParams, PolicyGradientParams, PolicyParams
from rulka.schedule import Moment

ADAM_EPSILON = 1e-5


class Waiting(Protocol):
    """Experience that waits to be learned from.

    Attributes:
        num_decisions: that can be learned from now.
    """

    num_decisions: int

    def insert(self, block: ExperienceBlock, collector: int, version: int) -> None:
        """Copies what is learned from in a block, made by a collector with weights of a version."""
        ...

    def forget(self) -> None:
        """Forgets everything."""
        ...

    def experience(self) -> Experience:
        """Returns all of it for a checkpoint; see `rulka.agents.spec.Learner`."""
        ...

    def load_experience(self, experience: Experience) -> None:
        """Goes on with what `experience` returned."""
        ...


class Rows(Protocol):
    """Decisions to learn from: images [M, L, H, W] or their features [M, E], floats [M, F], and what else is known."""

    @property
    def image(self) -> Tensor:
        """Images, or their features."""
        ...

    @property
    def floats(self) -> Tensor:
        """Floats."""
        ...

    def rows(self, index: Tensor) -> Self:
        """Returns the decisions at `index`."""
        ...


RowsT = TypeVar("RowsT", bound=Rows)
WaitingT = TypeVar("WaitingT", bound=Waiting)
LearnedT = TypeVar("LearnedT", bound=PolicyParams)
SettingsT = TypeVar("SettingsT", bound=PolicyGradientParams)


class BasePolicyLearner(ABC, Generic[LearnedT, WaitingT]):
    """A `Learner` of `rulka.agents.spec`; what derives from it says what waits, and how it learns from that.

    Attributes:
        network: the network that collectors act with.
        version: grows by one with every update.
        num_env_steps: decisions inserted so far, resets included.
        precision: in which the network's body learns.
    """

    OWN_STATE: ClassVar[tuple[str, ...]] = ("generator", "device_generator", "num_env_steps")

    _params: LearnedT

    def __init__(self, spec: AgentSpec[LearnedT], seed: int = 0, device: torch.device = CPU) -> None:
        self.network = fresh_network(spec, seed).to(device)
        self.version = 0
        self.num_env_steps = 0
        self._budget_share, self._env_steps_elsewhere = 0.0, 0
        self._ranks: Ranks = ALONE
        self._seed = seed
        params = spec.settings
        self._params = params
        self._device, self._generators = device, Generators(device, seed)
        self._distribution = distribution_of(spec.actions)
        self._first = self._as_it_is()
        self._average = RunningAverage(self.network, params.racer_tau)
        self._rates = PartRates(self.network, PARTS, params.rate_of)
        self._optimizer = self._make_optimizer()
        self._waiting = self._make_waiting()
        self.precision: Precision = spec.precision
        if self.precision == "measured":
            self.precision = self._measure(spec)

    @abstractmethod
    def _make_waiting(self) -> WaitingT:
        """Returns what experience waits in."""

    @abstractmethod
    def _learn_from_waiting(self, means: MetricMeans) -> dict[str, float]:
        """Takes what it learns from out of what waits; returns metrics beside those that it adds to `means`."""

    @property
    def racer(self) -> ActorCritic:
        """The network itself, or a running average of its weights."""
        return self._average.network

    def load_network(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes initial weights."""
        self.network.load_state_dict(dict(tensors))
        self._first = self._as_it_is()
        self._average.begin()

    def insert(self, block: ExperienceBlock, collector: int, version: int) -> None:
        """Copies what is learned from in a block."""
        self._waiting.insert(block, collector, version)
        self.num_env_steps += block.is_reset.size

    def insert_demonstrations(self, blocks: Sequence[ExperienceBlock]) -> None:
        """Refuses: a policy learns only from what it did itself."""
        message = f"a policy cannot learn from {len(blocks)} blocks of demonstrations; clone them instead"
        raise AgentError(message)

    def join(self, ranks: Ranks) -> None:
        """Learns as one with others from now on; see `rulka.agents.spec.LearnsInRanks`."""
        self._ranks = ranks
        self._generators.seed(seed_of_rank(self._seed, ranks.rank))

    def set_budget_share(self, share: float, env_steps_elsewhere: int = 0) -> None:
        """Tells which share of the run's budget is used, and what other ranks have inserted, for schedules."""
        self._budget_share, self._env_steps_elsewhere = share, env_steps_elsewhere

    @property
    def moment(self) -> Moment:
        """How far learning has come."""
        return Moment(self.num_env_steps + self._env_steps_elsewhere, self._budget_share)

    @property
    def allowed_lag(self) -> int:
        """As many updates as collectors may run ahead."""
        return self._params.max_versions_behind

    def num_allowed_env_steps(self) -> int:
        """As many decisions as are used up, and those of the update to come and of `max_versions_behind` more."""
        num_used = self.num_env_steps - self._waiting.num_decisions
        return num_used + self._num_needed() + self._params.max_versions_behind * self._params.steps_per_update

    def is_ready(self) -> bool:
        """Whether enough waits for an update."""
        return self._waiting.num_decisions >= self._num_needed()

    def update(self) -> dict[str, float] | None:
        """Learns from what waits, or returns None while that is too little."""
        if not self.is_ready():
            return None
        means = MetricMeans()
        rate = self._params.learning_rate.at(self.moment)
        self._rates.apply(self._optimizer, rate, self.moment)
        facts = self._learn_from_waiting(means)
        self._average.move()
        self.version += 1
        return facts | {"learning_rate": rate} | means.result()

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
        self._average.load_state_dict(state["average"])

    def experience(self) -> Experience:
        """What waits for the next update; see `rulka.agents.spec.Learner`."""
        return self._waiting.experience()

    def load_experience(self, experience: Experience) -> None:
        """Goes on with what `experience` returned."""
        self._waiting.load_experience(experience)

    def forget_experience(self) -> None:
        """Drops what waits for the next update."""
        self._waiting.forget()

    def _as_it_is(self) -> ActorCritic | None:
        """Returns a copy of the policy that it begins as, where the loss holds on to that."""
        if not self._params.holds_on:
            return None
        return copy.deepcopy(self.network).requires_grad_(False).eval()  # in training mode spectral norms would move on

    def _make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self._rates.groups, lr=0.0, eps=ADAM_EPSILON, fused=True)

    def _num_needed(self) -> int:
        """Decisions that the next update waits for."""
        return self._params.steps_per_update

    def _step(self, loss: Tensor, num_rows: int) -> Tensor:
        """Makes a gradient step and returns the norm of the gradient; the loss is a mean over so many rows."""
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        average_gradients(self.network, num_rows, self._ranks)
        return self._apply_gradient()

    def _apply_gradient(self) -> Tensor:
        """Moves the weights by the gradient that is there and returns its norm."""
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self._params.max_grad_norm.at(self.moment))
        self._optimizer.step()
        return norm

    def _run_epochs(
        self, features: RowsT, whole: RowsT, passes: EpochsParams, learn_from: Callable[[PolicyAndValue, RowsT], bool]
    ) -> int:
        """Makes the gradient steps of all epochs, those of the encoder last.

        Args:
            features: what to learn from, with the features of its images, which serve until the encoder moves.
            whole: the same with the images.
            passes: how many epochs.
            learn_from: makes a gradient step from what the network says of some decisions, and returns whether that
                was the last one.

        Returns:
            Decisions learned from, each as often as it was used.
        """
        num_encoder_epochs = self._num_encoder_epochs(passes)
        parts = (
            (features, self.network.decide, passes.epochs - num_encoder_epochs),
            (whole, self.network, num_encoder_epochs),
        )
        num_samples = 0
        for rows, decide, num_epochs in parts:
            for index in self._minibatches(len(rows.floats), self._params.batch_size, num_epochs):
                part = rows.rows(index)
                num_samples += len(index)
                with autocast(self.precision, self._device):
                    decided = decide(part.image, part.floats)
                if learn_from(decided, part):
                    return num_samples
        return num_samples

    def _num_encoder_epochs(self, passes: EpochsParams) -> int:
        return 0 if self._rates.factor("encoder", self.moment) == 0.0 else passes.encoder_epochs

    def _minibatches(self, num_rows: int, size: int, num_epochs: int) -> Iterator[Tensor]:
        """Yields shuffled indices of nearly equal minibatches of about a size, epoch after epoch.

        Ranks, which have different numbers of rows, have equally many minibatches.
        """
        mean_rows = float(self._ranks.total(torch.tensor(float(num_rows), device=self._device))) / self._ranks.size
        num_batches = max(1, min(round(mean_rows / size), fewest(num_rows, self._ranks)))
        for _ in range(num_epochs):
            order = torch.randperm(num_rows, generator=self._generators.device, device=self._device)
            yield from order.tensor_split(num_batches)

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

    def _first_outputs(self, image: Tensor, floats: Tensor) -> Tensor:
        """Returns what the policy that it began as puts out [M, P] for images [M, L, H, W] and floats [M, F]."""
        first = self._first
        assert first is not None
        return self._in_parts(lambda seen, beside: first.decide(first.encode(seen), beside).outputs, image, floats)

    def _measure(self, spec: AgentSpec[LearnedT]) -> Precision:
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


class PolicyLearner(BasePolicyLearner[SettingsT, WaitingBlocks]):
    """Learns from whole blocks; what derives from it says how, in `_learn`."""

    @abstractmethod
    def _learn(self, segment: Segment, means: MetricMeans) -> dict[str, float]:
        """Learns from blocks side by side; returns metrics beside those that it adds to `means`."""

    def _num_taken(self) -> int:
        """Decisions that an update learns from: all that wait."""
        return self._waiting.num_decisions

    def _make_waiting(self) -> WaitingBlocks:
        return WaitingBlocks(self._device)

    def _learn_from_waiting(self, means: MetricMeans) -> dict[str, float]:
        segment, version = self._waiting.take(self._num_taken())
        facts = {
            "versions_behind": self.version - version,
            "entropy_weight": self._params.entropy_weight.at(self.moment),
        }
        return facts | self._learn(segment, means)

    def _clone_weight(self) -> float:
        return 0.0 if self._first is None else self._params.clone_weight.at(self.moment)
