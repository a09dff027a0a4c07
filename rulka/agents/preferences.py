"""Learning from races that began alike: GRPO from how each compares with its group, DPO from which of two is preferred.

GRPO: Shao et al. 2024, arXiv:2402.03300. A race is as good as it was paid in sum, and each of its decisions as much
better than others as it was than the mean of its group: there is no value. The ratio is to the policy that acted, so
that later epochs are as sound as those of PPO; the KL penalty to the initial policy is exact.

DPO: Rafailov et al. 2023, arXiv:2305.18290. Pairs are races of the agent itself, the best and the worst of a group that
began alike, or were given before training began. The reference is the policy that learning began with and stays that,
as the paper's. Of a stretch tau the paper's log-ratio log pi(tau) / pi_ref(tau) is the sum over its decisions: the
simulator does the same under both policies. The loss of a pair is one number for all decisions of two stretches, more
than fit into one pass: how much the log-ratio of each stretch counts is found first, without gradients, and then the
gradient is summed up part by part, to the same as that of the whole.
Dimensions: K groups, G races of a group, R races, M decisions, S stretches, P pairs, or outputs of the policy, L frames
seen at once, H x W pixels, F floats, E image features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from models.actor_critic import PolicyAndValue
from rulka.agents.learner import MetricMeans
from rulka.agents.params import DpoParams, GrpoParams, OnlinePairsParams
from rulka.agents.policy_gradient import PolicyLearner, Rollout, clipped_policy_loss
from rulka.agents.precision import autocast
from rulka.agents.spec import AgentError
from rulka.agents.waiting import PassedDecisions, WaitingRaces
from rulka.buffers.experience import PreferencePairs
from rulka.device import upload

# GRPO -----------------------------------------------------------------------------------------------------------------


class GrpoLearner(PolicyLearner[GrpoParams, WaitingRaces]):
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
        rollout = Rollout(
            image=races.image,
            floats=races.floats,
            action=races.action,
            log_prob=races.log_prob,
            advantage=by_race.repeat_interleave(races.num_decisions),
            outputs=outputs,
            weight=weight.repeat_interleave(races.num_decisions),
        )
        if self._clone_weight() > 0.0:
            rollout = rollout._replace(clone_outputs=self._first_outputs(races.image, races.floats))
        num_samples = self._run_epochs(
            rollout, encoded, params, lambda decided, part: self._gradient_step(decided, part, means)
        )
        versions_behind = waiting.versions_behind(self.version)
        waiting.drop()
        return {
            "versions_behind": versions_behind,
            "return_mean": float(returns.mean()),
            "group_deviation": float(returns.std(dim=1).mean()),
            "flat_groups": float((returns.amax(dim=1) == returns.amin(dim=1)).float().mean()),
            "num_groups": float(len(returns)),
            "num_decisions": float(len(rollout.action)),
            "num_samples": float(num_samples),
            "entropy_weight": params.entropy_weight.at(self.moment),
        }

    def _gradient_step(self, decided: PolicyAndValue, part: Rollout, means: MetricMeans) -> bool:
        """Makes one gradient step and returns whether the policy has moved too far to go on."""
        params, distribution, now = self._params, self._distribution, self.moment
        log_prob = distribution.log_prob(decided.outputs, part.action)
        policy = clipped_policy_loss(log_prob, part.log_prob, part.advantage, params.clip.at(now), part.weight)
        entropy = (part.weight * distribution.entropy(decided.outputs)).mean()
        moved = distribution.divergence(part.outputs, decided.outputs.detach()).mean()
        loss = policy.loss - params.entropy_weight.at(now) * entropy
        if len(part.clone_outputs):
            clone_kl = (part.weight * distribution.divergence(decided.outputs, part.clone_outputs)).mean()
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


SMALLEST_DEVIATION = 1e-6
"""Floor of the deviation that advantages are divided by; that of a group whose races are all alike."""


def group_advantages(returns: Tensor) -> Tensor:
    """Returns how much better each race [K, G] was than the mean of its group, in the group's standard deviations.

    The scale of rewards is irrelevant: groups whose races differ little count as much as those whose races differ much,
    which Liu et al. 2025, arXiv:2503.20783, call a bias.

    Args:
        returns: [K, G] sums of the rewards of races that began alike; G at least 2.
    """
    centred = returns - returns.mean(dim=1, keepdim=True)
    return centred / returns.std(dim=1, keepdim=True).clamp(min=SMALLEST_DEVIATION)


def decision_weights(num_decisions: Tensor) -> Tensor:
    """Returns the weight of a decision of each race [R]; over all decisions the weights have the mean 1.

    A decision of a race of L weighs M / (R L), as the paper's 1 / L: a long race that failed weighs no more than a
    short one that finished.

    Args:
        num_decisions: [R] lengths of the races, at least 1.
    """
    length = num_decisions.float()
    return length.mean() / length


# DPO ------------------------------------------------------------------------------------------------------------------


class Pairs(NamedTuple):
    """Preferences of an update, see `PreferencePairs`, with log-probabilities under the reference.

    Attributes:
        image: [M, L, H, W] uint8; or image features [M, E], where the encoder is frozen.
        floats: [M, F] float32 raw.
        action: [M] or [M, K] int64; float32 where decisions are numbers.
        num_decisions: [S] int64.
        pairs: [P, 2] int64 the preferred stretch and the other one.
        reference: [M] float32 log-probability of the action under the reference.
    """

    image: Tensor
    floats: Tensor
    action: Tensor
    num_decisions: Tensor
    pairs: Tensor
    reference: Tensor

    def of(self, which: Tensor) -> Pairs:
        """Returns some of the pairs, with the stretches of those alone."""
        stretches, places = self.pairs[which].unique(return_inverse=True)
        lengths = self.num_decisions[stretches]
        ends = self.num_decisions.cumsum(0)[stretches]
        first = (ends - lengths).repeat_interleave(lengths)
        # Each stretch counts from its first row on: all rows from 0 on, less those of the stretches before it here.
        before = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
        rows = first + torch.arange(len(first), device=first.device) - before
        reference = self.reference[rows] if len(self.reference) else self.reference
        return Pairs(self.image[rows], self.floats[rows], self.action[rows], lengths, places, reference)

    @property
    def stretch(self) -> Tensor:
        """[M] number of the stretch of each decision."""
        return torch.arange(len(self.num_decisions), device=self.pairs.device).repeat_interleave(self.num_decisions)


class DpoLearner(PolicyLearner[DpoParams, WaitingRaces | PassedDecisions]):
    """Makes pairs of what the agent drove, or draws some of those that were given, and learns to prefer."""

    _given: Pairs | None = None
    """Pairs that were given, in main memory."""

    def insert_pairs(self, pairs: PreferencePairs) -> None:
        """Takes the pairs to learn from.

        Raises:
            AgentError: if it makes its own.
        """
        if isinstance(self._params.pairs, OnlinePairsParams):
            message = (
                f"{len(pairs.pairs)} pairs are given, and dpo.pairs.kind online makes them of the agent's own races"
            )
            raise AgentError(message)
        image, floats, action, num_decisions, places = (torch.from_numpy(column) for column in pairs)
        self._given = Pairs(image, floats, action, num_decisions, places, torch.empty(0))

    def _make_waiting(self) -> WaitingRaces | PassedDecisions:
        if isinstance(self._params.pairs, OnlinePairsParams):
            return WaitingRaces(self._params.races_per_start, self._device)
        return PassedDecisions()

    def _learn_from_waiting(self, means: MetricMeans) -> dict[str, float]:
        facts = {"versions_behind": self._waiting.versions_behind(self.version)}
        pairs = (
            self._own_pairs(self._waiting, facts) if isinstance(self._waiting, WaitingRaces) else self._drawn_pairs()
        )
        self._waiting.drop()
        num_samples = 0 if pairs is None else self._fit(pairs, means)
        return facts | {
            "num_pairs": 0.0 if pairs is None else float(len(pairs.pairs)),
            "num_decisions": 0.0 if pairs is None else float(len(pairs.floats)),
            "num_samples": float(num_samples),
            "beta": self._params.beta.at(self.moment),
        }

    def _own_pairs(self, waiting: WaitingRaces, facts: dict[str, float]) -> Pairs | None:
        """Returns the best and the worst race of every group where one is better enough; None where none is."""
        source = self._params.pairs
        assert isinstance(source, OnlinePairsParams)
        returns = waiting.returns(source.gamma, source.cut_worth)
        (best_return, best), (worst_return, worst) = returns.max(dim=1), returns.min(dim=1)
        facts |= {
            "num_groups": float(len(returns)),
            "return_mean": float(returns.mean()),
            "chosen_return": float(best_return.mean()),
            "rejected_return": float(worst_return.mean()),
        }
        is_pair = (best_return - worst_return > source.min_gap).tolist()
        races = [
            group[place]
            for group, *places, counts in zip(waiting.groups(), best.tolist(), worst.tolist(), is_pair, strict=True)
            for place in places
            if counts
        ]
        if not races:
            return None
        rows = waiting.rows(races)
        pairs = torch.arange(len(races), device=self._device).view(-1, 2)
        return self._with_reference(
            Pairs(rows.image, rows.floats, rows.action, rows.num_decisions, pairs, rows.log_prob[:0])
        )

    def _drawn_pairs(self) -> Pairs:
        """Returns some of the given pairs."""
        source = self._params.pairs
        assert not isinstance(source, OnlinePairsParams)
        if self._given is None:
            message = f"dpo.pairs.kind {source.kind} learns from pairs that are given, and none were"
            raise AgentError(message)
        order = torch.randperm(len(self._given.pairs), generator=self._generators.device, device=self._device)
        return self._with_reference(upload(self._given.of(order[: source.pairs_per_update].cpu()), self._device))

    def _with_reference(self, pairs: Pairs) -> Pairs:
        outputs = self._first_outputs(pairs.image, pairs.floats)
        return pairs._replace(reference=self._distribution.log_prob(outputs, pairs.action))

    def _fit(self, pairs: Pairs, means: MetricMeans) -> int:
        """Makes the gradient steps of all epochs, the encoder's last; returns how many decisions were learned from."""
        features = pairs._replace(image=self._encode(pairs.image, pairs.floats))
        num_samples = 0
        for rows, decide, num_epochs in self._passes(features, pairs, self._params):
            for which in self._minibatches(len(rows.pairs), self._params.pairs_per_step, num_epochs):
                part = rows.of(which)
                loss = self._gradient_step(part, decide, means)
                means.add(loss=loss.loss, margin=loss.margin, accuracy=loss.accuracy)
                num_samples += len(part.floats)
        return num_samples

    def _gradient_step(
        self, part: Pairs, decide: Callable[[Tensor, Tensor], PolicyAndValue], means: MetricMeans
    ) -> PreferenceLoss:
        """Makes one gradient step and returns the loss before it."""
        ratio = self._log_ratios(part, decide).requires_grad_()
        chosen, rejected = (ratio[part.pairs[:, side]] for side in range(2))
        loss = preference_loss(chosen, rejected, self._params.beta.at(self.moment))
        (counts,) = torch.autograd.grad(loss.loss, ratio)
        self._optimizer.zero_grad(set_to_none=True)
        columns = (part.image, part.floats, part.action, counts[part.stretch])
        for image, floats, action, count in zip(*(x.split(self._params.batch_size) for x in columns), strict=True):
            with autocast(self.precision, self._device):
                outputs = decide(image, floats).outputs
            (count * self._distribution.log_prob(outputs, action)).sum().backward()
        means.add(chosen_log_ratio=chosen.mean(), rejected_log_ratio=rejected.mean(), grad_norm=self._apply_gradient())
        return loss

    def _log_ratios(self, part: Pairs, decide: Callable[[Tensor, Tensor], PolicyAndValue]) -> Tensor:
        """Returns how much likelier each stretch [S] is now than under the reference, as logarithms."""
        # As the reference was computed, so that the first ratios are 1 to the bit.
        outputs = self._in_parts(lambda image, floats: decide(image, floats).outputs, part.image, part.floats)
        difference = self._distribution.log_prob(outputs, part.action) - part.reference
        return torch.zeros(len(part.num_decisions), device=self._device).index_add(0, part.stretch, difference)


class PreferenceLoss(NamedTuple):
    """Scalars; only `loss` carries a gradient.

    Attributes:
        loss: mean negative log-likelihood of the preferences; ln 2 where the policy is the reference.
        margin: mean of beta times (log-ratio of the chosen - log-ratio of the rejected).
        accuracy: share of pairs whose margin is positive.
    """

    loss: Tensor
    margin: Tensor
    accuracy: Tensor


def preference_loss(chosen_log_ratio: Tensor, rejected_log_ratio: Tensor, beta: float) -> PreferenceLoss:
    """Negative log-likelihood that the chosen stretch is preferred (Bradley and Terry), -log sigmoid(margin).

    Args:
        chosen_log_ratio: [P] log pi / pi_ref of the preferred stretches, summed over their decisions.
        rejected_log_ratio: [P] the same of the others.
        beta: positive; the inverse of how much reward a nat away from the reference is worth. Where a preference holds
            with probability p, the best policy has log-ratios log(p / (1 - p)) / beta apart.
    """
    margin = beta * (chosen_log_ratio - rejected_log_ratio)
    loss = -functional.logsigmoid(margin).mean()
    return PreferenceLoss(loss, margin.detach().mean(), (margin.detach() > 0.0).float().mean())
