"""Implicit quantile networks with mini-races: how the agent acts and how it learns.

Sources: Dabney et al. 2018, arXiv:1806.06923; van Hasselt et al. 2015 (double DQN), arXiv:1509.06461; Linesight.
Deviations from Linesight: the next action is chosen at fixed quantile fractions instead of random ones; its clip of
gradient values at 1000 is left out, as after the clip of their norm at 30 it can never act; a cloned policy may drive
first (Zhou et al. 2024, arXiv:2412.07762), and demonstrations may fill a part of every batch (Ball et al. 2023,
arXiv:2302.02948). Logits of the cloned policy are never taken for Q-values.
Dimensions: B batch, T quantile fractions, A actions, N cars.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from models.iqn import IqnNetwork, draw_fractions, fixed_fractions
from rulka.agents.acting import ActingNetwork
from rulka.agents.metrics import MetricMeans
from rulka.agents.networks import build_agent_network, build_clone_policy
from rulka.agents.spec import AgentError, AgentSpec, Decision
from rulka.agents.speed import Precision, computing_in, faster_precision
from rulka.buffers.demonstrations import demonstration_buffer
from rulka.buffers.experience import ExperienceBlock
from rulka.buffers.mini_race import ClockRule
from rulka.buffers.sampler import Batch, MiniRaceSampler, Portion
from rulka.buffers.storage import BlockBuffer
from rulka.losses.quantile import SelfLoss, initial_self_loss, quantile_huber_loss, self_loss_weights
from rulka.observation import MINI_RACE_ACTIONS

RADAM_EPSILON = 1e-4


class IqnActor:
    """Takes the action with the best mean return, or, now and then, a random one."""

    def __init__(self, spec: AgentSpec, seed: int) -> None:
        self._acting = ActingNetwork(_build(spec, seed), spec.precision)
        self._policy = None
        if spec.has_policy_network:
            policy = build_clone_policy(spec.observation, spec.network, spec.normalisation, spec.num_actions)
            self._policy = ActingNetwork(policy, spec.precision)
        self._has_policy_weights = False
        self._params = spec.iqn
        self._num_actions = spec.num_actions
        self._tau = fixed_fractions(spec.iqn.num_quantiles_acting)
        self._generator = torch.Generator().manual_seed(seed)
        self._env_steps = 0

    @property
    def network(self) -> IqnNetwork:
        """The weights it acts with."""
        return self._acting.network

    def act(self, image: Tensor, floats: Tensor, *, explore: bool) -> Decision:
        """Decides for N cars; see `rulka.agents.spec.Actor`."""
        if explore and self._policy is not None and self._env_steps < self._params.warmup_steps:
            return self._drive_as_cloned(self._policy, image, floats)
        (advantage,) = self._acting.run(lambda network: network.advantages(image, floats, self._tau), len(floats))
        greedy = advantage.argmax(dim=1)
        action = greedy
        if explore:
            is_random = torch.rand(len(greedy), generator=self._generator) < self._params.epsilon.at(self._env_steps)
            random = torch.randint(self._num_actions, greedy.shape, generator=self._generator)
            action = torch.where(is_random, random, greedy)
        return _decision(action, greedy)

    def set_env_steps(self, env_steps: int) -> None:
        """Tells how many decisions all collectors have taken together: for epsilon, and the end of the warm-up."""
        self._env_steps = env_steps

    def load_policy(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes the weights of the cloned policy that drives during the warm-up.

        Raises:
            AgentError: if the spec has no policy network.
        """
        if self._policy is None:
            message = "this actor was built without a policy network: set `has_policy_network` in its spec"
            raise AgentError(message)
        self._policy.network.load_state_dict(dict(tensors))
        self._has_policy_weights = True

    def _drive_as_cloned(self, policy: ActingNetwork[Any], image: Tensor, floats: Tensor) -> Decision:
        if not self._has_policy_weights:
            message = "the cloned policy should drive now but has no weights: call `load_policy` first"
            raise AgentError(message)
        (logits,) = policy.run(lambda network: network(image, floats), len(floats))
        action = torch.multinomial(logits.softmax(dim=1), 1, generator=self._generator)[:, 0]
        return _decision(action, logits.argmax(dim=1))


