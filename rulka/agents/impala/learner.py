"""IMPALA, Espeholt et al. 2018, arXiv:1802.01561; begin with `ImpalaLearner._learn`.

Collectors run ahead of the learner by up to `max_versions_behind` updates. V-trace, or one of the paper's baselines,
corrects for the lag of their policy.

Deviations from the paper:
- An update makes one pass over its blocks in several gradient steps, each on the whole trajectories of some cars, with
  values and importance weights of the current network.
- Value errors and advantages are in units of the root mean square target, so settings do not depend on reward scale
  (the paper clips rewards instead).
- Losses are means over decisions, not sums.
- Adam replaces RMSProp, whose epsilon is in units of the gradient.
Dimensions: M decisions, T decisions of a block, N cars, P outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from models.actor_critic import PolicyAndValue
from rulka.agents.impala.params import CorrectionParams, EpsilonParams, ImpalaParams, OneStepParams, VtraceParams
from rulka.agents.shared.advantages import Endings, explained_variance
from rulka.agents.shared.diagnostics import MetricMeans
from rulka.agents.shared.policy_gradient import CriticLearner, return_scale
from rulka.agents.shared.reductions import fewest, spread
from rulka.agents.shared.rollout_queue import Segment
from rulka.machine.precision import autocast


class Experienced(NamedTuple):
    """Decisions of some cars without resets, evaluated by the current network.

    Attributes:
        outputs: [M, P] of the policy; with gradients, as `log_prob` and `value`.
        log_prob: [M] of the action taken.
        log_ratio: [M] log pi / mu of the action: current log-probability less the behaviour policy's.
        value: [M] of the observation.
        target: [M] of the value.
        advantage: [M] of the action, weighted by the correction.
    """

    outputs: Tensor
    log_prob: Tensor
    log_ratio: Tensor
    value: Tensor
    target: Tensor
    advantage: Tensor


class ImpalaLearner(CriticLearner[ImpalaParams]):
    """Makes one pass over the oldest waiting blocks; newer ones wait for `forced_lag` updates."""

    def _num_needed(self) -> int:
        num_waiting = 0 if self._is_warming_up() else self._params.forced_lag * self._params.steps_per_update
        return super()._num_needed() + num_waiting

    def _num_taken(self) -> int:
        return super()._num_taken() if self._is_warming_up() else self._params.steps_per_update

    def _learn(self, segment: Segment, num_kept: int, means: MetricMeans) -> dict[str, Tensor | float]:
        del num_kept
        if self._is_warming_up():
            # V-trace targets sum all rewards of a block; with lambda 1 the returns of the solved value do so too.
            return _facts([self._experienced(segment, self._solve_value(segment, gae_lambda=1.0))])
        return _facts([self._gradient_step(part, means) for part in self._batches(segment)])

    def _batches(self, segment: Segment) -> Iterator[Segment]:
        """Yields whole trajectories of some cars, each car once, about `batch_size` decisions at a time."""
        num_cars, num_batches = segment.is_reset.shape[1], round(segment.is_reset.numel() / self._params.batch_size)
        order = torch.randperm(num_cars, generator=self._generators.device, device=self._device)
        for cars in order.tensor_split(min(max(1, num_batches), num_cars)):
            part = Segment(*(column[:, cars] for column in segment))
            if fewest(int((~part.is_reset).sum()), self._ranks):  # or a rank would have an empty batch
                yield part

    def _gradient_step(self, part: Segment, means: MetricMeans) -> Experienced:
        """Runs one gradient step and returns the decisions that it used."""
        params, distribution, now = self._params, self._distribution, self.moment
        with autocast(self.precision, self._device):
            decided = self.network(part.image.flatten(0, 1), part.floats.flatten(0, 1))
        seen = self._experienced(part, decided)
        scale = return_scale(seen.target, self._ranks)
        policy_loss = -(seen.advantage / scale * log_prob_in_loss(params.correction, seen.log_prob)).mean()
        value_loss = 0.5 * ((seen.value - seen.target) / scale).square().mean()
        entropy = distribution.entropy(seen.outputs).mean()
        loss = policy_loss + params.value_weight.at(now) * value_loss - params.entropy_weight.at(now) * entropy
        if (kl_weight := params.initial_kl_weight.at(now)) > 0.0:
            is_kept = ~part.is_reset
            initial = self._initial_outputs(part.image[:-1][is_kept], part.floats[:-1][is_kept])
            initial_kl = distribution.divergence(initial, seen.outputs).mean()
            loss = loss + kl_weight * initial_kl
            means.add(initial_kl=initial_kl)
        means.add(
            loss=loss,
            policy_loss=policy_loss,
            value_loss=value_loss,
            entropy=entropy,
            grad_norm=self._step(loss, len(seen.value)),
        )
        return Experienced(*(column.detach() for column in seen))

    def _experienced(self, segment: Segment, decided: PolicyAndValue) -> Experienced:
        """Applies the off-policy correction; `decided` has rows [(T + 1) N] for all observations."""
        cars = (-1, segment.is_reset.shape[1])
        outputs, value = (column.unflatten(0, cars) for column in decided)
        actions = segment.action.flatten(0, 1)
        log_prob = self._distribution.log_prob(outputs[:-1].flatten(0, 1), actions).unflatten(0, cars)
        log_ratio = log_prob.detach() - segment.log_prob
        discount = self._params.gamma.at(self.moment)
        traced = corrected(
            self._params.correction,
            log_ratio,
            segment.shaped_reward(discount),
            value.detach(),
            segment.endings,
            discount,
        )
        columns = (outputs[:-1], log_prob, log_ratio, value[:-1], *traced)
        return Experienced(*(column[~segment.is_reset] for column in columns))


def _facts(parts: Sequence[Experienced]) -> dict[str, Tensor | float]:
    """Returns metrics over all decisions that an update learned from."""
    seen = Experienced(*(torch.cat(columns) for columns in zip(*parts, strict=True)))
    ratio = seen.log_ratio.exp()
    return {
        "overlap": ratio.clamp(max=1.0).mean(),
        "approx_kl": (ratio - 1.0 - seen.log_ratio).mean(),
        "explained_variance": explained_variance(seen.value, seen.target),
        "value_mean": seen.value.mean(),
        "return_mean": seen.target.mean(),
        "advantage_std": spread(seen.advantage),
        "num_decisions": float(len(seen.value)),
        "num_samples": float(len(seen.value)),
    }


def corrected(
    correction: CorrectionParams, log_ratio: Tensor, reward: Tensor, value: Tensor, endings: Endings, discount: float
) -> Traced:
    """Returns value targets and advantages [T, N] of possibly off-policy experience.

    Args:
        correction: V-trace, or one of the paper's baselines.
        log_ratio: [T, N] log pi / mu of each action: current log-probability less the behaviour policy's.
        reward: [T, N] for each decision.
        value: [T + 1, N] of all observations, including the last.
        endings: how each decision ended.
        discount: gamma in [0, 1].
    """
    rho = c = torch.ones_like(reward)  # on-policy
    if isinstance(correction, VtraceParams):
        rho, c = (truncated_ratio(log_ratio, bar) for bar in (correction.rho_bar, correction.c_bar))
    traced = trace_values(reward, value, rho, c, endings, discount)
    if isinstance(correction, OneStepParams):
        return traced._replace(advantage=truncated_ratio(log_ratio, correction.rho_bar) * traced.advantage)
    return traced


def log_prob_in_loss(correction: CorrectionParams, log_prob: Tensor) -> Tensor:
    """Returns the logarithms [...] in the policy loss: log pi, or log(pi + epsilon)."""
    if isinstance(correction, EpsilonParams):
        return torch.logaddexp(log_prob, log_prob.new_tensor(math.log(correction.epsilon)))
    return log_prob


# V-trace: values and advantages of one policy from the experience of another
#
# mu is the behaviour policy, pi the learning policy. Importance weights pi / mu are truncated at rho_bar and c_bar.
# rho_bar determines the policy whose values are learned: `min(rho_bar mu, pi)`, normalised, which is pi for large
# rho_bar and mu for small. c_bar determines how far a TD error propagates back: speed of convergence, and variance.


class Traced(NamedTuple):
    """V-trace targets and advantages, both [T, N]; at resets the value itself and 0.

    Attributes:
        target: v_s, the target of values.
        advantage: rho_s (r_s + gamma v_{s+1} - V(x_s)), the weight of an action's log-probability in the policy loss.
    """

    target: Tensor
    advantage: Tensor


def truncated_ratio(log_ratio: Tensor, bar: float) -> Tensor:
    """Returns min(bar, pi / mu) [T, N] from log pi(a) - log mu(a) of the actions taken; `bar` is not negative."""
    return log_ratio.exp().clamp(max=bar)  # a ratio that overflows is infinite, and is truncated too


def trace_values(reward: Tensor, value: Tensor, rho: Tensor, c: Tensor, endings: Endings, discount: float) -> Traced:
    """Computes V-trace targets and advantages of a batch of cars.

    v_s - V(x_s) = delta_s + gamma c_s (v_{s+1} - V(x_{s+1})) with delta_s = rho_s (r_s + gamma V(x_{s+1}) - V(x_s)).
    On-policy, with all weights 1, v_s is the return up to the last row, bootstrapped with its value.

    Args:
        reward: [T, N] for each decision.
        value: [T + 1, N] of the observation before each decision, and of the last one. After a decision that ended a
            race, the next row still belongs to that race: it is its last observation.
        rho: [T, N] truncated importance weight of each decision's own TD error.
        c: [T, N] the same of later TD errors as they propagate back past it; values converge if rho_bar is at least
            c_bar.
        endings: how each decision ended.
        discount: gamma in [0, 1].
    """
    next_value = torch.where(endings.terminated, 0.0, value[1:])
    surprise = reward + discount * next_value - value[:-1]
    target, advantage = torch.empty_like(surprise), torch.empty_like(surprise)
    excess = torch.zeros_like(surprise[0])  # v - V of the next row
    for step in range(len(surprise) - 1, -1, -1):
        behind = discount * excess
        advantage[step] = torch.where(endings.is_reset[step], 0.0, rho[step] * (surprise[step] + behind))
        excess = rho[step] * surprise[step] + c[step] * behind
        excess = torch.where(endings.is_reset[step], 0.0, excess)
        target[step] = value[step] + excess
    return Traced(target, advantage)
