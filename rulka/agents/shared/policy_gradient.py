"""Base classes of policy learners: they gather experience until there is enough, learn from it, and drop it.

With a value (`CriticLearner`), the first update may solve for it: a cloned policy has none, and advantages from an
untrained value would ruin the policy.
Dimensions: T decisions of a block, N cars, M decisions to learn from, L frames seen at once, H x W pixels, F floats,
E image features, K actions of a decision, P outputs of the policy.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from models.actor_critic import ActorCritic, PolicyAndValue
from rulka.agents.shared.advantages import Endings
from rulka.agents.shared.diagnostics import MetricMeans
from rulka.agents.shared.distributions import distribution_of
from rulka.agents.shared.learner import Learner
from rulka.agents.shared.linear_value import solve_linear_value
from rulka.agents.shared.networks import ACTOR_CRITIC_PARTS, build_actor_critic
from rulka.agents.shared.params import ClippedParams, CriticParams, EpochsParams, PolicyParams
from rulka.agents.shared.reductions import ALONE, Ranks, fewest, mean_of, reduce_gradients
from rulka.agents.shared.rollout_queue import QueuedBlocks, Segment
from rulka.agents.shared.spec import AgentSpec
from rulka.buffers.experience import ExperienceBlock, StoredExperience
from rulka.machine.device import CPU, on_host, weights_on_host
from rulka.machine.precision import autocast

ADAM_EPSILON = 1e-5
RIDGE = 1e-3
"""Ridge regularisation of the solved value head, as a share of the mean feature variance."""
SMALLEST_RETURN = 1e-3
"""Floor of the root mean square return, the unit of values."""


_NOTHING = torch.empty(0)


class Rollout(NamedTuple):
    """Decisions to learn from, without resets, evaluated at the start of the update.

    Columns that an algorithm does not use are [0].

    Attributes:
        image: [M, L, H, W] uint8; or image features [M, E] while the encoder is frozen.
        floats: [M, F] float32 raw.
        action: [M, K] int64; float32 if decisions are continuous.
        log_prob: [M] float32 of the action under the policy that acted.
        advantage: [M] float32.
        outputs: [M, P] float32 of the policy at the start of the update.
        initial_outputs: [M, P] float32 of the initial policy; [0] without a KL penalty.
        value: [M] float32 at the start of the update.
        returns: [M] float32 targets of the value.
        weight: [M] float32 weights in the loss; their mean is 1.
    """

    image: Tensor
    floats: Tensor
    action: Tensor
    log_prob: Tensor
    advantage: Tensor
    outputs: Tensor
    initial_outputs: Tensor = _NOTHING
    value: Tensor = _NOTHING
    returns: Tensor = _NOTHING
    weight: Tensor = _NOTHING

    def rows(self, index: Tensor) -> Rollout:
        """Returns the decisions at `index`."""
        return Rollout(*(column[index] if len(column) else column for column in self))


AnyRows = TypeVar("AnyRows")
QueueT = TypeVar("QueueT", bound=QueuedBlocks)
LearnedT = TypeVar("LearnedT", bound=PolicyParams)
CriticT = TypeVar("CriticT", bound=CriticParams)


class PolicyLearner(Learner[LearnedT, ActorCritic], Generic[LearnedT, QueueT]):
    """Learns a policy from the outcomes of its own actions; experience is used in one update only."""

    def __init__(self, spec: AgentSpec[LearnedT], seed: int = 0, device: torch.device = CPU) -> None:
        network = spec.fresh_network(build_actor_critic, seed).to(device)
        super().__init__(spec, network, ACTOR_CRITIC_PARTS, seed, device)
        self._distribution = distribution_of(spec.actions)
        self._initial_policy = self._frozen_copy()
        self._optimizer = torch.optim.Adam(self._rates.groups, lr=0.0, eps=ADAM_EPSILON, fused=True)
        self._end = torch.zeros(2, device=device)  # 1 once the policy has moved too far; number of steps skipped since
        if device.type != "cpu":
            # Fused optimizers skip a step where this is 1, as `torch.amp.GradScaler` wants it.
            self._optimizer.found_inf = self._end[0]  # pyright: ignore[reportAttributeAccessIssue]
        self._queue = self._make_queue()

    @abstractmethod
    def _make_queue(self) -> QueueT:
        """Returns an empty store for waiting experience."""

    @abstractmethod
    def _learn_from_queue(self, means: MetricMeans) -> Mapping[str, Tensor | float]:
        """Removes waiting experience and learns from it; returns metrics besides those added to `means`."""

    def load_network(self, tensors: Mapping[str, Tensor]) -> None:
        """Loads initial weights, also into the initial policy that the loss refers to."""
        super().load_network(tensors)
        self._initial_policy = self._frozen_copy()

    def insert(self, block: ExperienceBlock, collector: int, version: int) -> None:
        """Stores a block (copied) until an update learns from it."""
        self._queue.insert(block, collector, version)
        self.num_env_steps += block.is_reset.size

    @property
    def allowed_lag(self) -> int:
        """`max_versions_behind`, by which collectors may run ahead."""
        return self._params.max_versions_behind

    def num_allowed_env_steps(self) -> int:
        """Decisions consumed, those of the next update, and those of `max_versions_behind` more."""
        num_used = self.num_env_steps - self._queue.num_decisions
        return num_used + self._num_needed() + self._params.max_versions_behind * self._params.steps_per_update

    def is_ready(self) -> bool:
        """True if enough decisions wait for an update."""
        return self._queue.num_decisions >= self._num_needed()

    def update(self) -> dict[str, float] | None:
        """Learns from the waiting experience; returns None if not `is_ready()`."""
        if not self.is_ready():
            return None
        means = MetricMeans()
        rate = self._params.learning_rate.at(self.moment)
        self._rates.apply(self._optimizer, rate, self.moment)
        means.note(self._learn_from_queue(means))
        means.note({"learning_rate": rate})
        self._average.move()
        self.version += 1
        return means.result()

    def state_dict(self) -> dict[str, Any]:
        """Returns all but the experience."""
        initial = {} if self._initial_policy is None else weights_on_host(self._initial_policy)
        return super().state_dict() | {"initial_policy": initial}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a `state_dict`; `load_experience` or `forget_experience` has to follow."""
        super().load_state_dict(state)
        if self._initial_policy is not None:
            self._initial_policy.load_state_dict(state["initial_policy"])

    def experience(self) -> StoredExperience:
        """Returns the experience that waits for the next update."""
        return self._queue.experience()

    def load_experience(self, experience: StoredExperience) -> None:
        """Resumes from an `experience`; copies it."""
        self._queue.load_experience(experience)

    def forget_experience(self) -> None:
        """Drops the experience that waits for the next update."""
        self._queue.forget()

    def _frozen_copy(self) -> ActorCritic | None:
        """Returns a frozen copy of the policy; None if the loss never refers to the initial policy."""
        if not self._params.needs_initial_policy:
            return None
        return copy.deepcopy(self.network).requires_grad_(False).eval()  # training mode would update spectral norms

    def _num_needed(self) -> int:
        """Decisions that the next update waits for."""
        return self._params.steps_per_update

    def _step(self, loss: Tensor, num_rows: int) -> Tensor:
        """Runs a gradient step on a loss averaged over `num_rows` rows; returns the norm of the gradient."""
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        reduce_gradients(self.network, self._ranks, num_rows)
        return self._apply_gradient()

    def _apply_gradient(self) -> Tensor:
        """Clips the accumulated gradient and steps the optimizer; returns the norm before clipping."""
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self._params.max_grad_norm.at(self.moment))
        self._optimizer.step()
        return norm

    def _run_epochs(
        self,
        rollout: Rollout,
        encoded: Tensor,
        passes: ClippedParams,
        means: MetricMeans,
        learn_from: Callable[[PolicyAndValue, Rollout], Tensor],
    ) -> int:
        """Runs the gradient steps of all epochs, those that train the encoder last.

        The step that finds the policy beyond `max_kl` is the last one. Only on the CPU every step can be looked at
        without waiting: elsewhere the optimizer skips the rest of the epoch, after which the host looks.

        Args:
            rollout: experience, with images.
            encoded: [M, E] features of the images, used until the encoder trains.
            passes: number of epochs, and `max_kl`.
            means: metrics, of which those of skipped steps are dropped.
            learn_from: runs a gradient step on the network's outputs for a minibatch; returns how far the policy had
                moved before it.

        Returns:
            Number of decisions learned from, counting repeats.
        """
        max_kl, sizes = passes.max_kl.at(self.moment), list[int]()
        has_ended, num_skipped = self._end.zero_()
        for rows, decide, num_epochs in self._passes(rollout._replace(image=encoded), rollout, passes):
            for index, ends_epoch in self._minibatches(len(rows.floats), self._params.batch_size, num_epochs):
                part = rows.rows(index)
                sizes.append(len(index))
                with autocast(self.precision, self._device):
                    decided = decide(part.image, part.floats)
                moved = learn_from(decided, part)
                num_skipped += has_ended
                has_ended.clamp_(min=(moved > max_kl).to(has_ended.dtype))
                if (ends_epoch or self._device.type == "cpu") and has_ended:
                    num_made = len(sizes) - int(num_skipped)
                    means.keep(num_made)
                    return sum(sizes[:num_made])
        return sum(sizes)

    def _passes(
        self, features: AnyRows, whole: AnyRows, passes: EpochsParams
    ) -> tuple[tuple[AnyRows, Callable[[Tensor, Tensor], PolicyAndValue], int], ...]:
        """Returns (rows, forward function, number of epochs), with the encoder frozen and then with it training."""
        num_encoder_epochs = 0 if self._rates.factor("encoder", self.moment) == 0.0 else passes.encoder_epochs
        return (
            (features, self.network.decide, passes.epochs - num_encoder_epochs),
            (whole, self.network, num_encoder_epochs),
        )

    def _minibatches(self, num_rows: int, size: int, num_epochs: int) -> Iterator[tuple[Tensor, bool]]:
        """Yields shuffled indices of nearly equal minibatches of about `size` rows, and True for the last of an epoch.

        Ranks have equally many minibatches, although their numbers of rows differ.
        """
        mean_rows = float(num_rows)
        if self._ranks.size > 1:
            mean_rows = float(self._ranks.total(torch.tensor(mean_rows, device=self._device))) / self._ranks.size
        num_batches = max(1, min(round(mean_rows / size), fewest(num_rows, self._ranks)))
        for _ in range(num_epochs):
            order = torch.randperm(num_rows, generator=self._generators.device, device=self._device)
            *others, last = order.tensor_split(num_batches)
            yield from ((index, False) for index in others)
            yield last, True

    def _encode(self, image: Tensor, floats: Tensor) -> Tensor:
        """Returns features [..., E] of images [..., L, H, W]; floats [..., F] have the same leading dimensions."""
        return self._in_parts(lambda part, _: self.network.encode(part), image, floats)

    def _in_parts(self, compute: Callable[[Tensor, Tensor], Tensor], image: Tensor, floats: Tensor) -> Tensor:
        """Applies `compute` to images [..., L, H, W], or features [..., E], and floats [..., F], without gradients.

        Runs on `batch_size` rows at a time.
        """
        size, lead = self._params.batch_size, floats.shape[:-1]
        rows = zip(*(column.flatten(0, len(lead) - 1).split(size) for column in (image, floats)), strict=True)
        # Evaluation mode, as in collectors: training mode would update spectral norms with every part.
        self.network.eval()
        with torch.no_grad(), autocast(self.precision, self._device):
            computed = torch.cat([compute(*part) for part in rows]).unflatten(0, lead)
        self.network.train()
        return computed

    def _initial_outputs(self, image: Tensor, floats: Tensor) -> Tensor:
        """Returns the outputs [M, P] of the initial policy for images [M, L, H, W] and floats [M, F]."""
        initial = self._initial_policy
        assert initial is not None
        return self._in_parts(lambda seen, beside: initial.decide(initial.encode(seen), beside).outputs, image, floats)


