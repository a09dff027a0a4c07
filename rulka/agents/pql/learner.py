"""Parallel Q-learning (PQL), Li et al. 2023, arXiv:2307.12983: two critics, and a policy that maximises the first.

Begin with `PqlLearner.update`. It runs the updates of the paper's V-learner (`_learn_critics`) and P-learner
(`PolicyHalf`) at exact ratios to each other and to the cars' decisions: serially, or, with `policy_process`, with the
policy in its own process (`RemotePolicyHalf`). With large batches and many cars the serial form is also synchronous
FastTD3 (Seo et al. 2025, arXiv:2505.22642). docs/algorithms/pql.md compares both papers with this code.

Ratios follow from counts, never from a clock: each of cars, critics and policy may proceed only once its neighbour has
done enough. So ratios are exact however slow any of them is. The paper's learners sleep for measured times instead.

Critics and policy share one torso (encoder, float head, fusion), which the critics train, as in DrQ-v2 (Yarats et al.
2021, arXiv:2107.09645): the policy loss is a poor training signal for perception. So every weight has one owner: the
critics' half owns torso and critics, the policy's half trunk and heads; each half reads the other's weights.
Dimensions: N cars, B batch, P outputs of the policy, D state features, K numbers of a decision, A choices (1 if
decisions are continuous), L frames, H x W pixels, F floats.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from models.actor_critic import ClonePolicy, Critics
from rulka.agents.pql.actor import Decisions, decisions_of
from rulka.agents.pql.halves import HalfHandle
from rulka.agents.pql.params import PqlParams
from rulka.agents.shared.diagnostics import MetricMeans, inspect_training
from rulka.agents.shared.networks import POLICY_PARTS, build_clone_policy, seeded
from rulka.agents.shared.off_policy import OffPolicyLearner, is_frozen, store_features
from rulka.agents.shared.spec import AgentSpec
from rulka.agents.shared.weights import PartRates
from rulka.buffers.experience import ExperienceBlock
from rulka.buffers.replay import Batch, Replay
from rulka.buffers.transitions import shaped_rewards
from rulka.contracts.schedule import Moment
from rulka.machine.device import CPU, Generators, device_of, state_on_host, weights_on_host
from rulka.machine.precision import Precision, autocast

ADAM_EPSILON = 1e-5
CRITIC_PARTS, ACTOR_PARTS = ("encoder", "float_head", "fusion"), ("trunk", "heads")
"""Parts of the network that the critics train, and those that the policy trains."""
ACTOR_NAMES = tuple(beginning for part in ACTOR_PARTS for beginning in POLICY_PARTS[part])
"""Tensor name prefixes of the latter."""
MOMENTS = "exp_avg", "exp_avg_sq"
"""Adam's state of each weight, besides its step count."""
WAIT_S = 0.5
"""Longest wait for a policy in another process, before the runtime checks signals and clocks again."""


class Parts(NamedTuple):
    """Policy, critics, and the decision type that interprets the policy's outputs."""

    network: ClonePolicy
    critics: Critics
    decisions: Decisions


def fresh_parts(spec: AgentSpec[PqlParams], seed: int, device: torch.device) -> Parts:
    """Returns the policy of an agent and its critics, initialised from a seed, on a device."""
    network = spec.fresh_network(build_clone_policy, seed).to(device)
    decisions = decisions_of(spec.actions)
    with seeded(seed + 1):
        critics = decisions.make_critics(network.num_state, spec.network.dense_hidden)
    return Parts(network, critics.to(device), decisions)


