"""IQN with mini-races: replay, targets, loss and update. Begin with `IqnLearner.update`.

Sources: Dabney et al. 2018 (implicit quantile networks), arXiv:1806.06923; van Hasselt et al. 2015 (double DQN),
arXiv:1509.06461; Vieillard et al. 2020 (Munchausen), arXiv:2007.14430; Schaul et al. 2015 (prioritised replay),
arXiv:1511.05952; Ball et al. 2023 (demonstrations in every batch), arXiv:2302.02948; Hester et al. 2018 (DQfD's
margin), arXiv:1704.03732; Linesight (mini-races, weights by self-loss). docs/algorithms/iqn.md compares all of
it with Linesight, item by item.

Two features cut across the module. While the encoder is frozen, the ring stores image features instead of images; it
switches to images at the encoder's first update. And the network may carry a guide, the cloned policy: its
`guide_floor` limits the actions taken and the next actions that double DQN chooses. The guide's logits are never used
as Q-values.
Dimensions: B batch, T quantile fractions, S sampled returns (as many), K actions of a decision, A choices for each, E
image features, L frames seen at once, H x W pixels, F floats.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from models.iqn import IqnNetwork, draw_fractions, fixed_fractions
from models.layers import clear_noise, draw_noise
from rulka.agents.iqn.params import IqnParams
from rulka.agents.shared.learner import MetricMeans
from rulka.agents.shared.networks import IQN_PARTS, build_iqn
from rulka.agents.shared.off_policy import OffPolicyLearner
from rulka.agents.shared.reductions import fewest, mean_of, sum_gradients
from rulka.agents.shared.spec import AgentError, AgentSpec
from rulka.buffers.experience import ExperienceBlock
from rulka.buffers.priorities import inspect_priorities
from rulka.buffers.replay import GUIDE, Batch, Drawn, RaceSplit, Replay, make_batch
from rulka.buffers.ring import Returns, Transitions, shaped_returns
from rulka.contracts.observation import FLOATS
from rulka.machine.device import CPU, upload, weights_on_host
from rulka.machine.precision import autocast

CLOCK = FLOATS["clock"].start
"""Index of the float that holds the number of decisions since the mini-race began."""
RADAM_EPSILON = 1e-4


class Sample(NamedTuple):
    """A batch: the agent's own transitions first, then demonstrations.

    Attributes:
        batch: [B] all transitions.
        row: [own] int64 rows of the ring.
        clock: [own] int64 decisions since the mini-race of each began.
    """

    batch: Batch
    row: Tensor
    clock: Tensor


class IqnLearner(OffPolicyLearner[IqnParams, IqnNetwork]):
    """Off-policy learner: a replay ring and `samples_per_insert` gradient samples per inserted decision.

    Attributes:
        network: the online network, which collectors act with.
        target: the target network.
    """

    OWN_STATE: ClassVar[tuple[str, ...]] = (*OffPolicyLearner.OWN_STATE, "num_learned")

    def __init__(self, spec: AgentSpec[IqnParams], seed: int = 0, device: torch.device = CPU) -> None:
        super().__init__(spec, spec.fresh_network(build_iqn, seed).to(device), IQN_PARTS, seed, device)
        params = self._params
        self.target = copy.deepcopy(self.network).requires_grad_(False)
        self._horizon = params.mini_race_decisions(spec.decision_ms)
        self.replay = Replay(
            params.buffer_steps,
            params.n_steps,
            device,
            self._generators.host,
            priority=None if params.prioritised is None else (params.prioritised.alpha, params.prioritised.epsilon),
            split=RaceSplit(params.held_out_share, seed) if params.held_out_share else None,
            always_frozen=not any(params.rate_of.encoder.values),
        )
        if self.network.guide is not None and params.has_limits:
            self.replay.keep(GUIDE, self._guide_log_probs)
        self._optimizer = torch.optim.RAdam(
            self._rates.groups,
            lr=0.0,
            eps=RADAM_EPSILON,
            weight_decay=params.weight_decay,
            decoupled_weight_decay=True,
            foreach=True,
        )
        self._num_gradient_steps, self._num_start_steps = 0, params.start_steps
        # Learning goes on while _num_learned <= samples_per_insert * (num_env_steps - _num_start_steps). Demonstrations
        # do not count as learned.
        self._num_learned = 0
        self._self_loss = FIRST_SELF_LOSS
        self._tau_choosing = fixed_fractions(params.num_quantiles).to(device)
        self._latest: Sample | None = None

    def load_network(self, tensors: Mapping[str, Tensor]) -> None:
        """Loads initial weights into the online and the target network."""
        self.target.load_state_dict(dict(tensors))
        self.network.load_state_dict(dict(tensors))
        self._set_limits()
        self._average.begin()

    # Replay -----------------------------------------------------------------------------------------------------------

    def insert(self, block: ExperienceBlock, collector: int, version: int) -> None:
        """Copies a block into the ring."""
        del version
        self._keep_features_while_frozen()
        self.replay.insert(block, collector, self.num_env_steps)
        self.num_env_steps += block.is_reset.size

    def insert_demonstrations(self, blocks: Sequence[ExperienceBlock]) -> None:
        """Stores demonstrations, `demonstration_share` of every batch from now on; replaces earlier ones.

        Raises:
            AgentError: if their observation shapes differ from the agent's.
            ValueError: if there are none.
        """
        self._keep_features_while_frozen()
        expected = (*self._spec.observation.image_shape, len(self._spec.normalisation.mean))
        for block in blocks:
            found = (*block.spec.image_shape, block.spec.num_floats)
            if found != expected:
                message = f"demonstrations have (frames, height, width, floats) {found}, the agent sees {expected}"
                raise AgentError(message, hint="Capture the demonstrations again with the present parameters.")
        self.replay.insert_demonstrations(blocks)

    def num_allowed_env_steps(self) -> int:
        """How far collectors may run ahead: `start_steps`, what learning has consumed, and one more `start_steps`."""
        learned = int(self._num_learned / self._params.samples_per_insert)
        return self._num_start_steps + learned + self._params.start_steps

    def is_ready(self) -> bool:
        """True if the ring holds `start_steps` decisions and `samples_per_insert` is not used up."""
        num_inserts = self.num_env_steps - self._num_start_steps
        num_samples_due = num_inserts * self._params.samples_per_insert
        return self.replay.num_rows >= self._params.start_steps and self._num_learned <= num_samples_due

    def draw(self) -> Sample:
        """Samples a batch: own transitions, by priority if `iqn.prioritised`, and a share of demonstrations."""
        params, sampler = self._params, self.replay.sampler
        share = params.demonstration_share.at(self.moment) if self.replay.has_demonstrations() else 0.0
        num_demonstrations = round(params.batch_size * share)
        if sampler is not None and params.prioritised is not None:
            sampler.beta = params.prioritised.beta.at(self.moment)
        drawn = self.replay.draw(params.batch_size - num_demonstrations)
        batch, clock = self._batch_in_mini_races(drawn)
        if self._ranks.size > 1 and sampler is not None:
            # Importance weights are relative to the largest of the batch, and the batch spans all ranks.
            batch.weight.mul_(sampler.largest_importance / self._ranks.largest(sampler.largest_importance))
        if num_demonstrations:
            demonstrations, _ = self._batch_in_mini_races(self.replay.draw_demonstrations(num_demonstrations))
            batch = Batch(*(torch.cat(columns) for columns in zip(batch, demonstrations, strict=True)))
        self._num_learned += len(drawn.row)
        return Sample(batch, drawn.row, clock)

    def _batch_in_mini_races(self, drawn: Drawn) -> tuple[Batch, Tensor]:
        """Places each transition at random in a mini-race; returns the batch, and the clocks [B] in main memory."""
        uniform = torch.rand(len(drawn.row), generator=self._generators.host, dtype=torch.float64)
        clock = draw_clocks(uniform.numpy(), self._horizon)
        drawn.floats[:, CLOCK] = torch.from_numpy(clock).to(drawn.floats)
        drawn.next_floats[:, CLOCK] = torch.from_numpy(clock + drawn.found.num_steps).to(drawn.next_floats)
        returns = mini_race_returns(drawn.found, clock, self._params.gamma.at(self.moment), self._horizon)
        return make_batch(drawn, returns, self._device), torch.from_numpy(clock)

    def _note_errors(self, sample: Sample, error: Tensor) -> None:
        """Sets the priorities of own transitions from the errors [B] of the batch.

        Only transitions with more than `min_actions_left` decisions left in their mini-race count: near its end little
        return remains, and a small error there says nothing about the same transition earlier in a mini-race.
        Non-finite errors are skipped; they end the run elsewhere, with the weights that led to them.
        """
        if self._params.prioritised is None:
            return
        errors = error[: len(sample.row)].cpu()
        is_early = sample.clock < self._horizon - self._params.prioritised.min_actions_left
        counts = is_early & errors.isfinite()
        self.replay.update_priorities(sample.row[counts], errors[counts])

    def _guide_log_probs(self, image: Tensor, floats: Tensor) -> Tensor:
        """Returns the log-probabilities [B, K, A] of the cloned policy, in float32 as in evaluation."""
        assert self.network.guide is not None
        parts = zip(image.split(self._params.batch_size), floats.split(self._params.batch_size), strict=True)
        with torch.no_grad():
            return torch.cat([self.network.guide.log_probs(*upload(part, self._device)) for part in parts])

    # Update -----------------------------------------------------------------------------------------------------------

    def update(self) -> dict[str, float] | None:
        """Runs `gradient_steps_per_update` gradient steps; returns None if not `is_ready()`."""
        if not self.is_ready():
            return None
        params = self._params
        self._keep_features_while_frozen()
        learning_rate = params.learning_rate.at(self.moment)
        self._rates.apply(self._optimizer, learning_rate, self.moment)
        self._set_limits()
        means = MetricMeans()
        for _ in range(params.gradient_steps_per_update):
            self._gradient_step(self.draw(), means)
            self._test_when_due(means)
        self._average.move()
        self.version += 1
        return means.result() | {
            "learning_rate": learning_rate,
            "epsilon": params.epsilon.at(self.moment),
            "boltzmann_epsilon": params.boltzmann_epsilon.at(self.moment),
            "gamma": params.gamma.at(self.moment),
            "buffer_decisions": float(self.replay.num_rows),
            "samples_per_insert": self._num_learned / max(1, self.num_env_steps - self._num_start_steps),
            "typical_self_loss": self._self_loss.typical,
            "num_samples": float(params.batch_size * params.gradient_steps_per_update),
        }

    def _gradient_step(self, sample: Sample, means: MetricMeans) -> None:
        """Runs one gradient step, updates the target network and sets priorities."""
        params, batch = self._params, sample.batch
        for network in (self.network, self.target):
            draw_noise(network, self._generators.device)
        tau = self._draw_fractions()
        target_bs, target_tau = self._targets(batch)
        with autocast(self.precision, self._device):
            quantile_bt = self._predicted(batch, tau)
        loss_b = quantile_huber_loss(quantile_bt, tau, target_bs, params.kappa)
        # Even a perfect prediction has a loss if the target is wide: the target's loss against itself measures it.
        self_loss_b = quantile_huber_loss(target_bs, target_tau, target_bs, params.kappa)
        weight_b, self._self_loss = self_loss_weights(
            self_loss_b, self._self_loss, params.self_loss_clamp_ratio, lambda values: mean_of(values, self._ranks)
        )
        self._optimizer.zero_grad(set_to_none=True)
        # The sum over the batch, not the mean: learning rate and clip are Linesight's, which sums.
        (loss_b * weight_b * batch.weight).sum().add(self._margin_loss(sample, means)).backward()
        sum_gradients(self.network, self._ranks)
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), params.max_grad_norm.at(self.moment))
        if params.max_grad_value is not None:
            nn.utils.clip_grad_value_(self.network.parameters(), params.max_grad_value)
        self._optimizer.step()
        self._num_gradient_steps += 1
        self._move_target()
        error_b = (quantile_bt.detach().mean(dim=1) - target_bs.mean(dim=1)).abs()
        self._note_errors(sample, error_b)
        self._latest = sample
        means.add(
            loss=loss_b.mean(),
            weighted_loss=(loss_b * weight_b).mean(),
            td_error=error_b.mean(),
            q_mean=quantile_bt.mean(),
            target_mean=target_bs.mean(),
            importance=batch.weight.mean(),
            grad_norm=norm,
        )

    def _margin_loss(self, sample: Sample, means: MetricMeans) -> Tensor | float:
        """Returns the large-margin loss on demonstrations, weighted and summed over the batch."""
        params, batch, demonstrated = self._params.demonstration_margin, sample.batch, slice(len(sample.row), None)
        if params is None or not len(batch.action[demonstrated]):
            return 0.0
        with autocast(self.precision, self._device):
            seen = batch.image[demonstrated], batch.floats[demonstrated]
            value = self.network.advantages(*seen, self._tau_choosing)
        loss = margin_loss(value, batch.action[demonstrated], params.margin)
        means.add(margin_loss=loss.mean())
        return params.weight * loss.sum()

    def _targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns sampled returns [B, S] of the transitions, and their fractions [B, S] or [S]."""
        tau = self._draw_fractions()
        networks = Networks(self.network, self.target)
        with autocast(self.precision, self._device):
            return target_quantiles(networks, batch, tau, self._tau_choosing, self._params), tau

    def _predicted(self, batch: Batch, tau: Tensor) -> Tensor:
        """Returns the online network's quantiles [B, T] of the actions taken."""
        return self.network.of_action(batch.image, batch.floats, tau, batch.action)

    def _draw_fractions(self) -> Tensor:
        """Returns fractions [B, T]; or [T], shared by the batch, if `embedding_at` is hidden."""
        num_quantiles, generator = self._params.num_quantiles, self._generators.device
        if self.network.embedding_at == "hidden":
            return draw_fractions(1, num_quantiles, generator)[0]
        return draw_fractions(self._params.batch_size, num_quantiles, generator)

    @torch.no_grad()
    def _move_target(self) -> None:
        if self._num_gradient_steps % self._params.target_every:
            return
        # Frozen parts too: the target of a part that was frozen during the run still lags. Equal weights do not change.
        for target, online in zip(self.target.parameters(), self.network.parameters(), strict=True):
            target.lerp_(online, self._params.target_tau)

    def _set_limits(self) -> None:
        """Writes the current `guide_floor` into both networks; actors read it with the weights."""
        for network in (self.network, self.target):
            if network.guide is not None:
                network.guide.floor.fill_(self._params.guide_floor.at(self.moment))

    @torch.no_grad()
    def _test_when_due(self, means: MetricMeans) -> None:
        """Measures the loss on held-out races, after `held_out_share` of all gradient steps."""
        share, count = self._params.held_out_share, self._num_gradient_steps
        if int(share * count) == int(share * (count - 1)):
            return
        if not fewest(self.replay.has_held_out(), self._ranks):  # it updates spectral norms: all ranks or none
            return
        batch, _ = self._batch_in_mini_races(self.replay.draw_held_out(self._params.batch_size))
        for network in (self.network, self.target):
            clear_noise(network)
        tau = self._draw_fractions()
        target_bs, _ = self._targets(batch)
        with autocast(self.precision, self._device):
            quantile_bt = self._predicted(batch, tau)
        means.add(held_out_loss=quantile_huber_loss(quantile_bt, tau, target_bs, self._params.kappa).mean())

    # Diagnostics and checkpoints --------------------------------------------------------------------------------------

    def inspect(self) -> dict[str, float]:
        """Returns diagnostics of gradients, weights, Q-values and priorities, by tags; changes nothing."""
        if self._latest is None:
            return {}
        sampler = self.replay.sampler
        seen = self._latest.batch.image, self._latest.batch.floats
        values = inspect_values(self.network, *seen, self._tau_choosing)
        return super().inspect() | values | ({} if sampler is None else inspect_priorities(sampler.priorities.measured))

    def state_dict(self) -> dict[str, Any]:
        """Returns all but the experience."""
        return super().state_dict() | {
            "target": weights_on_host(self.target),
            "num_gradient_steps": self._num_gradient_steps,
            "num_learned": self._num_learned,
            "self_loss": list(self._self_loss),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a `state_dict`; `load_experience` or `forget_experience` has to follow."""
        super().load_state_dict(state)
        for group in self._optimizer.param_groups:  # in the state too, but a population's turn may have changed it
            group["weight_decay"] = self._params.weight_decay
        self.target.load_state_dict(state["target"])
        self._num_gradient_steps, self._num_learned = int(state["num_gradient_steps"]), int(state["num_learned"])
        self._self_loss = SelfLoss(*state["self_loss"])


# Mini-races -----------------------------------------------------------------------------------------------------------
#
# Every transition is treated as part of a short race that began at a random time before it and ends after
# `iqn.mini_race_ms`, whatever happens on the track. The network sees the clock, the number of decisions since it began.
# So a Q-value is the best return in the remaining time, and gamma may be 1. The rules are Linesight's.


LONG_TERM, MAX_TERM = 40, 5
"""Distribution of clocks: x uniform on the integers [MAX_TERM - LONG_TERM, horizon + MAX_TERM), then
max(0, |x| - MAX_TERM). With the reference's horizon of 140: P(0) = 11 / 180, P(1 to 30) = 2 / 180 each,
P(31 to 139) = 1 / 180 each."""


def draw_clocks(uniform: NDArray[np.float64], horizon: int) -> NDArray[np.int64]:
    """Maps uniform numbers [B] in [0, 1) to clocks [B] in [0, horizon); the first clocks are the most frequent."""
    # In a mini-race shorter than the range drawn twice as often, all of it is.
    first, last = MAX_TERM - min(LONG_TERM, horizon + 2 * MAX_TERM - 1), horizon + MAX_TERM
    x = first + np.floor(uniform * (last - first)).astype(np.int64)
    return np.maximum(0, np.abs(x) - MAX_TERM)


def mini_race_returns(transitions: Transitions, clock: NDArray[np.int64], gamma: float, horizon: int) -> Returns:
    """Cuts transitions at the end of their mini-race, discounts their rewards and adds shaping.

    A race that ends by finishing *or by leaving the track* is terminal: no value and no potential follow. A race
    truncated by a limit (too long, no progress) is not: its last observation still has a value.

    Args:
        transitions: B transitions.
        clock: [B] decisions since each mini-race began, before the transition; 0 to horizon - 1.
        gamma: discount of one decision, in [0, 1].
        horizon: decisions in a mini-race.
    """
    num_counted = np.minimum(transitions.num_steps, horizon - clock)
    is_over = clock + transitions.num_steps >= horizon
    has_ended = transitions.is_terminal & (num_counted == transitions.num_steps)
    return shaped_returns(transitions, num_counted, is_over | has_ended, gamma)


# Targets --------------------------------------------------------------------------------------------------------------


class Networks(NamedTuple):
    """Online and target network."""

    online: IqnNetwork
    target: IqnNetwork


@torch.no_grad()
def target_quantiles(networks: Networks, batch: Batch, tau: Tensor, tau_choosing: Tensor, params: IqnParams) -> Tensor:
    """Returns quantiles [B, S] of each transition's target return: its rewards and the discounted next value.

    Args:
        networks: the target network gives the next values.
        batch: transitions.
        tau: [B, S] fractions of the next values, or [S].
        tau_choosing: [T] fractions at which actions are compared.
        params: selects the rule. Double DQN takes the online network's best action within its guide's limits,
            Munchausen the softmax over the target network's values; otherwise each quantile takes its own best action.
    """
    following = batch.next_image, batch.next_floats
    reward = batch.n_step_return
    if params.munchausen is not None:
        alpha, temperature, floor = params.munchausen.alpha, params.munchausen.temperature, params.munchausen.floor
        advantage = networks.target.advantages(batch.image, batch.floats, tau_choosing)
        reward = reward + munchausen_bonus(advantage, batch.action, alpha, temperature, floor)
        next_value = soft_value(networks.target(*following, tau).value, temperature)
    elif params.use_double_dqn:
        advantage = networks.online.advantages(*following, tau_choosing)
        if networks.online.guide is not None and batch.next_guide.shape[1]:
            advantage = networks.online.guide.limit(advantage, batch.next_guide)
        next_value = networks.target.of_action(*following, tau, advantage.argmax(dim=2))
    else:
        next_value = networks.target(*following, tau).value.amax(dim=3).sum(dim=2)
    return reward[:, None] + batch.bootstrap_discount[:, None] * next_value


def munchausen_bonus(value: Tensor, action: Tensor, alpha: float, temperature: float, floor: float) -> Tensor:
    """Returns the bonus on the reward [B]: alpha times temperature log pi(action), at least alpha times `floor`.

    Vieillard et al. 2020, equation 4, with the target network as the policy softmax(Q / temperature). A policy over
    decisions is the product of one for each of the K actions, so its log-probability is their sum.

    Args:
        value: [B, K, A] Q-values of the target network, or advantages: a constant added to a row changes nothing.
        action: [B, K] int64, taken.
        alpha: weight, 0.9 in the paper.
        temperature: of the policy, in return units; positive.
        floor: at most 0; -1 in the paper.
    """
    log_policy = torch.log_softmax(value / temperature, dim=2).gather(2, action[..., None])[..., 0].sum(dim=1)
    return alpha * (temperature * log_policy).clamp(floor, 0.0)


def soft_value(quantile: Tensor, temperature: float) -> Tensor:
    """Returns for each quantile [B, S] the sum over actions of pi (quantile - temperature log pi).

    Args:
        quantile: [B, S, K, A] of the next state, by the target network; pi is the softmax of their means.
        temperature: of the policy, in return units; positive.
    """
    log_policy = torch.log_softmax(quantile.mean(dim=1, keepdim=True) / temperature, dim=3)
    policy = log_policy.exp()
    # The product is 0 where the logarithm is minus infinity.
    return (policy * quantile - temperature * torch.special.xlogy(policy, policy)).sum(dim=3).sum(dim=2)


# Losses ---------------------------------------------------------------------------------------------------------------


def quantile_huber_loss(quantile: Tensor, tau: Tensor, target: Tensor, kappa: float) -> Tensor:
    """Distance from a predicted return distribution to samples of its target, Dabney et al. 2018, section 3.

    Args:
        quantile: [B, T] predicted value of each quantile.
        tau: [B, T] the fraction in (0, 1) that each prediction stands for; or [T], the same for all rows.
        target: [B, S] sampled returns; no gradient flows into them.
        kappa: half-width of the quadratic zone, in return units; must be positive. The loss is divided by it.

    Returns:
        [B] one loss for each transition, unreduced so that importance weights can be applied: the sum over predicted
        quantiles of the mean over targets.
    """
    error_bts = target.detach()[:, None, :] - quantile[:, :, None]
    size = error_bts.abs()
    huber = torch.where(size <= kappa, 0.5 * error_bts.square() / kappa, size - 0.5 * kappa)
    weight = torch.where(error_bts.detach() < 0, 1.0 - tau[..., None], tau[..., None])
    return (weight * huber).mean(dim=2).sum(dim=1)


SMALLEST_WIDTH = 1e-6
"""Floor of clamped widths, in square roots of return units: targets without spread must not divide by zero."""


class SelfLoss(NamedTuple):
    """Running averages of target widths, before and after clamping; see `self_loss_weights`."""

    typical: float
    typical_clamped: float


FIRST_SELF_LOSS = SelfLoss(0.01, 0.01)


def self_loss_weights(
    self_loss: Tensor, running: SelfLoss, clamp_ratio: float, mean: Callable[[Tensor], Tensor] = torch.mean
) -> tuple[Tensor, SelfLoss]:
    """Weights transitions so that those with a wide target distribution do not dominate (from Linesight).

    The square root of a target's quantile loss against itself is its width. Each loss is divided by the width, clamped
    to at least the typical width over `clamp_ratio`, and multiplied by the typical divisor, which keeps the scale.

    Args:
        self_loss: [B] `quantile_huber_loss(target, target_tau, target)`.
        running: the averages so far.
        clamp_ratio: how much narrower than typical a target may count.
        mean: of values [B] over the batches of all ranks.

    Returns:
        [B] weights without gradient, and the updated averages.
    """
    width = self_loss.detach().sqrt()
    typical = 0.99 * running.typical + 0.01 * float(mean(width))
    clamped = width.clamp(min=max(typical / clamp_ratio, SMALLEST_WIDTH))
    typical_clamped = 0.99 * running.typical_clamped + 0.01 * float(mean(clamped))
    return typical_clamped / clamped, SelfLoss(typical, typical_clamped)


def margin_loss(value: Tensor, action: Tensor, margin: float) -> Tensor:
    """Returns the large-margin loss [B]: best other action plus margin, less the demonstrated one; at least 0.

    Hester et al. 2018, equation 3: it keeps actions that were never tried from looking better than demonstrated ones.

    Args:
        value: [B, K, A] Q-values, or advantages: a constant added to a row changes nothing.
        action: [B, K] int64, demonstrated.
        margin: in units of returns; not negative.
    """
    is_demonstrated = functional.one_hot(action, value.shape[2]).bool()
    shown = value[is_demonstrated].view_as(action)
    return (value + margin).masked_fill(is_demonstrated, -float("inf")).amax(dim=2).sub(shown).clamp(min=0.0).sum(dim=1)


# Diagnostics ----------------------------------------------------------------------------------------------------------

MAX_ROWS = 64
"""Rows of a batch that `inspect_values` uses."""


@torch.no_grad()
def inspect_values(
    network: IqnNetwork,
    image: Tensor,
    floats: Tensor,
    tau: Tensor,
) -> dict[str, float]:
    """Returns the quantile spread of each action, and the action gap between the best and the second-best decision.

    The second-best decision differs from the best one in a single action: that whose second-best choice costs least.

    Args:
        network: the Q-network.
        image: [B, L, H, W] uint8, or features [B, E]; the first `MAX_ROWS` are used.
        floats: [B, F] float32, raw.
        tau: [T] fractions.
    """
    was_training = network.training
    network.eval()  # must not update spectral norms
    rows = slice(0, MAX_ROWS)
    value = network(image[rows], floats[rows], tau.expand(len(image[rows]), -1)).value
    network.train(was_training)
    best = value.mean(dim=1).topk(2, dim=2).values
    gap = float((best[..., 0] - best[..., 1]).amin(dim=1).mean())
    spread = value.std(dim=1).mean(dim=0)
    prefixes = [f"{k}_" for k in range(len(spread))] if len(spread) > 1 else [""]
    tags = [f"IQN/quantile_std_action_{prefix}{action}" for prefix in prefixes for action in range(spread.shape[1])]
    return {"RL/action_gap": gap} | dict(zip(tags, spread.flatten().tolist(), strict=True))
