"""IQN with mini-races. Begin with `IqnLearner.update`: batch, targets, loss, step and target network follow in order.

Sources: Dabney et al. 2018 (implicit quantile networks), arXiv:1806.06923; van Hasselt et al. 2015 (double DQN),
arXiv:1509.06461; Vieillard et al. 2020 (Munchausen), arXiv:2007.14430; Schaul et al. 2015 (prioritised replay),
arXiv:1511.05952; Ball et al. 2023 (demonstrations in every batch), arXiv:2302.02948; Hester et al. 2018 (DQfD's
margin), arXiv:1704.03732; Linesight (mini-races, weights by self-loss). docs/algorithms/iqn.md compares all of
it with Linesight, item by item.

The network may carry a guide, the cloned policy: its `guide_floor` limits the actions taken and the next actions that
double DQN chooses. The guide's logits are never used as Q-values. While the encoder is frozen, a batch's `image` holds
features instead of images.
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

from models.iqn import IqnNetwork, draw_fractions, fixed_fractions
from models.layers import clear_noise, draw_noise
from rulka.agents.iqn.extras import (
    NO_ROW,
    demonstration_loss,
    inspect_guide,
    inspect_values,
    measured_errors,
    munchausen_targets,
)
from rulka.agents.iqn.params import IqnParams
from rulka.agents.shared.diagnostics import MetricMeans
from rulka.agents.shared.networks import IQN_PARTS, build_iqn
from rulka.agents.shared.off_policy import OffPolicyLearner
from rulka.agents.shared.reductions import fewest, mean_of, reduce_gradients
from rulka.agents.shared.spec import AgentError, AgentSpec
from rulka.buffers.experience import ExperienceBlock
from rulka.buffers.held_out import RaceSplit
from rulka.buffers.priorities import inspect_priorities
from rulka.buffers.replay import GUIDE, Batch, Replay, Source
from rulka.buffers.ring import on_device
from rulka.buffers.transitions import Transitions, shaped_rewards
from rulka.contracts.observation import FLOATS
from rulka.machine.device import CPU, exact_dtype, upload, weights_on_host
from rulka.machine.precision import autocast

CLOCK = FLOATS["clock"].start
"""Index of the float that holds the number of decisions since the mini-race began."""
RADAM_EPSILON = 1e-4


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
            self.replay.store_derived(GUIDE, self._guide_log_probs)
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
        self._typical_width = TypicalWidth(
            *torch.full((2,), FIRST_TYPICAL_WIDTH, dtype=exact_dtype(device), device=device)
        )
        self._tau_choosing = fixed_fractions(params.num_quantiles).to(device)
        self._latest: Batch | None = None

    # One update -------------------------------------------------------------------------------------------------------

    def update(self) -> dict[str, float] | None:
        """Runs `gradient_steps_per_update` gradient steps; returns None if not `is_ready()`."""
        if not self.is_ready():
            return None
        params = self._params
        self._choose_stored_observations()
        learning_rate = params.learning_rate.at(self.moment)
        self._rates.apply(self._optimizer, learning_rate, self.moment)
        self._set_guide_floor()
        means = MetricMeans()
        for _ in range(params.gradient_steps_per_update):
            self._gradient_step(self.sample(), means)
            self._test_when_due(means)
        self._average.move()
        self.version += 1
        means.note({"typical_self_loss": self._typical_width.plain})
        return means.result() | {
            "learning_rate": learning_rate,
            "epsilon": params.epsilon.at(self.moment),
            "boltzmann_epsilon": params.boltzmann_epsilon.at(self.moment),
            "gamma": params.gamma.at(self.moment),
            "buffer_decisions": float(self.replay.num_rows),
            "samples_per_insert": self._num_learned / max(1, self.num_env_steps - self._num_start_steps),
            "num_samples": float(params.batch_size * params.gradient_steps_per_update),
        }

    def sample(self) -> Batch:
        """Samples own transitions, by priority if `iqn.prioritised`, and behind them a share of demonstrations."""
        params, replay = self._params, self.replay
        share = 0.0 if replay.demonstrations is None else params.demonstration_share.at(self.moment)
        num_demonstrations = round(params.batch_size * share)
        num_sampled = params.batch_size - num_demonstrations
        if params.prioritised is not None:
            replay.beta = params.prioritised.beta.at(self.moment)
        batch = self._sample_in_mini_races(replay.own, num_sampled)
        self._num_learned += num_sampled
        if self._ranks.size > 1 and params.prioritised is not None:
            # Importance weights are relative to the largest of the batch, and the batch spans all ranks.
            largest = replay.own.largest_importance
            batch.importance.mul_(largest / self._ranks.largest(largest))
        if replay.demonstrations is None or not num_demonstrations:
            return batch
        shown = self._sample_in_mini_races(replay.demonstrations, num_demonstrations)
        shown.row.fill_(NO_ROW)
        return Batch(*(torch.cat(columns) for columns in zip(batch, shown, strict=True)))

    def _sample_in_mini_races(self, source: Source, count: int) -> Batch:
        """Samples transitions, each at a random time of a mini-race."""
        transitions = source.sample(count)
        uniform = torch.rand(count, generator=self._generators.host, dtype=torch.float64)
        clock = draw_clocks(uniform.numpy(), self._horizon)
        gamma = self._params.gamma.at(self.moment)
        batch = source.batch(transitions, *mini_race_rewards(transitions, clock, gamma, self._horizon))
        times = torch.from_numpy(clock), torch.from_numpy(clock + transitions.num_steps)
        batch.floats[:, CLOCK], batch.next_floats[:, CLOCK] = on_device(times, self._device)
        return batch

    def _gradient_step(self, batch: Batch, means: MetricMeans) -> None:
        """Runs one gradient step on a batch, then updates the target network and the priorities."""
        params = self._params
        # Noisy layers explore: new noise for every step, its own in each network (Fortunato et al. 2017, section 3.1).
        for network in (self.network, self.target):
            draw_noise(network, self._generators.device)

        tau = self._draw_fractions()
        target_bs, target_tau = self._targets(batch)
        with autocast(self.precision, self._device):
            quantile_bt = self.network.quantiles_of_action(batch.image, batch.floats, tau, batch.action)

        loss_b = quantile_huber_loss(quantile_bt, tau, target_bs, params.kappa)
        # Even a perfect prediction has a loss if the target is wide: the target's loss against itself measures it.
        self_loss_b = quantile_huber_loss(target_bs, target_tau, target_bs, params.kappa)
        self_loss_weight_b, moved_width = self_loss_weights(
            self_loss_b, self._typical_width, params.self_loss_clamp_ratio, lambda values: mean_of(values, self._ranks)
        )
        for average, moved in zip(self._typical_width, moved_width, strict=True):
            average.copy_(moved)
        # The sum over the batch, not the mean: learning rate and clip are Linesight's, which sums.
        loss = (loss_b * self_loss_weight_b * batch.importance).sum()
        if params.demonstration_margin is not None:
            margin, tau_choosing = params.demonstration_margin, self._tau_choosing
            with autocast(self.precision, self._device):
                loss = loss + demonstration_loss(self.network, batch, tau_choosing, margin, means)

        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        # Before the clip, which is of the gradient of the whole batch, not of a rank's share.
        reduce_gradients(self.network, self._ranks)
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), params.max_grad_norm.at(self.moment))
        if params.max_grad_value is not None:
            nn.utils.clip_grad_value_(self.network.parameters(), params.max_grad_value)
        self._optimizer.step()
        self._num_gradient_steps += 1
        self._move_target()

        # The mean return, which actions are compared by, and not the loss, which grows with the spread of the target.
        error_b = (quantile_bt.detach().mean(dim=1) - target_bs.mean(dim=1)).abs()
        self._update_priorities(batch, error_b)
        self._latest = batch
        means.add(
            loss=loss_b.mean(),
            weighted_loss=(loss_b * self_loss_weight_b).mean(),
            td_error=error_b.mean(),
            q_mean=quantile_bt.mean(),
            target_mean=target_bs.mean(),
            importance=batch.importance.mean(),
            grad_norm=norm,
        )

    def _targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns sampled returns [B, S] of the transitions, and their fractions [B, S] or [S]."""
        # Independent of the fractions of the prediction, Dabney et al. 2018, equation 2.
        tau = self._draw_fractions()
        with autocast(self.precision, self._device):
            return target_quantiles(self.network, self.target, batch, tau, self._tau_choosing, self._params), tau

    def _draw_fractions(self) -> Tensor:
        """Draws fractions [B, T]; or [T], shared by the batch, if `embedding_at` is hidden."""
        num_quantiles, generator = self._params.num_quantiles, self._generators.device
        if self.network.embedding_at == "hidden":  # one draw for the batch makes the output one matrix product
            return draw_fractions(1, num_quantiles, generator)[0]
        return draw_fractions(self._params.batch_size, num_quantiles, generator)

    @torch.no_grad()
    def _move_target(self) -> None:
        if self._num_gradient_steps % self._params.target_every:
            return
        # Frozen parts too: the target of a part that was frozen during the run still lags. Equal weights do not change.
        for target, online in zip(self.target.parameters(), self.network.parameters(), strict=True):
            target.lerp_(online, self._params.target_tau)

    # How much may be collected and learned ----------------------------------------------------------------------------

    def num_allowed_env_steps(self) -> int:
        """How far collectors may run ahead: `start_steps`, what learning has consumed, and one more `start_steps`."""
        learned = int(self._num_learned / self._params.samples_per_insert)
        return self._num_start_steps + learned + self._params.start_steps

    def is_ready(self) -> bool:
        """True if the ring holds `start_steps` decisions and `samples_per_insert` is not used up."""
        num_inserts = self.num_env_steps - self._num_start_steps
        num_samples_due = num_inserts * self._params.samples_per_insert
        return self.replay.num_rows >= self._params.start_steps and self._num_learned <= num_samples_due

    # Priorities, the guide, demonstrations, the held-out test ---------------------------------------------------------

    def _update_priorities(self, batch: Batch, error: Tensor) -> None:
        """Sets the priorities of own transitions from the errors [B] of the batch."""
        settings, priorities = self._params.prioritised, self.replay.priorities
        if settings is not None and priorities is not None:
            left = self._horizon - batch.floats[:, CLOCK]
            row, errors = measured_errors(batch.row, error, left, settings.min_actions_left)
            priorities.update(row.numpy(), errors.numpy())

    def _guide_log_probs(self, image: Tensor, floats: Tensor) -> Tensor:
        """Returns the log-probabilities [B, K, A] of the cloned policy, in float32 as in evaluation."""
        # Computed once, at insertion, with clock 0: the clock is always hidden from the clone, see docs/levels.md.
        assert self.network.guide is not None
        parts = zip(image.split(self._params.batch_size), floats.split(self._params.batch_size), strict=True)
        with torch.no_grad():
            return torch.cat([self.network.guide.log_probs(*upload(part, self._device)) for part in parts])

    def _set_guide_floor(self) -> None:
        """Writes the current `guide_floor` into both networks, once an update; it is a buffer of the weights."""
        for network in (self.network, self.target):
            if network.guide is not None:
                network.guide.floor.fill_(self._params.guide_floor.at(self.moment))

    def insert_demonstrations(self, blocks: Sequence[ExperienceBlock]) -> None:
        """Stores demonstrations, `demonstration_share` of every batch from now on; replaces earlier ones.

        Raises:
            AgentError: if their observation shapes differ from the agent's.
            ValueError: if there are none.
        """
        self._choose_stored_observations()
        expected = (*self._spec.observation.image_shape, len(self._spec.normalisation.mean))
        for block in blocks:
            given = (*block.spec.image_shape, block.spec.num_floats)
            if given != expected:
                message = f"demonstrations have (frames, height, width, floats) {given}, the agent sees {expected}"
                raise AgentError(message, hint="Capture the demonstrations again with the present parameters.")
        self.replay.insert_demonstrations(blocks)

    @torch.no_grad()
    def _test_when_due(self, means: MetricMeans) -> None:
        """Measures the loss on held-out races, after `held_out_share` of all gradient steps."""
        share, count = self._params.held_out_share, self._num_gradient_steps
        if int(share * count) == int(share * (count - 1)):
            return
        if not fewest(self.replay.has_held_out(), self._ranks):  # it updates spectral norms: all ranks or none
            return
        batch = self._sample_in_mini_races(self.replay.held_out, self._params.batch_size)
        for network in (self.network, self.target):
            clear_noise(network)
        tau = self._draw_fractions()
        target_bs, _ = self._targets(batch)
        with autocast(self.precision, self._device):
            quantile_bt = self.network.quantiles_of_action(batch.image, batch.floats, tau, batch.action)
        means.add(held_out_loss=quantile_huber_loss(quantile_bt, tau, target_bs, self._params.kappa).mean())

    # Diagnostics and checkpoints --------------------------------------------------------------------------------------

    def inspect(self) -> dict[str, float]:
        """Returns diagnostics of gradients, weights, Q-values and priorities, by tags; changes nothing."""
        if self._latest is None:
            return {}
        priorities = self.replay.priorities
        values = inspect_values(self.network, self._latest.image, self._latest.floats, self._tau_choosing)
        values |= inspect_guide(self.network, self._latest, self._tau_choosing)
        return super().inspect() | values | ({} if priorities is None else inspect_priorities(priorities.measured))

    def load_network(self, tensors: Mapping[str, Tensor]) -> None:
        """Loads initial weights into the online and the target network."""
        self.target.load_state_dict(dict(tensors))
        self.network.load_state_dict(dict(tensors))
        self._set_guide_floor()  # first: the average below copies it
        self._average.begin()

    def state_dict(self) -> dict[str, Any]:
        """Returns all but the experience."""
        return super().state_dict() | {
            "target": weights_on_host(self.target),
            "num_gradient_steps": self._num_gradient_steps,
            "num_learned": self._num_learned,
            "typical_width": [float(average) for average in self._typical_width],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a `state_dict`; `load_experience` or `forget_experience` has to follow."""
        super().load_state_dict(state)
        for group in self._optimizer.param_groups:  # in the state too, but a population's turn may have changed it
            group["weight_decay"] = self._params.weight_decay
        self.target.load_state_dict(state["target"])
        self._num_gradient_steps, self._num_learned = int(state["num_gradient_steps"]), int(state["num_learned"])
        for average, saved in zip(self._typical_width, state["typical_width"], strict=True):
            average.fill_(saved)


# Mini-races -----------------------------------------------------------------------------------------------------------
#
# Every transition is treated as part of a short race that began at a random time before it and ends after
# `iqn.mini_race_ms`, whatever happens on the track. The network sees the clock, the number of decisions since it began.
# So a Q-value is the best return in the remaining time, and gamma may be 1. The rules are Linesight's.


CLOCK_RANGE, CLOCK_SHIFT = 40, 5
"""Distribution of clocks: x uniform on the integers [CLOCK_SHIFT - CLOCK_RANGE, horizon + CLOCK_SHIFT), then
max(0, |x| - CLOCK_SHIFT). With n = horizon + 40: P(0) = 11 / n, P(1 to 30) = 2 / n each, P(31 to horizon - 1) = 1 / n
each; the reference has n = 180. A horizon of at most 30 has n = 2 horizon + 9: P(0) = 11 / n, all others 2 / n each."""


def draw_clocks(uniform: NDArray[np.float64], horizon: int) -> NDArray[np.int64]:
    """Maps uniform numbers [B] in [0, 1) to clocks [B] in [0, horizon); the first clocks are the most frequent."""
    # x never falls below -(horizon + CLOCK_SHIFT - 1), or clocks would reach the horizon.
    first, last = CLOCK_SHIFT - min(CLOCK_RANGE, horizon + 2 * CLOCK_SHIFT - 1), horizon + CLOCK_SHIFT
    x = first + np.floor(uniform * (last - first)).astype(np.int64)
    return np.maximum(0, np.abs(x) - CLOCK_SHIFT)


def mini_race_rewards(
    transitions: Transitions, clock: NDArray[np.int64], gamma: float, horizon: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cuts transitions at the end of their mini-race; returns rewards and discounts [B], see `shaped_rewards`.

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
    return shaped_rewards(transitions, num_counted, is_over | has_ended, gamma)


# Targets --------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def target_quantiles(
    online: IqnNetwork, target: IqnNetwork, batch: Batch, tau: Tensor, tau_choosing: Tensor, params: IqnParams
) -> Tensor:
    """Returns quantiles [B, S] of each transition's target return: its rewards and the discounted next value.

    Args:
        online: chooses the next action, with double DQN.
        target: gives the next values.
        batch: transitions.
        tau: [B, S] fractions of the next values, or [S].
        tau_choosing: [T] fractions at which actions are compared.
        params: selects the rule. Double DQN takes the online network's best action within its guide's limits,
            Munchausen the softmax over the target network's values; otherwise each quantile takes its own best action,
            within these limits too.
    """
    if params.munchausen is not None:
        return munchausen_targets(target, batch, tau, tau_choosing, params.munchausen)
    following = batch.next_image, batch.next_floats
    guide = online.guide if batch.next_guide.numel() else None
    if params.use_double_dqn:
        q_advantage = online.q_advantages(*following, tau_choosing)
        if guide is not None:
            q_advantage = guide.limit(q_advantage, batch.next_guide)
        next_value = target.quantiles_of_action(*following, tau, q_advantage.argmax(dim=2))
    else:
        value = target(*following, tau)
        if guide is not None:
            value = guide.limit(value, batch.next_guide[:, None])
        next_value = value.amax(dim=3).sum(dim=2)
    return batch.reward[:, None] + batch.discount[:, None] * next_value


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
    asymmetry = torch.where(error_bts.detach() < 0, 1.0 - tau[..., None], tau[..., None])
    return (asymmetry * huber).mean(dim=2).sum(dim=1)


SMALLEST_WIDTH = 1e-6
"""Floor of clamped widths, in square roots of return units: targets without spread must not divide by zero."""


FIRST_TYPICAL_WIDTH = 0.01


class TypicalWidth(NamedTuple):
    """Running averages of target widths, before and after clamping, of `exact_dtype`; see `self_loss_weights`."""

    plain: Tensor
    clamped: Tensor


def self_loss_weights(
    self_loss: Tensor, running: TypicalWidth, clamp_ratio: float, mean: Callable[[Tensor], Tensor] = torch.mean
) -> tuple[Tensor, TypicalWidth]:
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
    typical = 0.99 * running.plain + 0.01 * mean(width).to(running.plain.dtype)
    clamped = width.clamp(min=(typical / clamp_ratio).clamp(min=SMALLEST_WIDTH))
    typical_clamped = 0.99 * running.clamped + 0.01 * mean(clamped).to(running.clamped.dtype)
    return typical_clamped * clamped.reciprocal(), TypicalWidth(typical, typical_clamped)