class CriticLearner(PolicyLearner[CriticT, QueuedBlocks]):
    """Learns a policy and its value from whole blocks; subclasses implement `_learn`."""

    @abstractmethod
    def _learn(self, segment: Segment, num_kept: int, means: MetricMeans) -> dict[str, Tensor | float]:
        """Learns from blocks concatenated along cars, with `num_kept` decisions that are no resets.

        Returns metrics besides those added to `means`.

        If `_is_warming_up`, it only calls `_solve_value`.
        """

    def _make_queue(self) -> QueuedBlocks:
        return QueuedBlocks(self._device)

    def _num_taken(self) -> int:
        """Decisions that an update consumes: all that wait."""
        return self._queue.num_decisions

    def _num_needed(self) -> int:
        return self._params.value_warmup_steps if self._is_warming_up() else super()._num_needed()

    def _learn_from_queue(self, means: MetricMeans) -> dict[str, Tensor | float]:
        segment, num_kept, version = self._queue.take(self._num_taken())
        facts = {
            "versions_behind": self.version - version,
            "entropy_weight": self._params.entropy_weight.at(self.moment),
        }
        return facts | self._learn(segment, num_kept, means)

    def _is_warming_up(self) -> bool:
        return self.version == 0 and self._params.value_warmup_steps > 0

    def _solve_value(self, segment: Segment, gae_lambda: float) -> PolicyAndValue:
        """Solves for the value head on frozen features; the policy does not change.

        Args:
            segment: the experience.
            gae_lambda: lambda of the returns that the value is fitted to.

        Returns:
            The network's outputs with the new value head, with rows [(T + 1) N] for all observations.
        """
        network, discount = self.network, self._params.gamma.at(self.moment)
        hidden = self._in_parts(
            lambda image, floats: network.hidden(network.encode(image), floats).float(), segment.image, segment.floats
        )
        # In main memory: the sums are float64, which is slow on many GPUs and unsupported on others.
        feature, reward, *ends = on_host(hidden, segment.shaped_reward(discount), *segment.endings)
        ranks = self._ranks
        total = None if ranks.size == 1 else lambda numbers: on_host(ranks.total(numbers.to(self._device)))[0]
        weight, bias = solve_linear_value(feature, reward, Endings(*ends), discount, gae_lambda, RIDGE, total)
        with torch.no_grad():
            network.value_head.weight.copy_(weight[None].float())
            network.value_head.bias.copy_(bias.float())
            if total is not None:  # machines may solve the same equations with different last bits
                for tensor in (network.value_head.weight, network.value_head.bias):
                    tensor.copy_(ranks.total(tensor if ranks.rank == 0 else torch.zeros_like(tensor)))
            return network.read_out(hidden.flatten(0, 1))