class PqlLearner(OffPolicyLearner[PqlParams, ClonePolicy]):
    """Off-policy learner: a replay ring, and updates of critics and policy at exact ratios.

    Attributes:
        network: the policy, which collectors act with.
        critics: rate its decisions; collectors do not have them.
        version: number of versions so far, of `critic_updates_per_version` critic updates each.
        num_critic_updates: critic updates so far.
        policy: the policy's half, or this process's copy of it.
    """

    def __init__(self, spec: AgentSpec[PqlParams], seed: int = 0, device: torch.device = CPU) -> None:
        parts = fresh_parts(spec, seed, device)
        super().__init__(spec, parts.network, POLICY_PARTS, seed, device)
        params = self._params
        self.critics, self._decisions = parts[1:]
        self._slow_network = copy.deepcopy(self.network).requires_grad_(False)
        self._slow_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self.replay = make_replay(params, device, self._generators)
        torso = [group for group in self._rates.groups if group["part"] in CRITIC_PARTS]
        critics = {"part": "critics", "params": [*self.critics.parameters()]}
        self._optimizer = torch.optim.Adam([*torso, critics], lr=0.0, eps=ADAM_EPSILON, foreach=True)
        self.num_critic_updates, self._num_start_steps = 0, params.start_steps
        self.policy = PolicyHalf(parts, params, self.precision)
        self._remote: HalfHandle | None = None
        self._policy_metrics: Mapping[str, float] = {}

    def load_network(self, tensors: Mapping[str, Tensor]) -> None:
        """Loads initial weights into the policy; the critics start fresh."""
        super().load_network(tensors)
        self._slow_network.load_state_dict(self.network.state_dict())

    # Replay and update ratios -----------------------------------------------------------------------------------------

    def insert(self, block: ExperienceBlock, collector: int, version: int) -> None:
        """Copies a block into the ring, and offers it to the policy's process."""
        super().insert(block, collector, version)
        self._keep_in_touch(0.0)

    def num_allowed_env_steps(self) -> int:
        """How far collectors may run ahead: `start_steps`, those of the next version, and `max_steps_ahead`."""
        due = self._num_wanted * self._params.steps_per_critic_update
        return self._num_start_steps + due + self._params.max_steps_ahead

    def is_ready(self) -> bool:
        """True if the cars have made enough decisions for all critic updates of the next version."""
        num_counted = self.num_env_steps - self._num_start_steps
        return num_counted // self._params.steps_per_critic_update >= self._num_wanted

    @property
    def _num_wanted(self) -> int:
        """Total critic updates at the next version."""
        return self.num_critic_updates + self._params.critic_updates_per_version

    def _num_policy_updates_due(self, num_critic_updates: int) -> int:
        """Returns the number of policy updates due after `num_critic_updates`."""
        counted = max(0, num_critic_updates - self._params.critic_warmup_updates)
        return counted // self._params.critic_updates_per_policy_update

    def _is_policy_behind(self) -> bool:
        """Returns True if policy updates are missing that were due one version ago."""
        before = self.num_critic_updates - self._params.critic_updates_per_version
        return self.policy.num_updates < self._num_policy_updates_due(before)

    def _sample(self) -> Batch:
        """Samples transitions of up to `n_steps` decisions, which run past exploring decisions, as in the paper."""
        own, gamma = self.replay.own, self._params.gamma.at(self.moment)
        transitions = own.sample(self._params.batch_size)
        return own.batch(
            transitions, *shaped_rewards(transitions, transitions.num_steps, transitions.is_terminal, gamma)
        )

    # Update -----------------------------------------------------------------------------------------------------------

    def update(self) -> dict[str, float] | None:
        """Runs the updates of one version. None if not `is_ready()`; `waited_for_policy` alone if the policy lags."""
        self._keep_in_touch(0.0)
        if not self.is_ready():
            return None
        if self._is_policy_behind():
            self._keep_in_touch(WAIT_S)
            if self._is_policy_behind():
                return {"waited_for_policy": 1.0}
        self._choose_stored_observations()
        params, policy, moment, means = self._params, self.policy, self.moment, MetricMeans()
        self._rates.apply(self._optimizer, params.learning_rate.at(moment), moment)
        policy.set_rates(moment)
        for _ in range(params.critic_updates_per_version):
            self._learn_critics(self._sample(), means)
            while self._remote is None and policy.num_updates < self._num_policy_updates_due(self.num_critic_updates):
                policy.learn_from(self.replay, moment, means)
        self._average.move()
        self.version += 1
        if self._remote is not None:
            self._remote.allow_updates(self._num_policy_updates_due(self.num_critic_updates), moment)
        return means.result() | self._facts(moment)

    def _learn_critics(self, batch: Batch, means: MetricMeans) -> None:
        """Runs one gradient step of critics and torso, and updates the slow target copies."""
        is_warm = self.num_critic_updates >= self._params.critic_warmup_updates
        with autocast(self.precision, self._device):
            target = self._target(batch)
            with torch.set_grad_enabled(is_warm):  # during warm-up the cloned policy's torso does not change
                state = self.network.state(batch.image, batch.floats)
            rated = self._decisions.rate_taken(self.critics, state, batch.action)
        loss = critic_loss(rated, target).mean()
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        weights = [*self.critics.parameters(), *_learning(self._rates.groups, CRITIC_PARTS)]
        norm = nn.utils.clip_grad_norm_(weights, self._params.max_grad_norm.at(self.moment))
        self._optimizer.step()
        self.num_critic_updates += 1
        self._move_slow()
        with torch.no_grad():
            means.add(
                critic_loss=loss,
                q_mean=rated.mean(),
                q_apart=(rated[0] - rated[1]).abs().mean(),
                target_mean=target.mean(),
                grad_norm=norm,
            )

    @torch.no_grad()
    def _target(self, batch: Batch) -> Tensor:
        """Returns the target [B] of both critics: the slow critics rate the policy's next decision."""
        state, slow_state = (
            network.state(batch.next_image, batch.next_floats) for network in (self.network, self._slow_network)
        )
        outputs = self.network.read_out(self.network.trunk(state))
        rated = self._decisions.rate(self._slow_critics, slow_state, outputs)
        return critic_targets(rated.values, rated.probability, batch.reward, batch.discount)

    @torch.no_grad()
    def _move_slow(self) -> None:
        for slow, learning in ((self._slow_critics, self.critics), (self._slow_network, self.network)):
            for kept, weight in zip(slow.parameters(), learning.parameters(), strict=True):
                kept.lerp_(weight, self._params.target_tau)

    def _facts(self, moment: Moment) -> dict[str, float]:
        params, num_critic, num_policy = self._params, self.num_critic_updates, self.policy.num_updates
        facts = {
            "learning_rate": params.learning_rate.at(moment),
            "policy_learning_rate": params.policy_learning_rate.at(moment),
            "gamma": params.gamma.at(moment),
            "noise_least": params.noise_least.at(moment),
            "noise_most": params.noise_most.at(moment),
            "buffer_decisions": float(self.replay.num_rows),
            "critic_updates": float(num_critic),
            "policy_updates": float(num_policy),
            "steps_per_critic_update": (self.num_env_steps - self._num_start_steps) / num_critic,
            "critic_updates_per_policy_update": max(0, num_critic - params.critic_warmup_updates) / max(1, num_policy),
            "num_samples": float(params.batch_size * params.critic_updates_per_version),
        }
        if self._remote is not None:
            facts |= {
                "waited_for_policy": 0.0,
                "policy_restarts": float(self._remote.num_restarts),
                **self._policy_metrics,
            }
        return facts

    # Diagnostics and checkpoints --------------------------------------------------------------------------------------

    def inspect(self) -> dict[str, float]:
        """Returns diagnostics of gradients and weights, by tags; changes nothing."""
        return super().inspect() | (inspect_training(self.network, self.policy.optimizer) if self.version else {})

    def state_dict(self) -> dict[str, Any]:
        """Returns all but the experience."""
        return super().state_dict() | {
            "critics": weights_on_host(self.critics),
            "slow_network": weights_on_host(self._slow_network),
            "slow_critics": weights_on_host(self._slow_critics),
            "num_critic_updates": self.num_critic_updates,
            "policy": self.policy.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a `state_dict`; `load_experience` or `forget_experience` has to follow."""
        super().load_state_dict(state)
        self.critics.load_state_dict(state["critics"])
        self._slow_network.load_state_dict(state["slow_network"])
        self._slow_critics.load_state_dict(state["slow_critics"])
        self.num_critic_updates = int(state["num_critic_updates"])
        self.policy.load_state_dict(state["policy"])

    # The policy in another process; see `rulka.agents.pql.halves` ----------------------------------------------------

    def _keep_in_touch(self, timeout_s: float) -> None:
        """Receives updates of the policy's process and sends it new blocks."""
        if self._remote is not None:
            self._remote.poll(timeout_s)
            self._remote.send_blocks(self.replay.numbers(), self.replay.copy_states)

    def make_half(self) -> Callable[[], RemotePolicyHalf] | None:
        """Returns a picklable builder of the policy's half in its current state; None if one process runs both."""
        if not self._params.policy_process:
            return None
        state = {
            "network": self.network.state_dict(),
            "critics": self.critics.state_dict(),
            "policy": self.policy.state_dict(),
            "is_encoder_as_given": self._is_encoder_as_given,
        }
        seed = self._seed + self.policy.num_updates
        return partial(RemotePolicyHalf, self._spec, seed, self._device, copy.deepcopy(state_on_host(state)))

    def own_tensors(self) -> dict[str, Tensor]:
        """Returns torso and critics."""
        torso = {name: each for name, each in self.network.state_dict().items() if not name.startswith(ACTOR_NAMES)}
        own = (("network", torso), ("critics", self.critics.state_dict()))
        return {f"{owner}.{name}": tensor for owner, tensors in own for name, tensor in tensors.items()}

    def half_tensors(self) -> dict[str, Tensor]:
        """Returns trunk and heads of the policy, and the state of their optimizer."""
        return self.policy.tensors()

    def take_half(self, num_updates: int, tensors: Mapping[str, Tensor], metrics: Mapping[str, float]) -> None:
        """Installs the policy after `num_updates` updates elsewhere (copied)."""
        self.policy.take(num_updates, tensors)
        self._policy_metrics = metrics or self._policy_metrics

    def attach_remote(self, handle: HalfHandle) -> None:
        """Hands the policy's half over to another process."""
        self._remote = handle


class PolicyHalf:
    """Trains the policy to maximise the first critic.

    Attributes:
        num_updates: policy updates so far.
        optimizer: of trunk and heads.
    """

    def __init__(self, parts: Parts, params: PqlParams, precision: Precision) -> None:
        self._network, self._critics, self._decisions = parts
        self._params = params
        self._rates = PartRates(self._network, POLICY_PARTS, params.rate_of)
        groups = [group for group in self._rates.groups if group["part"] in ACTOR_PARTS]
        self.optimizer = torch.optim.Adam(groups, lr=0.0, eps=ADAM_EPSILON, foreach=True)
        self._device = device_of(self._network)
        self._precision: Precision = precision
        self.num_updates = 0

    def set_rates(self, moment: Moment) -> None:
        """Sets the learning rates for a moment of the run."""
        self._rates.apply(self.optimizer, self._params.policy_learning_rate.at(moment), moment)

    def learn_from(self, replay: Replay, moment: Moment, means: MetricMeans) -> None:
        """Runs one gradient step on states sampled from a ring."""
        image, floats = replay.sample_states(self._params.batch_size)
        self.num_updates += 1
        with autocast(self._precision, self._device):
            with torch.no_grad():
                state = self._network.state(image, floats)
            outputs = self._network.read_out(self._network.trunk(state))
            rated = self._decisions.rate(self._critics, state, outputs)
        value = (rated.probability * rated.values[0]).sum(dim=1).mean()
        entropy = rated.entropy.mean()
        means.add(policy_value=value, entropy=entropy)
        weights = _learning(self._rates.groups, ACTOR_PARTS)
        if not weights:  # all of it is frozen
            return
        self.optimizer.zero_grad(set_to_none=True)
        (-value - self._params.entropy_weight.at(moment) * entropy).backward(inputs=weights)
        means.add(policy_grad_norm=nn.utils.clip_grad_norm_(weights, self._params.max_grad_norm.at(moment)))
        self.optimizer.step()

    def tensors(self) -> dict[str, Tensor]:
        """Returns trunk and heads and their optimizer state, which is zero before its first step."""
        found: dict[str, Tensor] = {}
        for name, weight in self._named():
            state = self.optimizer.state.get(weight, {})
            found[f"weight.{name}"] = weight.detach()
            found[f"step.{name}"] = torch.as_tensor(state.get("step", 0.0), dtype=torch.float32)
            for moment in MOMENTS:
                found[f"{moment}.{name}"] = state[moment] if moment in state else torch.zeros_like(weight)
        return found

    @torch.no_grad()
    def take(self, num_updates: int, tensors: Mapping[str, Tensor]) -> None:
        """Installs the `tensors` of another half after `num_updates` updates (copied)."""
        self.num_updates = num_updates
        for name, weight in self._named():
            weight.copy_(tensors[f"weight.{name}"])
            step = tensors[f"step.{name}"]
            if float(step) > 0.0:
                state = {moment: tensors[f"{moment}.{name}"].to(weight, copy=True) for moment in MOMENTS}
                self.optimizer.state[weight] = {"step": step.clone(), **state}

    def _named(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, each) for name, each in self._network.named_parameters() if name.startswith(ACTOR_NAMES)]

    def state_dict(self) -> dict[str, Any]:
        """Returns all but the weights of network and critics."""
        return {"optimizer": state_on_host(self.optimizer.state_dict()), "num_updates": self.num_updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a `state_dict`."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.num_updates = int(state["num_updates"])


class RemotePolicyHalf(PolicyHalf):
    """The policy's half in its own process: the paper's P-learner.

    It has copies of the torso and the critics, which the other half owns, and a ring of states: it receives only the
    observations of blocks.
    """

    def __init__(self, spec: AgentSpec[PqlParams], seed: int, device: torch.device, state: Mapping[str, Any]) -> None:
        """Resumes from a state.

        Args:
            spec: of the agent, with the precision of training.
            seed: of sampling.
            device: of training.
            state: network, critics, this half, and whether the encoder is still as given.
        """
        super().__init__(fresh_parts(spec, seed, device), spec.params, spec.precision)
        self._network.load_state_dict(state["network"])
        self._critics.load_state_dict(state["critics"])
        self.load_state_dict(state["policy"])
        self._replay = make_replay(self._params, device, Generators(device, seed))
        self._is_encoder_as_given = bool(state["is_encoder_as_given"])
        self._moment = Moment(0)
        self._num_blocks = 0

    @property
    def can_learn(self) -> bool:
        """True if it has any states."""
        return self._replay.has_states()

    def insert(self, block: ExperienceBlock) -> None:
        """Stores the states of a block (copied)."""
        self._choose_stored_observations()
        self._replay.insert(block, self._num_blocks)  # its own stream: no transition runs across blocks
        self._num_blocks += 1

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Loads torso and critics."""
        for name, network in (("network.", self._network), ("critics.", self._critics)):
            found = {key.removeprefix(name): tensor for key, tensor in tensors.items() if key.startswith(name)}
            network.load_state_dict(network.state_dict() | found)

    def learn(self, moment: Moment) -> dict[str, float]:
        """Runs one update on random states."""
        self._moment = moment
        self._choose_stored_observations()
        self.set_rates(moment)
        means = MetricMeans()
        self.learn_from(self._replay, moment, means)
        return {name: value for name, value in means.result().items() if name != "gradient_steps"}

    def _choose_stored_observations(self) -> None:
        self._is_encoder_as_given &= is_frozen(self._rates, self._moment)
        store_features(self._replay, self._network, self._precision, self._params.batch_size, self._is_encoder_as_given)


def make_replay(params: PqlParams, device: torch.device, generators: Generators) -> Replay:
    """Returns an empty ring for critics or policy."""
    return Replay(params.buffer_steps, params.n_steps, device, generators.host, past_exploring=True)


def _learning(groups: list[dict[str, Any]], parts: tuple[str, ...]) -> list[nn.Parameter]:
    """Returns the weights of the unfrozen ones among some parts."""
    weights = (weight for group in groups if group["part"] in parts for weight in group["params"])
    return [weight for weight in weights if weight.requires_grad]


def critic_targets(rated: Tensor, probability: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
    """Returns clipped double-Q targets [B]: reward + discount * the smaller expected value of both critics.

    Args:
        rated: [2, B, A] values of the next state, from the slow critics.
        probability: [B, A] of each choice there.
        reward: [B] of the transition.
        discount: [B] factor of the next value.
    """
    return reward + discount * (rated * probability).sum(dim=2).amin(dim=0)


def critic_loss(rated: Tensor, target: Tensor) -> Tensor:
    """Returns the summed losses [B] of both critics [2, B]: half squared errors."""
    return 0.5 * (rated - target.detach()).square().sum(dim=0)
