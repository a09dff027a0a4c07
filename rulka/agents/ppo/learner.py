"""Proximal policy optimisation, Schulman et al. 2017, arXiv:1707.06347: how it learns.

Deviations from the paper and the peer: advantages and returns are estimated when an update begins, from the values of
the network as it then is, so that collectors that lag behind do not mix values of several versions; values are clipped
and weighed in units of the root mean square return, so that the settings do not depend on the scale of rewards; the
first update solves for the value head alone, so that a cloned policy is not ruined by advantages from an untrained
value; the encoder may sit out some epochs, whose image features are then computed once; an update ends when it has
moved the policy `max_kl` away.
Dimensions: M decisions of one update, T decisions of a block, N cars, F floats, E image features.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models.actor_critic import ActorCritic, PolicyAndValue
from rulka.agents.averaging import RunningAverage
from rulka.agents.initial_pull import InitialPull
from rulka.agents.metrics import MetricMeans, inspect_training
from rulka.agents.part_rates import PartRates
from rulka.agents.ppo.network import PARTS, fresh_network
from rulka.agents.ppo.rollout import Rollout, Segment, join_segments, keep_block, return_scale, rollout_with_gae
from rulka.agents.precision import Precision, autocast, faster_precision
from rulka.agents.spec import AgentError, AgentSpec, Experience
from rulka.buffers.experience import ExperienceBlock
from rulka.device import CPU, Generators, on_host, state_on_host, upload, weights_on_host
from rulka.losses.gae import Endings
from rulka.losses.least_squares import solve_linear_value
from rulka.losses.ppo import (
    clipped_policy_loss,
    clipped_value_loss,
    divergence,
    entropy_of,
    explained_variance,
    log_prob_of,
)
from rulka.params import PpoParams
from rulka.schedule import Moment

ADAM_EPSILON = 1e-5


class PpoLearner:
    """Gathers blocks until there are enough, learns from them for some epochs, and drops them.

    Attributes:
        network: the network that collectors act with.
        version: grows by one with every update.
        num_env_steps: decisions inserted so far, resets included.
    """

    def __init__(self, spec: AgentSpec[PpoParams], seed: int = 0, device: torch.device = CPU) -> None:
        self.network = fresh_network(spec, seed).to(device)
        self.version = 0
        self.num_env_steps = 0
        self._budget_share = 0.0
        params: PpoParams = spec.settings
        self._params = params
        self._device, self._generators = device, Generators(device, seed)
        self._first: ActorCritic | None = None  # the policy it began as, while the loss holds on to it
        self._average = RunningAverage(self.network, params.racer_tau)
        self._rates = PartRates(self.network, PARTS, params.rate_of)
        self._pull = InitialPull(self._rates.groups, params.pull_of)
        self._optimizer = torch.optim.Adam(self._rates.groups, lr=0.0, eps=ADAM_EPSILON, fused=True)
        self._pending: dict[int, Segment] = {}  # by the number of the block
        self._num_inserted = 0
        self._num_pending = 0
        self._num_versions_behind: list[int] = []
        self._num_samples = 0  # decisions learned from in this update, each as often as it was used
        self.precision: Precision = spec.precision
        if self.precision == "measured":
            self.precision = self._measure(spec)

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
        self._pending[self._num_inserted] = keep_block(block, self._params.gamma, self._device)
        self._num_inserted += 1
        self._num_pending += block.is_reset.size
        self.num_env_steps += block.is_reset.size
        self._num_versions_behind.append(self.version - version)

    def insert_demonstrations(self, blocks: Sequence[ExperienceBlock]) -> None:
        """Refuses: PPO learns only from what its own policy did."""
        message = f"PPO cannot learn from {len(blocks)} blocks of demonstrations; clone them instead"
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
        num_used = self.num_env_steps - self._num_pending
        return num_used + self._num_needed() + self._params.max_versions_behind * self._params.steps_per_update

    def update(self) -> dict[str, float] | None:
        """Runs all epochs over the pending blocks, or returns None while they are too few."""
        if self._num_pending < self._num_needed():
            return None
        segment = join_segments(list(self._pending.values()))
        means = MetricMeans()
        self._num_samples = 0
        self._set_learning_rate()
        rollout = self._solve_value(segment) if self._is_warming_up() else self._fit_policy(segment, means)
        self._average.move()
        self.version += 1
        metrics = self._facts(rollout) | means.result()
        self._drop_pending()
        return metrics

    def inspect(self) -> dict[str, float]:
        """Looks closer at gradients and weights; see `rulka.agents.metrics`."""
        return inspect_training(self.network, self._optimizer) if self.version else {}

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer, counters and random state; not the pending experience."""
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
        state = {
            "num_inserted": self._num_inserted,
            "num_pending": self._num_pending,
            "num_versions_behind": list(self._num_versions_behind),
        }
        pieces = {
            number: dict(zip(segment._fields, (column.numpy() for column in on_host(*segment)), strict=True))
            for number, segment in self._pending.items()
        }
        return Experience(state, pieces)

    def load_experience(self, experience: Experience) -> None:
        """Goes on with what `experience` returned."""
        state = experience.state
        self._num_inserted, self._num_pending = int(state["num_inserted"]), int(state["num_pending"])
        self._num_versions_behind = [int(behind) for behind in state["num_versions_behind"]]
        self._pending = {
            number: upload(Segment(**{name: torch.from_numpy(column) for name, column in piece.items()}), self._device)
            for number, piece in experience.pieces.items()
        }

    def forget_experience(self) -> None:
        """Drops what waits for the next update."""
        self._drop_pending()

    def _drop_pending(self) -> None:
        self._pending, self._num_pending, self._num_versions_behind = {}, 0, []

    def _is_warming_up(self) -> bool:
        return self.version == 0 and self._params.value_warmup_steps > 0

    def _num_needed(self) -> int:
        """Decisions that the next update waits for."""
        return self._params.value_warmup_steps if self._is_warming_up() else self._params.steps_per_update

    def _solve_value(self, segment: Segment) -> Rollout:
        """Solves for the value head, on frozen features; the policy does not change."""
        params, network = self._params, self.network
        hidden = self._in_parts(
            lambda image, floats: network.hidden(network.encode(image), floats).float(), segment.image, segment.floats
        )
        # In main memory: the sums are float64, which is slow on many GPUs and unknown to others.
        feature, reward, *ends = on_host(hidden, segment.reward, *segment.endings)
        solved = solve_linear_value(
            feature, reward, Endings(*ends), params.gamma, params.gae_lambda, params.value_warmup_ridge
        )
        with torch.no_grad():
            network.value_head.weight.copy_(solved.weight[None].float())
            network.value_head.bias.copy_(solved.bias.float())
            rollout = self._evaluate(segment, network.read_out(hidden.flatten(0, 1)))
        self._num_samples += len(rollout.action)
        return rollout

    def _fit_policy(self, segment: Segment, means: MetricMeans) -> Rollout:
        """Trains everything, the encoder in the last epochs only; stops early when the policy has moved too far."""
        network = self.network
        encoded = self._encode(segment.image, segment.floats)
        with torch.no_grad(), autocast(self.precision, self._device):
            decided = network.decide(encoded.flatten(0, 1), segment.floats.flatten(0, 1))
        rollout = self._evaluate(segment, decided)
        advantage = rollout.advantage
        standard = rollout._replace(advantage=(advantage - advantage.mean()) / (advantage.std() + 1e-8))
        if self._clone_weight() > 0.0:
            standard = standard._replace(clone_log_probs=self._first_log_probs(rollout))
        # What is behind the encoder comes first: until the encoder moves, its features need no other pass.
        features = standard._replace(image=encoded[:-1][~segment.is_reset])
        is_encoder_frozen = self._rates.factor("encoder", self.moment) == 0.0
        num_encoder_epochs = 0 if is_encoder_frozen else self._params.encoder_epochs
        if not self._run_epochs(features, network.decide, self._params.epochs - num_encoder_epochs, means):
            self._run_epochs(standard, network, num_encoder_epochs, means)
        return rollout

    def _evaluate(self, segment: Segment, decided: PolicyAndValue) -> Rollout:
        """Estimates advantages; `decided` has rows [(T + 1) N] for all observations of the segment."""
        cars = (-1, segment.is_reset.shape[1])
        by_car = PolicyAndValue(*(column.unflatten(0, cars) for column in decided))
        return rollout_with_gae(segment, by_car, self._params.gamma, self._params.gae_lambda)

    def _run_epochs(
        self,
        rollout: Rollout,
        decide: Callable[[Tensor, Tensor], PolicyAndValue],
        num_epochs: int,
        means: MetricMeans,
    ) -> bool:
        """Makes the gradient steps of some epochs and returns whether the policy has moved too far to go on.

        Args:
            rollout: what to learn from; `image` holds what `decide` takes first, images or their features.
            decide: the network, or its part behind the encoder.
            num_epochs: how often to go through the rollout.
            means: where metrics go.
        """
        scale = return_scale(rollout.returns)
        for index in self._minibatches(len(rollout.action), num_epochs):
            part = rollout.rows(index)
            self._num_samples += len(index)
            with autocast(self.precision, self._device):
                decided = decide(part.image, part.floats)
            if self._learn(decided, part, scale, means):
                return True
        return False

    def _learn(self, decided: PolicyAndValue, part: Rollout, scale: float, means: MetricMeans) -> bool:
        """Makes one gradient step and returns whether the policy has moved too far to go on."""
        params = self._params
        policy = clipped_policy_loss(
            log_prob_of(decided.logits, part.action), part.log_prob, part.advantage, params.clip
        )
        value = clipped_value_loss(decided.value / scale, part.value / scale, part.returns / scale, params.value_clip)
        entropy = entropy_of(decided.logits).mean()
        moved = divergence(part.first_log_probs, decided.logits.detach())
        loss = policy.loss + params.value_weight * value.loss - params.entropy_weight.at(self.moment) * entropy
        if len(part.clone_log_probs):
            clone_kl = divergence(part.clone_log_probs, decided.logits)
            loss = loss + self._clone_weight() * clone_kl
            means.add(clone_kl=clone_kl)
        means.add(
            loss=loss,
            policy_loss=policy.loss,
            value_loss=value.loss,
            entropy=entropy,
            approx_kl=policy.approx_kl,
            clip_fraction=policy.clip_fraction,
            value_clip_fraction=value.clip_fraction,
            update_kl=moved,
            grad_norm=self._step(loss),
        )
        return float(moved) > params.max_kl

    def _step(self, loss: Tensor) -> Tensor:
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self._params.max_grad_norm)
        self._optimizer.step()
        self._pull.apply(self._optimizer, self.moment)
        return norm

    def _minibatches(self, num_rows: int, num_epochs: int) -> Iterator[Tensor]:
        """Yields shuffled indices of nearly equal minibatches, epoch after epoch."""
        for _ in range(num_epochs):
            order = torch.randperm(num_rows, generator=self._generators.device, device=self._device)
            yield from order.tensor_split(max(1, round(num_rows / self._params.batch_size)))

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

    def _first_log_probs(self, rollout: Rollout) -> Tensor:
        """Returns what the policy that it began as thinks of all actions, [M, A]."""
        first = self._first
        assert first is not None
        logits = self._in_parts(
            lambda image, floats: first.decide(first.encode(image), floats).logits, rollout.image, rollout.floats
        )
        return logits.log_softmax(dim=1)

    def _set_learning_rate(self) -> None:
        self._rates.apply(self._optimizer, self._params.learning_rate.at(self.moment), self.moment)

    def _facts(self, rollout: Rollout) -> dict[str, float]:
        error = (rollout.value - rollout.returns) / return_scale(rollout.returns)
        return {
            "value_loss": 0.5 * float(error.square().mean()),  # before the update; the means of its steps replace it
            "explained_variance": explained_variance(rollout.value, rollout.returns),
            "value_mean": float(rollout.value.mean()),
            "return_mean": float(rollout.returns.mean()),
            "advantage_std": float(rollout.advantage.std()),
            "num_decisions": float(len(rollout.action)),
            "versions_behind": float(np.mean(self._num_versions_behind)),
            "learning_rate": self._params.learning_rate.at(self.moment),
            "entropy_weight": self._params.entropy_weight.at(self.moment),
            "num_samples": float(self._num_samples),
        }

    def _measure(self, spec: AgentSpec) -> Precision:
        rows = min(256, self._params.batch_size)
        shape = (rows, *spec.observation.image_shape)
        image = torch.zeros(shape, dtype=torch.uint8, device=self._device)
        floats = self.network.float_mean.expand(rows, -1)

        def run(precision: Precision) -> None:
            with autocast(precision, self._device):
                decided = self.network(image, floats)
            (decided.logits.sum() + decided.value.sum()).backward()
            self._optimizer.zero_grad(set_to_none=True)

        return faster_precision(run, self._device)