def return_scale(returns: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """Returns the root mean square [] of the returns [M] of all ranks, the unit for clipping and weighting values."""
    return mean_of(returns.square(), ranks).sqrt().clamp(min=SMALLEST_RETURN)


class PolicyLoss(NamedTuple):
    """Scalars; only `loss` carries a gradient.

    Attributes:
        loss: the negative clipped surrogate.
        approx_kl: mean of (r - 1) - log r, an estimate of the KL divergence from the policy that acted, in nats; never
            negative.
        clip_fraction: share of samples whose ratio lies outside the clip.
    """

    loss: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def clipped_policy_loss(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip: float, weight: Tensor | None = None
) -> PolicyLoss:
    """Negative clipped surrogate of PPO and GRPO, flat once the ratio has improved beyond [1 - clip, 1 + clip].

    Args:
        log_prob: [M] of the actions taken, under the policy that learns.
        old_log_prob: [M] of the same actions, under the policy that acted.
        advantage: [M] usually normalised; no gradient flows into it.
        clip: half-width of the trust region of the ratio; positive.
        weight: [M] of each action in the mean; None weighs them equally.
    """
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
    gain = torch.minimum(ratio * advantage, clipped * advantage)
    loss = -(gain if weight is None else weight * gain).mean()
    with torch.no_grad():
        approx_kl = (ratio - 1.0 - log_ratio).mean()
        clip_fraction = ((ratio - 1.0).abs() > clip).float().mean()
    return PolicyLoss(loss, approx_kl, clip_fraction)
