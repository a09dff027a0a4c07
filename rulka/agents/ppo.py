"""Proximal policy optimisation, Schulman et al. 2017, arXiv:1707.06347: how it learns.

Deviations from the paper and the peer: values are clipped and weighed in units of the root mean square return, so
that the settings do not depend on the scale of rewards; the first updates train the value head alone, so that a
cloned policy is not ruined by advantages from an untrained value; the encoder may sit out some epochs, whose image
features are then computed once; an update ends when the policy has moved `max_kl` away.
Dimensions: M decisions of one update, N cars, F floats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models.actor_critic import PolicyAndValue
from rulka.agents.from_spec import build_ppo
from rulka.agents.inspection import inspect_training
from rulka.agents.metrics import MetricMeans
from rulka.agents.rollouts import Rollout, evaluate_block, join_rollouts, return_scale
from rulka.agents.spec import AgentError, AgentSpec, Experience
from rulka.agents.speed import Precision, computing_in, faster_precision
from rulka.buffers.experience import ExperienceBlock
from rulka.losses.ppo import clipped_policy_loss, clipped_value_loss, entropy_of, explained_variance, log_prob_of

ADAM_EPSILON = 1e-5


class PpoLearner:
    """Gathers blocks until there are enough, learns from them for some epochs, and drops them.

    Attributes:
        network: the network that collectors act with.
        version: grows by one with every update.
        num_env_steps: decisions inserted so far, resets included.
    """

    def __init__(self, spec: AgentSpec, seed: int = 0) -> None:
        self.network = build_ppo(spec, seed)
        self.version = 0
        self.num_env_steps = 0
        self._params = spec.ppo
        self._generator = torch.Generator().manual_seed(seed)
        self._optimizer = torch.optim.Adam(self.network.parameters(), lr=0.0, eps=ADAM_EPSILON, fused=True)
        self._pending: dict[int, Rollout] = {}  # by the number of the block
        self._num_inserted = 0
        self._num_pending = 0
        self._num_versions_behind: list[int] = []
        self._num_samples = 0  # decisions learned from in this update, each as often as it was used
        self.precision: Precision = spec.precision
        if self.precision == "measured":
            self.precision = self._measure(spec)

    def load_network(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes initial weights."""
        self.network.load_state_dict(dict(tensors))

    def insert(self, block: ExperienceBlock, collector: int, version: int) -> None:
        """Copies a block's decisions, with the advantages of their actions."""
        del collector
        with torch.inference_mode(), computing_in(self.precision):
            last_value = self.network(torch.from_numpy(block.image[-1]), torch.from_numpy(block.floats[-1])).value
        rollout = evaluate_block(block, last_value.numpy(), self._params.gamma, self._params.gae_lambda)
        self._pending[self._num_inserted] = rollout
        self._num_inserted += 1
        self._num_pending += block.is_reset.size
        self.num_env_steps += block.is_reset.size
        self._num_versions_behind.append(self.version - version)

    def insert_demonstrations(self, blocks: Sequence[ExperienceBlock]) -> None:
        """Refuses: PPO learns only from what its own policy did."""
        message = f"PPO cannot learn from {len(blocks)} blocks of demonstrations; clone them instead"
        raise AgentError(message)

    def num_allowed_env_steps(self) -> int:
        """As many decisions as are used up, and those of the update to come and of `max_versions_behind` more."""
        num_used = self.num_env_steps - self._num_pending
        return num_used + (1 + self._params.max_versions_behind) * self._params.steps_per_update

    def update(self) -> dict[str, float] | None:
        """Runs all epochs over the pending blocks, or returns None while they are too few."""
        if self._num_pending < self._params.steps_per_update:
            return None
        rollout = join_rollouts(list(self._pending.values()))
        means = MetricMeans()
        self._num_samples = 0
        self._set_learning_rate()
        if self.version < self._params.value_warmup_updates:
            self._fit_value(rollout, means)
        else:
            self._fit_policy(rollout, means)
        self.version += 1
        metrics = means.result() | self._facts(rollout)
        self._drop_pending()
        return metrics

    def inspect(self) -> dict[str, float]:
        """Looks closer at gradients and weights; see `rulka.agents.inspection`."""
        return inspect_training(self.network, self._optimizer) if self.version else {}

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer, counters and random state; not the pending experience."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "generator": self._generator.get_state(),
            "version": self.version,
            "num_env_steps": self.num_env_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` returned."""
        self.network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._generator.set_state(state["generator"])
        self.version, self.num_env_steps = int(state["version"]), int(state["num_env_steps"])

    def experience(self) -> Experience:
        """Blocks that wait for the next update; see `rulka.agents.spec.Learner`."""
        state = {
            "num_inserted": self._num_inserted,
            "num_pending": self._num_pending,
            "num_versions_behind": list(self._num_versions_behind),
        }
        pieces = {
            number: {name: column.numpy() for name, column in rollout._asdict().items()}
            for number, rollout in self._pending.items()
        }
        return Experience(state, pieces)

    def load_experience(self, experience: Experience) -> None:
        """Goes on with what `experience` returned."""
        state = experience.state
        self._num_inserted, self._num_pending = int(state["num_inserted"]), int(state["num_pending"])
        self._num_versions_behind = [int(behind) for behind in state["num_versions_behind"]]
        self._pending = {
            number: Rollout(**{name: torch.from_numpy(column) for name, column in piece.items()})
            for number, piece in experience.pieces.items()
        }

    def forget_experience(self) -> None:
        """Drops what waits for the next update."""
        self._drop_pending()

    def _drop_pending(self) -> None:
        self._pending, self._num_pending, self._num_versions_behind = {}, 0, []

    def _fit_value(self, rollout: Rollout, means: MetricMeans) -> None:
        """Trains the value head alone, on features that stand still; the policy does not change."""
        scale = return_scale(rollout.returns)
        hidden = self._in_chunks(
            lambda part: self.network.hidden(self.network.encode(part.image), part.floats).float(), rollout
        )
        for index in self._minibatches(len(rollout.action), self._params.epochs):
            self._num_samples += len(index)
            error = (self.network.read_value(hidden[index]) - rollout.returns[index]) / scale
            loss = 0.5 * error.square().mean()
            means.add(value_loss=loss, grad_norm=self._step(loss))

    def _fit_policy(self, rollout: Rollout, means: MetricMeans) -> None:
        """Trains everything, the encoder in the first epochs only; stops early when the policy has moved too far."""
        standard = (rollout.advantage - rollout.advantage.mean()) / (rollout.advantage.std() + 1e-8)
        rollout = rollout._replace(advantage=standard)
        scale = return_scale(rollout.returns)
        num_encoder_epochs, num_epochs = self._params.encoder_epochs, self._params.epochs
        if (
            self._run_epochs(rollout, self.network, num_encoder_epochs, scale, means)
            or num_encoder_epochs == num_epochs
        ):
            return
        encoded = rollout._replace(image=self._in_chunks(lambda part: self.network.encode(part.image), rollout))
        self._run_epochs(encoded, self.network.decide, num_epochs - num_encoder_epochs, scale, means)

    def _run_epochs(
        self,
        rollout: Rollout,
        decide: Callable[[Tensor, Tensor], PolicyAndValue],
        num_epochs: int,
        scale: float,
        means: MetricMeans,
    ) -> bool:
        """Makes the gradient steps of some epochs and returns whether the policy has moved too far to go on.

        Args:
            rollout: what to learn from; `image` holds what `decide` takes first, images or their features.
            decide: the network, or its part behind the encoder.
            num_epochs: how often to go through the rollout.
            scale: unit of the values.
            means: where metrics go.
        """
        for index in self._minibatches(len(rollout.action), num_epochs):
            part = rollout.rows(index)
            self._num_samples += len(index)
            with computing_in(self.precision):
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
        loss = policy.loss + params.value_weight * value.loss - params.entropy_weight.at(self.num_env_steps) * entropy
        means.add(
            loss=loss,
            policy_loss=policy.loss,
            value_loss=value.loss,
            entropy=entropy,
            approx_kl=policy.approx_kl,
            clip_fraction=policy.clip_fraction,
            value_clip_fraction=value.clip_fraction,
            grad_norm=self._step(loss),
        )
        return float(policy.approx_kl) > params.max_kl

    def _step(self, loss: Tensor) -> Tensor:
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self._params.max_grad_norm)
        self._optimizer.step()
        return norm

    def _minibatches(self, num_rows: int, num_epochs: int) -> Iterator[Tensor]:
        """Yields shuffled indices of nearly equal minibatches, epoch after epoch."""
        for _ in range(num_epochs):
            order = torch.randperm(num_rows, generator=self._generator)
            yield from order.tensor_split(max(1, round(num_rows / self._params.batch_size)))

    def _in_chunks(self, compute: Callable[[Rollout], Tensor], rollout: Rollout) -> Tensor:
        """Applies `compute` to parts of a rollout without gradients and joins the results."""
        size = self._params.batch_size
        with torch.no_grad(), computing_in(self.precision):
            rows = torch.arange(len(rollout.action)).split(size)
            return torch.cat([compute(rollout.rows(index)) for index in rows])

    def _set_learning_rate(self) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self._params.learning_rate.at(self.num_env_steps)

    def _facts(self, rollout: Rollout) -> dict[str, float]:
        return {
            "explained_variance": explained_variance(rollout.value, rollout.returns),
            "value_mean": float(rollout.value.mean()),
            "return_mean": float(rollout.returns.mean()),
            "advantage_std": float(rollout.advantage.std()),
            "num_decisions": float(len(rollout.action)),
            "versions_behind": float(np.mean(self._num_versions_behind)),
            "learning_rate": self._params.learning_rate.at(self.num_env_steps),
            "entropy_weight": self._params.entropy_weight.at(self.num_env_steps),
            "num_samples": float(self._num_samples),
        }

    def _measure(self, spec: AgentSpec) -> Precision:
        rows = min(256, self._params.batch_size)
        image = torch.zeros(rows, 1, spec.observation.height, spec.observation.width, dtype=torch.uint8)
        floats = self.network.float_mean.expand(rows, -1)

        def run(precision: Precision) -> None:
            with computing_in(precision):
                decided = self.network(image, floats)
            (decided.logits.sum() + decided.value.sum()).backward()
            self._optimizer.zero_grad(set_to_none=True)

        return faster_precision(run)
