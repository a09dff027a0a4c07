"""The learner of parallel Q-learning, Li et al. 2023, arXiv:2307.12983; begin with `update`.

This learner does what the paper's V-learner and P-learner do, at the ratios of `rulka.agents.pql.ratios`: one update
after another, or, with `policy_process`, the policy in a process of its own (`rulka.agents.pql.elsewhere`). With large
batches and many cars the former is also the synchronous shape of FastTD3 (Seo et al. 2025, arXiv:2505.22642).
docs/algorithms/pql.md compares both with what is here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from models.actor_critic import ClonePolicy
from rulka.agents.averaging import RunningAverage
from rulka.agents.metrics import MetricMeans, inspect_training
from rulka.agents.pql.elsewhere import DECIDING_NAMES, PolicyElsewhere, copied_to_host
from rulka.agents.pql.features import FeatureKeeper
from rulka.agents.pql.halves import CriticHalf, PolicyHalf
from rulka.agents.pql.network import fresh_parts
from rulka.agents.pql.ratios import Ratios
from rulka.agents.pql.replay import PqlReplay
from rulka.agents.precision import Precision, autocast, faster_precision
from rulka.agents.spec import AgentError, AgentSpec, Experience, Half, OtherHalf
from rulka.buffers.experience import ExperienceBlock
from rulka.device import CPU, Generators, weights_on_host
from rulka.params import PqlParams
from rulka.schedule import Moment

WAIT_S = 0.5
"""Longest wait for a policy that learns elsewhere, before the runtime looks at signals and clocks again."""


class PqlLearner:
    """Keeps experience in a ring and teaches critics and policy from random parts of it, at exact ratios.

    Attributes:
        network: the policy, which collectors act with.
        critics: what its decisions are worth; they are the learner's alone.
        replay: the experience.
        version: grows by one with every `critic_updates_per_version` updates of the critics.
        num_env_steps: decisions inserted so far, resets included.
        precision: in which the body of the networks learns.
    """

    def __init__(self, spec: AgentSpec[PqlParams], seed: int = 0, device: torch.device = CPU) -> None:
        params: PqlParams = spec.settings
        self._params, self._ratios = params, Ratios.of(params)
        self._spec, self._seed = spec, seed
        parts = fresh_parts(spec, seed, device)
        self.network, self.critics, self._decisions, self._returns = parts
        self.version = 0
        self.num_env_steps = 0
        self._budget_share, self._env_steps_elsewhere = 0.0, 0
        self._device, self._generators = device, Generators(device, seed)
        self.replay = PqlReplay(spec, device, self._generators.host)
        self._average = RunningAverage(self.network, params.racer_tau)
        self.precision: Precision = spec.precision
        if self.precision == "measured":
            self.precision = self._measure()
        self._critic_half = CriticHalf(*parts, params, self.precision)
        self._policy_half = PolicyHalf(*parts, params, self.precision)
        self._features = FeatureKeeper(self.network, self.replay, params, self.precision)
        self._other: OtherHalf | None = None
        self._taught: Mapping[str, float] = {}
        self._num_start_steps = params.start_steps

    @property
    def racer(self) -> ClonePolicy:
        """The policy itself, or a running average of its weights."""
        return self._average.network

    @property
    def moment(self) -> Moment:
        """How far learning has come."""
        return Moment(self.num_env_steps + self._env_steps_elsewhere, self._budget_share)

    @property
    def allowed_lag(self) -> None:
        """Any: replayed experience is old anyhow."""

    def load_network(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes initial weights for the policy; the critics begin fresh."""
        self.network.load_state_dict(dict(tensors))
        self._critic_half.begin()
        self._average.begin()

    def insert(self, block: ExperienceBlock, collector: int, version: int) -> None:
        """Copies a block into the ring."""
        del version
        self._features.look(self.moment)
        self.replay.insert(block, collector)
        self.num_env_steps += block.is_reset.size
        self._keep_in_touch(0.0)

    def insert_demonstrations(self, blocks: Sequence[ExperienceBlock]) -> None:
        """Refuses: the critics learn from what the policy did itself."""
        message = f"parallel Q-learning cannot learn from {len(blocks)} blocks of demonstrations; clone them instead"
        raise AgentError(message)

    def set_budget_share(self, share: float, env_steps_elsewhere: int = 0) -> None:
        """Tells which share of the run's budget is used, and what other ranks have inserted, for schedules."""
        self._budget_share, self._env_steps_elsewhere = share, env_steps_elsewhere

    def num_allowed_env_steps(self) -> int:
        """Decisions to start with, those that belong to the next version, and as many ahead as the parameters say."""
        params = self._params
        due = self._ratios.steps_of(self._critic_half.num_updates + params.critic_updates_per_version)
        return self._num_start_steps + due + params.max_steps_ahead

    def update(self) -> dict[str, float] | None:
        """Makes the updates of one version, or returns None where the cars have not gone far enough for all of them."""
        params, critics, policy = self._params, self._critic_half, self._policy_half
        wanted = critics.num_updates + params.critic_updates_per_version
        num_counted = self.num_env_steps - self._num_start_steps
        self._keep_in_touch(0.0)
        if self._ratios.critic_updates_due(num_counted) < wanted:
            return None
        if self._is_policy_behind():
            self._keep_in_touch(WAIT_S)
            if self._is_policy_behind():
                return {"waited_for_policy": 1.0}
        self._features.look(self.moment)
        moment, means = self.moment, MetricMeans()
        critics.set_rates(moment)
        policy.set_rates(moment)
        while critics.num_updates < wanted:
            critics.learn(self.replay.draw(params.gamma.at(moment)), moment, means)
            while self._other is None and policy.num_updates < self._ratios.policy_updates_due(critics.num_updates):
                policy.learn(self.replay.draw_states(), moment, means)
        self._average.move()
        self.version += 1
        if self._other is not None:
            self._other.permit(self._ratios.policy_updates_due(critics.num_updates), moment)
        return means.result() | self._facts(num_counted, moment)

    def _is_policy_behind(self) -> bool:
        """Whether the policy has not made the updates of the version before the last one."""
        before = self._critic_half.num_updates - self._params.critic_updates_per_version
        return self._policy_half.num_updates < self._ratios.policy_updates_due(before)

    def _keep_in_touch(self, timeout_s: float) -> None:
        """Hears what the policy has learned elsewhere, and shows what it has not seen."""
        if self._other is not None:
            self._other.hear(timeout_s)
            self._other.show(self.replay.numbers(), self.replay.copy_states)

    def _facts(self, num_counted: int, moment: Moment) -> dict[str, float]:
        params, num_critic, num_policy = self._params, self._critic_half.num_updates, self._policy_half.num_updates
        return {
            "learning_rate": params.learning_rate.at(moment),
            "policy_learning_rate": params.policy_learning_rate.at(moment),
            "gamma": params.gamma.at(moment),
            "noise_least": params.noise_least.at(moment),
            "noise_most": params.noise_most.at(moment),
            "buffer_decisions": float(self.replay.num_rows),
            "critic_updates": float(num_critic),
            "policy_updates": float(num_policy),
            "steps_per_critic_update": num_counted / num_critic,
            "critic_updates_per_policy_update": max(0, num_critic - params.critic_warmup_updates) / max(1, num_policy),
            "num_samples": float(params.batch_size * params.critic_updates_per_version),
            **self._facts_of_other(),
        }

    def _facts_of_other(self) -> dict[str, float]:
        if self._other is None:
            return {}
        return {"waited_for_policy": 0.0, "policy_restarts": float(self._other.num_restarts), **self._taught}

    @torch.no_grad()
    def values(self, image: Tensor, floats: Tensor) -> Tensor:
        """Returns what the first critic thinks of the policy [B] at images [B, L, H, W] and floats [B, F]."""
        state = self.network.state(image, floats)
        rated = self._decisions.rate(self.critics, state, self.network.read_out(self.network.trunk(state)))
        return (rated.probability * self._returns.mean(rated.numbers[0])).sum(dim=1)

    def inspect(self) -> dict[str, float]:
        """Looks closer at gradients and weights; see `rulka.agents.metrics`."""
        if not self.version:
            return {}
        torso, _ = self._critic_half.optimizers
        return inspect_training(self.network, torso) | inspect_training(self.network, self._policy_half.optimizer)

    def _measure(self) -> Precision:
        batch = self.replay.batch
        batch.image.zero_()
        floats = self.network.float_mean.expand(self._params.batch_size, -1)

        def run(precision: Precision) -> None:
            with autocast(precision, self._device):
                state = self.network.state(batch.image, floats)
                rated = self._decisions.rate(self.critics, state, self.network.read_out(self.network.trunk(state)))
            rated.numbers.sum().backward()
            self.network.zero_grad(set_to_none=True)
            self.critics.zero_grad(set_to_none=True)

        return faster_precision(run, self._device)

    def make_half(self) -> Callable[[], Half] | None:
        """Returns what builds the policy's half as it is now; see `rulka.agents.spec.LearnsInHalves`."""
        if not self._params.policy_process:
            return None
        state = {
            "network": self.network.state_dict(),
            "critics": self.critics.state_dict(),
            "policy_half": self._policy_half.state_dict(),
            "is_encoder_as_given": self._features.is_as_given,
        }
        seed = self._seed + self._policy_half.num_updates
        spec = replace(self._spec, precision=self.precision)
        return partial(PolicyElsewhere, spec, seed, self._device, copied_to_host(state))

    def own_tensors(self) -> dict[str, Tensor]:
        """Returns torso and critics."""
        network = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        seeing = {name: tensor for name, tensor in network.items() if not name.startswith(DECIDING_NAMES)}
        return seeing | {f"critics.{name}": tensor for name, tensor in self.critics.state_dict().items()}

    def half_tensors(self) -> dict[str, Tensor]:
        """Returns trunk and heads of the policy, and the state of their optimizer."""
        return self._policy_half.tensors()

    def take_half(self, num_updates: int, tensors: Mapping[str, Tensor], metrics: Mapping[str, float]) -> None:
        """Takes what the policy has learned elsewhere."""
        self._policy_half.take(num_updates, tensors)
        self._taught = metrics or self._taught

    def part_with(self, other: OtherHalf) -> None:
        """Has the policy learn elsewhere from now on."""
        self._other = other

    def state_dict(self) -> dict[str, Any]:
        """Weights, slow copies, optimizers, counters and random state; not the experience."""
        return {
            "network": weights_on_host(self.network),
            "critics": weights_on_host(self.critics),
            "critic_half": self._critic_half.state_dict(),
            "policy_half": self._policy_half.state_dict(),
            "average": self._average.state_dict(),
            **self._generators.state_dict(),
            "version": self.version,
            "num_env_steps": self.num_env_steps,
            "num_start_steps": self._num_start_steps,
            "is_encoder_as_given": self._features.is_as_given,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` returned; `load_experience` or `forget_experience` has to follow."""
        self.network.load_state_dict(state["network"])
        self.critics.load_state_dict(state["critics"])
        self._critic_half.load_state_dict(state["critic_half"])
        self._policy_half.load_state_dict(state["policy_half"])
        self._average.load_state_dict(state["average"])
        self._generators.load_state_dict(state)
        self.version, self.num_env_steps = int(state["version"]), int(state["num_env_steps"])
        self._num_start_steps = int(state["num_start_steps"])
        self._features.is_as_given = bool(state["is_encoder_as_given"])

    def experience(self) -> Experience:
        """What the ring holds; see `rulka.agents.spec.Learner`."""
        return self.replay.experience()

    def load_experience(self, experience: Experience) -> None:
        """Goes on with what `experience` returned."""
        self._features.look(self.moment)
        self.replay.load_experience(experience)

    def forget_experience(self) -> None:
        """Empties the ring, which is filled anew before learning goes on."""
        self.replay.clear()
        # What fills it counts as little as it did the first time, or all of it would be learned from at once.
        self._num_start_steps += self._params.start_steps
