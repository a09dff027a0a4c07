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

import torch

from models.actor_critic import PolicyAndValue
from rulka.agents.metrics import MetricMeans
from rulka.agents.policy_gradient.critic import CriticLearner, return_scale
from rulka.agents.policy_gradient.segments import Segment
from rulka.agents.ppo.rollout import Rollout, rollout_with_gae
from rulka.agents.precision import autocast
from rulka.agents.ranks import mean_of, standardised
from rulka.losses.ppo import clipped_policy_loss, clipped_value_loss, explained_variance
from rulka.params import PpoParams


class PpoLearner(CriticLearner[PpoParams]):
    """Goes through the waiting blocks for some epochs."""

    _num_samples = 0
    """Decisions learned from in this update, each as often as it was used."""

    def _learn(self, segment: Segment, means: MetricMeans) -> dict[str, float]:
        self._num_samples = 0
        return self._facts(self._solve(segment) if self._is_warming_up() else self._fit_policy(segment, means))

    def _solve(self, segment: Segment) -> Rollout:
        """Solves for the value head, see `CriticLearner`."""
        rollout = self._evaluate(segment, self._solve_value(segment, self._params.gae_lambda.at(self.moment)))
        self._num_samples += len(rollout.action)
        return rollout

    def _fit_policy(self, segment: Segment, means: MetricMeans) -> Rollout:
        """Trains everything, the encoder in the last epochs only; stops early when the policy has moved too far."""
        network = self.network
        encoded = self._encode(segment.image, segment.floats)
        with torch.no_grad(), autocast(self.precision, self._device):
            decided = network.decide(encoded.flatten(0, 1), segment.floats.flatten(0, 1))
        rollout = self._evaluate(segment, decided)
        standard = rollout._replace(advantage=standardised(rollout.advantage, self._ranks))
        if self._clone_weight() > 0.0:
            standard = standard._replace(clone_outputs=self._first_outputs(rollout.image, rollout.floats))
        features = standard._replace(image=encoded[:-1][~segment.is_reset])
        scale = return_scale(rollout.returns, self._ranks)
        self._num_samples += self._run_epochs(
            features, standard, self._params, lambda decided, part: self._learn_from(decided, part, scale, means)
        )
        return rollout

    def _evaluate(self, segment: Segment, decided: PolicyAndValue) -> Rollout:
        """Estimates advantages; `decided` has rows [(T + 1) N] for all observations of the segment."""
        cars = (-1, segment.is_reset.shape[1])
        by_car = PolicyAndValue(*(column.unflatten(0, cars) for column in decided))
        params, now = self._params, self.moment
        return rollout_with_gae(segment, by_car, params.gamma.at(now), params.gae_lambda.at(now))

    def _learn_from(self, decided: PolicyAndValue, part: Rollout, scale: float, means: MetricMeans) -> bool:
        """Makes one gradient step and returns whether the policy has moved too far to go on."""
        params, distribution, now = self._params, self._distribution, self.moment
        log_prob = distribution.log_prob(decided.outputs, part.action)
        policy = clipped_policy_loss(log_prob, part.log_prob, part.advantage, params.clip.at(now))
        value_clip = None if params.value_clip is None else params.value_clip.at(now)
        value = clipped_value_loss(decided.value / scale, part.value / scale, part.returns / scale, value_clip)
        entropy = distribution.entropy(decided.outputs).mean()
        moved = mean_of(distribution.divergence(part.first_outputs, decided.outputs.detach()), self._ranks)
        loss = policy.loss + params.value_weight.at(now) * value.loss - params.entropy_weight.at(now) * entropy
        if len(part.clone_outputs):
            clone_kl = distribution.divergence(part.clone_outputs, decided.outputs).mean()
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
            grad_norm=self._step(loss, len(part.action)),
        )
        return float(moved) > params.max_kl.at(now)

    def _facts(self, rollout: Rollout) -> dict[str, float]:
        error = (rollout.value - rollout.returns) / return_scale(rollout.returns)
        return {
            "value_loss": 0.5 * float(error.square().mean()),  # before the update; the means of its steps replace it
            "explained_variance": explained_variance(rollout.value, rollout.returns),
            "value_mean": float(rollout.value.mean()),
            "return_mean": float(rollout.returns.mean()),
            "advantage_std": float(rollout.advantage.std()),
            "num_decisions": float(len(rollout.action)),
            "num_samples": float(self._num_samples),
        }