class IqnLearner:
    """Keeps experience in a ring and learns from random parts of it, as often as `samples_per_insert` says.

    Attributes:
        network: the online network, which collectors act with.
        target: its slow copy.
        version: grows by one with every update.
        num_env_steps: decisions inserted so far, resets included.
        precision: in which the body of the networks learns.
    """

    def __init__(self, spec: AgentSpec, seed: int = 0) -> None:
        self.network = _build(spec, seed)
        self.target = copy.deepcopy(self.network).requires_grad_(False)
        self.version = 0
        self.num_env_steps = 0
        self._params = params = spec.iqn
        self._generator = torch.Generator().manual_seed(seed)
        self._optimizer = torch.optim.RAdam(
            self.network.parameters(),
            lr=0.0,
            eps=RADAM_EPSILON,
            weight_decay=params.weight_decay,
            decoupled_weight_decay=True,
            foreach=True,
        )
        rule = ClockRule(MINI_RACE_ACTIONS, params.oversample_long_term, params.oversample_max_term)
        size = (spec.observation.height, spec.observation.width)
        self._sampler = MiniRaceSampler(size, len(spec.normalisation.mean), params.batch_size, rule)
        self._buffer: BlockBuffer | None = None
        self._demonstrations: BlockBuffer | None = None
        self._num_learned = 0  # transitions of our own, not demonstrations
        self._num_unowed = params.start_steps  # decisions that no learning is owed for
        self._self_loss = initial_self_loss()
        self._tau_choosing = fixed_fractions(params.num_quantiles)
        self.precision: Precision = spec.precision
        if self.precision == "measured":
            self.precision = self._measure()

    def load_network(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes initial weights for the online and the target network."""
        self.network.load_state_dict(dict(tensors))
        self.target.load_state_dict(dict(tensors))

    def insert(self, block: ExperienceBlock, collector: int, version: int) -> None:
        """Copies a block into the ring."""
        del version
        if self._buffer is None:
            rows = block.spec.num_steps * block.spec.num_cars
            self._buffer = BlockBuffer(block.spec, max(2, -(-self._params.buffer_steps // rows)))
        self._buffer.insert(block, collector)
        self.num_env_steps += block.is_reset.size

    def insert_demonstrations(self, blocks: Sequence[ExperienceBlock]) -> None:
        """Stores demonstrations, `demonstration_share` of every batch from now on; replaces earlier ones.

        Raises:
            AgentError: if they show something else than the agent sees.
            ValueError: if there are none.
        """
        _, _, height, width = self._sampler.batch.image.shape
        expected = (height, width, self._sampler.batch.floats.shape[1])
        for block in blocks:
            found = (block.spec.height, block.spec.width, block.spec.num_floats)
            if found != expected:
                message = f"demonstrations have (height, width, floats) {found}, the agent sees {expected}"
                raise AgentError(message, hint="Capture the demonstrations again with the present parameters.")
        self._demonstrations = demonstration_buffer(blocks)

    def num_allowed_env_steps(self) -> int:
        """Decisions to start with, those that learning has kept up with, and as many ahead as there were to start."""
        learned = int(self._num_learned / self._params.samples_per_insert)
        return self._num_unowed + learned + self._params.start_steps

    def update(self) -> dict[str, float] | None:
        """Makes some gradient steps, or returns None while the experience is too little or learned from enough."""
        buffer = self._buffer
        if buffer is None or buffer.num_rows < self._params.start_steps or self._num_learned > self._num_owed():
            return None
        means = MetricMeans()
        learning_rate = self._params.learning_rate.at(self.num_env_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        for _ in range(self._params.gradient_steps_per_update):
            self._learn(self._draw(buffer), means)
        self.version += 1
        return means.result() | {
            "learning_rate": learning_rate,
            "epsilon": self._params.epsilon.at(self.num_env_steps),
            "gamma": self._params.gamma.at(self.num_env_steps),
            "buffer_decisions": float(buffer.num_rows),
            "samples_per_insert": self._num_learned / max(1, self.num_env_steps - self._num_unowed),
            "typical_self_loss": self._self_loss.typical,
        }

    def state_dict(self) -> dict[str, Any]:
        """Weights, target, optimizer, counters, running averages and random state; experience is not kept."""
        return {
            "network": self.network.state_dict(),
            "target": self.target.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "generator": self._generator.get_state(),
            "version": self.version,
            "num_env_steps": self.num_env_steps,
            "num_learned": self._num_learned,
            "num_unowed": self._num_unowed,
            "self_loss": list(self._self_loss),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` returned; the buffer is filled anew before learning goes on."""
        self.network.load_state_dict(state["network"])
        self.target.load_state_dict(state["target"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._generator.set_state(state["generator"])
        self.version, self.num_env_steps = int(state["version"]), int(state["num_env_steps"])
        self._num_learned = int(state["num_learned"])
        # The new start is not owed either, or all of it would be learned from at once.
        self._num_unowed = int(state["num_unowed"]) + self._params.start_steps
        self._self_loss = SelfLoss(*state["self_loss"])
        self._buffer = None

    def _num_owed(self) -> float:
        return (self.num_env_steps - self._num_unowed) * self._params.samples_per_insert

    def _draw(self, buffer: BlockBuffer) -> Batch:
        params = self._params
        portions = [Portion(buffer, params.batch_size)]
        if self._demonstrations is not None:
            num_shown = round(params.batch_size * params.demonstration_share)
            portions = [Portion(buffer, params.batch_size - num_shown), Portion(self._demonstrations, num_shown)]
        self._num_learned += portions[0].num_transitions
        gamma = params.gamma.at(self.num_env_steps)
        return self._sampler.sample(portions, params.n_steps, gamma, self._generator)

    def _learn(self, batch: Batch, means: MetricMeans) -> None:
        """Makes one gradient step and moves the target network."""
        tau = self._draw_fractions()
        target_bs, target_tau = self._targets(batch)
        with computing_in(self.precision):
            quantile_bt = _of_action(self.network(batch.image, batch.floats, tau).value, batch.action)
        loss_b = quantile_huber_loss(quantile_bt, tau, target_bs, self._params.kappa)
        own_loss_b = quantile_huber_loss(target_bs, target_tau, target_bs, self._params.kappa)
        weight_b, self._self_loss = self_loss_weights(own_loss_b, self._self_loss, self._params.self_loss_clamp_ratio)
        self._optimizer.zero_grad(set_to_none=True)
        (loss_b * weight_b).sum().backward()
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self._params.max_grad_norm)
        self._optimizer.step()
        self._move_target()
        error_b = quantile_bt.detach().mean(dim=1) - target_bs.mean(dim=1)
        means.add(
            loss=loss_b.mean(),
            weighted_loss=(loss_b * weight_b).mean(),
            td_error=error_b.abs().mean(),
            q_mean=quantile_bt.mean(),
            target_mean=target_bs.mean(),
            grad_norm=norm,
        )

    @torch.no_grad()
    def _targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns sampled returns [B, T] of the transitions, and their fractions [B, T]."""
        tau = self._draw_fractions()
        with computing_in(self.precision):
            value_bta = self.target(batch.next_image, batch.next_floats, tau).value
            if self._params.use_double_dqn:
                advantage = self.network.advantages(batch.next_image, batch.next_floats, self._tau_choosing)
                next_value = _of_action(value_bta, advantage.argmax(dim=1))
            else:
                next_value = value_bta.amax(dim=2)
        return batch.reward[:, None] + batch.discount[:, None] * next_value, tau

    def _draw_fractions(self) -> Tensor:
        return draw_fractions(self._params.batch_size, self._params.num_quantiles, self._generator)

    @torch.no_grad()
    def _move_target(self) -> None:
        for target, online in zip(self.target.parameters(), self.network.parameters(), strict=True):
            target.lerp_(online, self._params.target_tau)

    def _measure(self) -> Precision:
        batch, tau = self._sampler.batch, self._draw_fractions()
        batch.image.zero_()
        floats = self.network.float_mean.expand(len(tau), -1)

        def run(precision: Precision) -> None:
            with computing_in(precision):
                value = self.network(batch.image, floats, tau).value
            value.sum().backward()
            self._optimizer.zero_grad(set_to_none=True)

        return faster_precision(run)


def _build(spec: AgentSpec, seed: int) -> IqnNetwork:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build_agent_network("iqn", spec.observation, spec.network, spec.normalisation, spec.num_actions)
    assert isinstance(network, IqnNetwork)
    return network


def _of_action(value_bta: Tensor, action: Tensor) -> Tensor:
    index = action[:, None, None].expand(-1, value_bta.shape[1], 1)
    return value_bta.gather(2, index)[:, :, 0]


def _decision(action: Tensor, greedy: Tensor) -> Decision:
    nothing = torch.zeros(len(action)).numpy()
    return Decision(action.numpy(), nothing, nothing, (action == greedy).numpy())
