"""Group relative policy optimisation, Shao et al. 2024, arXiv:2402.03300: how it learns.

A race is as good as it was paid in sum, and each of its decisions as much better than others as it was than the mean of
its group, whose races began alike: there is no value. The ratio is to the policy that acted, so that later epochs are
as sound as those of PPO; what holds on to the policy that learning began with is their exact divergence.
Dimensions: K groups, G races of a group, R races, M their decisions, F floats, E image features, P outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from models.actor_critic import PolicyAndValue
from rulka.agents.metrics import MetricMeans
from rulka.agents.policy_gradient.learner import BasePolicyLearner
from rulka.agents.policy_gradient.waiting_races import WaitingRaces
from rulka.agents.precision import autocast
from rulka.losses.grpo import decision_weights, group_advantages
from rulka.losses.ppo import clipped_policy_loss
from rulka.params import GrpoParams


class _Rollout(NamedTuple):
    """Decisions to learn from.

    Attributes:
        image: [M, L, H, W] uint8; or image features [M, E], where the encoder is frozen.
        floats: [M, F] float32 raw.
        action: [M] int64, or [M, K]; float32 where decisions are numbers.
        log_prob: [M] float32 of the action when it was chosen.
        advantage: [M] float32 of its race.
        weight: [M] float32 in the loss; their mean is 1.
        outputs: [M, P] float32 of the policy when the update began.
        first_outputs: [M, P] float32 of the policy that learning began with; [0] where nothing holds on to it.
    """

    image: Tensor
    floats: Tensor
    action: Tensor
    log_prob: Tensor
    advantage: Tensor
    weight: Tensor
    outputs: Tensor
    first_outputs: Tensor

    def rows(self, index: Tensor) -> _Rollout:
        """Returns the decisions at `index`."""
        return _Rollout(*(column[index] if len(column) else column for column in self))


class GrpoLearner(BasePolicyLearner[GrpoParams, WaitingRaces]):
    """Gathers groups of races until there are enough, learns from them for some epochs, and drops them."""

    def _make_waiting(self) -> WaitingRaces:
        return WaitingRaces(self._params.races_per_start, self._device)

    def _learn_from_waiting(self, means: MetricMeans) -> dict[str, float]:
        params, waiting, network = self._params, self._waiting, self.network
        returns = waiting.returns(params.gamma.at(self.moment), params.cut_worth)
        races = waiting.rows([race for group in waiting.groups() for race in group])
        by_race = group_advantages(returns).flatten().to(self._device)
        weight = decision_weights(races.num_decisions)
        encoded = self._encode(races.image, races.floats)
        with torch.no_grad(), autocast(self.precision, self._device):
            outputs = network.decide(encoded, races.floats).outputs
        holds_on = self._clone_weight() > 0.0
        whole = _Rollout(
            image=races.image,
            floats=races.floats,
            action=races.action,
            log_prob=races.log_prob,
            advantage=by_race.repeat_interleave(races.num_decisions),
            weight=weight.repeat_interleave(races.num_decisions),
            outputs=outputs,
            first_outputs=self._first_outputs(races.image, races.floats) if holds_on else outputs[:0],
        )
        features = whole._replace(image=encoded)
        num_samples = self._run_epochs(features, whole, params, lambda now, part: self._learn_from(now, part, means))
        versions_behind = waiting.versions_behind(self.version)
        waiting.drop()
        return {
            "versions_behind": versions_behind,
            "return_mean": float(returns.mean()),
            "group_deviation": float(returns.std(dim=1).mean()),
            "flat_groups": float((returns.amax(dim=1) == returns.amin(dim=1)).float().mean()),
            "num_groups": float(len(returns)),
            "num_decisions": float(len(whole.action)),
            "num_samples": float(num_samples),
            "entropy_weight": params.entropy_weight.at(self.moment),
        }

    def _learn_from(self, decided: PolicyAndValue, part: _Rollout, means: MetricMeans) -> bool:
        """Makes one gradient step and returns whether the policy has moved too far to go on."""
        params, distribution, now = self._params, self._distribution, self.moment
        log_prob = distribution.log_prob(decided.outputs, part.action)
        policy = clipped_policy_loss(log_prob, part.log_prob, part.advantage, params.clip.at(now), part.weight)
        entropy = (part.weight * distribution.entropy(decided.outputs)).mean()
        moved = distribution.divergence(part.outputs, decided.outputs.detach()).mean()
        loss = policy.loss - params.entropy_weight.at(now) * entropy
        if len(part.first_outputs):
            clone_kl = (part.weight * distribution.divergence(decided.outputs, part.first_outputs)).mean()
            loss = loss + self._clone_weight() * clone_kl
            means.add(clone_kl=clone_kl)
        means.add(
            loss=loss,
            policy_loss=policy.loss,
            entropy=entropy,
            approx_kl=policy.approx_kl,
            clip_fraction=policy.clip_fraction,
            update_kl=moved,
            grad_norm=self._step(loss, len(part.action)),
        )
        return float(moved) > params.max_kl.at(now)

    def _clone_weight(self) -> float:
        return 0.0 if self._first is None else self._params.clone_weight.at(self.moment)
