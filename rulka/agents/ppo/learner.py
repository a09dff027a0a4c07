"""Proximal policy optimisation (PPO), Schulman et al. 2017, arXiv:1707.06347; begin with `PpoLearner._learn`.

An update, from `PolicyLearner.update`: `_learn`, then `_fit_policy`, which evaluates the waiting blocks, adds
advantages (`_with_advantages`, GAE) and runs one `_gradient_step` per minibatch and epoch (`_run_epochs`).

Deviations from the paper and the peer:
- Advantages and returns use the values of the network at the start of an update, so stale collectors do not mix values
  of several versions.
- Values are clipped and weighted in units of the root mean square return, so settings do not depend on reward scale.
- The first update solves for the value head alone: advantages from an untrained value would ruin a cloned policy.
- The encoder can be frozen in some epochs, whose image features are then computed once.
- An update ends once it has moved the policy by `max_kl`.
Dimensions: M decisions of one update, T decisions of a block, N cars, L frames seen at once, H x W pixels, F floats,
E image features, P outputs of the policy.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from models.actor_critic import PolicyAndValue
from rulka.agents.ppo.params import PpoParams
from rulka.agents.shared.advantages import estimate_advantages, explained_variance
from rulka.agents.shared.diagnostics import MetricMeans
from rulka.agents.shared.policy_gradient import CriticLearner, Rollout, clipped_policy_loss, return_scale
from rulka.agents.shared.reductions import mean_of, spread, standardised
from rulka.agents.shared.rollout_queue import Segment
from rulka.machine.precision import autocast


class PpoLearner(CriticLearner[PpoParams]):
    """On-policy learner: some epochs over all waiting blocks."""

    def _learn(self, segment: Segment, num_kept: int, means: MetricMeans) -> dict[str, Tensor | float]:
        kept = segment.kept_rows(num_kept)
        if self._is_warming_up():
            decided = self._solve_value(segment, self._params.gae_lambda.at(self.moment))  # changes the value head
            rollout = self._with_advantages(segment, kept, decided)  # for metrics alone
            return self._facts(rollout, num_kept)
        return self._facts(*self._fit_policy(segment, kept, means))

    def _fit_policy(self, segment: Segment, kept: Tensor, means: MetricMeans) -> tuple[Rollout, int]:
        """Trains all weights, the encoder in the last epochs only; stops early if the policy moves beyond `max_kl`.

        Returns:
            The rollout, and the number of decisions learned from, counting repeats.
        """
        network = self.network
        # Features do not change until the encoder trains, in the last epochs: they are computed once.
        encoded = self._encode(segment.image, segment.floats)
        with torch.no_grad(), autocast(self.precision, self._device):
            decided = network.decide(encoded.flatten(0, 1), segment.floats.flatten(0, 1))
        rollout = self._with_advantages(segment, kept, decided)
        standard = rollout._replace(advantage=standardised(rollout.advantage, self._ranks))
        if self._params.initial_kl_weight.at(self.moment) > 0.0:
            standard = standard._replace(initial_outputs=self._initial_outputs(rollout.image, rollout.floats))
        scale = return_scale(rollout.returns, self._ranks)
        num_samples = self._run_epochs(
            standard,
            encoded[:-1].flatten(0, 1)[kept],
            self._params,
            means,
            lambda decided, part: self._gradient_step(decided, part, scale, means),
        )
        return rollout, num_samples

    def _with_advantages(self, segment: Segment, kept: Tensor, decided: PolicyAndValue) -> Rollout:
        """Estimates advantages of the `kept` rows; `decided` has rows [(T + 1) N] for all observations."""
        cars = (-1, segment.is_reset.shape[1])
        by_car = PolicyAndValue(*(column.unflatten(0, cars) for column in decided))
        discount, gae_lambda = self._params.gamma.at(self.moment), self._params.gae_lambda.at(self.moment)
        reward, value = segment.shaped_reward(discount), by_car.value
        # An autoreset step observes the last observation of the previous race: its value bootstraps a truncated race.
        estimate = estimate_advantages(reward, value, segment.endings, discount, gae_lambda)
        return Rollout(
            image=segment.image[:-1].flatten(0, 1)[kept],
            floats=segment.floats[:-1].flatten(0, 1)[kept],
            action=segment.action.flatten(0, 1)[kept],
            log_prob=segment.log_prob.flatten()[kept],
            advantage=estimate.advantage.flatten()[kept],
            outputs=by_car.outputs[:-1].flatten(0, 1)[kept],
            value=value[:-1].flatten()[kept],
            returns=estimate.returns.flatten()[kept],
        )

    def _gradient_step(self, decided: PolicyAndValue, part: Rollout, scale: Tensor, means: MetricMeans) -> Tensor:
        """Runs one gradient step; returns how far the policy has moved before it, in nats."""
        params, distribution, now = self._params, self._distribution, self.moment
        log_prob = distribution.log_prob(decided.outputs, part.action)
        policy = clipped_policy_loss(log_prob, part.log_prob, part.advantage, params.clip.at(now))
        value_clip = None if params.value_clip is None else params.value_clip.at(now)
        value = clipped_value_loss(decided.value / scale, part.value / scale, part.returns / scale, value_clip)
        entropy = distribution.entropy(decided.outputs).mean()
        moved = mean_of(distribution.divergence(part.outputs, decided.outputs.detach()), self._ranks)
        loss = policy.loss + params.value_weight.at(now) * value.loss - params.entropy_weight.at(now) * entropy
        if len(part.initial_outputs):
            initial_kl = distribution.divergence(part.initial_outputs, decided.outputs).mean()
            loss = loss + params.initial_kl_weight.at(now) * initial_kl
            means.add(initial_kl=initial_kl)
        grad_norm = self._step(loss, len(part.action))
        means.add(
            loss=loss,
            policy_loss=policy.loss,
            value_loss=value.loss,
            entropy=entropy,
            approx_kl=policy.approx_kl,
            clip_fraction=policy.clip_fraction,
            value_clip_fraction=value.clip_fraction,
            update_kl=moved,
            grad_norm=grad_norm,
        )
        return moved

    def _facts(self, rollout: Rollout, num_samples: int) -> dict[str, Tensor | float]:
        error = (rollout.value - rollout.returns) / return_scale(rollout.returns)
        return {
            "value_loss": 0.5 * error.square().mean(),  # before the update; the mean over its steps replaces it
            "explained_variance": explained_variance(rollout.value, rollout.returns),
            "value_mean": rollout.value.mean(),
            "return_mean": rollout.returns.mean(),
            "advantage_std": spread(rollout.advantage),
            "num_decisions": float(len(rollout.action)),
            "num_samples": float(num_samples),
        }


class ValueLoss(NamedTuple):
    """Scalars; only `loss` carries a gradient. `clip_fraction` is the share of values that moved beyond the clip."""

    loss: Tensor
    clip_fraction: Tensor


def clipped_value_loss(value: Tensor, old_value: Tensor, returns: Tensor, clip: float | None) -> ValueLoss:
    """Half the squared error of the value, or of the value clipped to within `clip` of the old one if that is larger.

    Args:
        value: [M] predicted now.
        old_value: [M] predicted when the update began.
        returns: [M] targets.
        clip: how far a value may move, in units of the values; positive. None gives the plain squared error.
    """
    if clip is None:
        return ValueLoss(0.5 * (value - returns).square().mean(), torch.zeros((), device=value.device))
    held = old_value + (value - old_value).clamp(-clip, clip)
    squared = torch.maximum((value - returns).square(), (held - returns).square())
    with torch.no_grad():
        clip_fraction = ((value - old_value).abs() > clip).float().mean()
    return ValueLoss(0.5 * squared.mean(), clip_fraction)
