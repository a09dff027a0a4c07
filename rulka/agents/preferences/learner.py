"""Learning from races with the same start: GRPO compares each race with its group, DPO prefers one race to another.

GRPO: Shao et al. 2024, arXiv:2402.03300. There is no value function: the return of a race relative to its group's mean
is the advantage of all its decisions. The ratio is to the policy that acted, so later epochs are as sound as PPO's. The
KL penalty to the initial policy is exact.

DPO: Rafailov et al. 2023, arXiv:2305.18290. Pairs are the best and the worst of the agent's own races in a group, or
are given before training. The reference is the initial policy and stays fixed, as in the paper. The paper's log-ratio
log pi(tau) / pi_ref(tau) of a stretch tau is the sum over its decisions, as the simulator is the same under both
policies. The loss of a pair covers all decisions of two stretches, too many for one forward pass. So the gradient with
respect to each stretch's log-ratio is computed first, without gradients of the network; those are then accumulated part
by part and equal the gradient of the whole.
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
from rulka.agents.preferences.params import DpoParams, GrpoParams, OnlinePairsParams
from rulka.agents.shared.diagnostics import MetricMeans
from rulka.agents.shared.policy_gradient import PolicyLearner, Rollout, clipped_policy_loss
from rulka.agents.shared.race_queue import QueuedRaces
from rulka.agents.shared.rollout_queue import QueuedBlocks
from rulka.agents.shared.spec import AgentError
from rulka.buffers.experience import ExperienceBlock, PreferencePairs, StoredExperience
from rulka.machine.device import upload
from rulka.machine.precision import autocast

# GRPO -----------------------------------------------------------------------------------------------------------------


class GrpoLearner(PolicyLearner[GrpoParams, QueuedRaces]):
    """On-policy learner: gathers groups of races, learns from them for some epochs, and drops them."""

    def _make_queue(self) -> QueuedRaces:
        return QueuedRaces(self._params.races_per_start, self._device)

    def _learn_from_queue(self, means: MetricMeans) -> dict[str, float]:
        params, queue, network = self._params, self._queue, self.network
        returns = queue.returns(params.gamma.at(self.moment), params.cut_worth)
        races = queue.rows([race for group in queue.groups() for race in group])
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
        if params.initial_kl_weight.at(self.moment) > 0.0:
            rollout = rollout._replace(initial_outputs=self._initial_outputs(races.image, races.floats))
        num_samples = self._run_epochs(
            rollout, encoded, params, means, lambda decided, part: self._gradient_step(decided, part, means)
        )
        versions_behind = queue.versions_behind(self.version)
        queue.drop()
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

    def _gradient_step(self, decided: PolicyAndValue, part: Rollout, means: MetricMeans) -> Tensor:
        """Runs one gradient step; returns how far the policy has moved before it, in nats."""
        params, distribution, now = self._params, self._distribution, self.moment
        log_prob = distribution.log_prob(decided.outputs, part.action)
        policy = clipped_policy_loss(log_prob, part.log_prob, part.advantage, params.clip.at(now), part.weight)
        entropy = (part.weight * distribution.entropy(decided.outputs)).mean()
        moved = distribution.divergence(part.outputs, decided.outputs.detach()).mean()
        loss = policy.loss - params.entropy_weight.at(now) * entropy
        if len(part.initial_outputs):
            initial_kl = (part.weight * distribution.divergence(decided.outputs, part.initial_outputs)).mean()
            loss = loss + params.initial_kl_weight.at(now) * initial_kl
            means.add(initial_kl=initial_kl)
        means.add(
            loss=loss,
            policy_loss=policy.loss,
            entropy=entropy,
            approx_kl=policy.approx_kl,
            clip_fraction=policy.clip_fraction,
            update_kl=moved,
            grad_norm=self._step(loss, len(part.action)),
        )
        return moved


SMALLEST_DEVIATION = 1e-6
"""Floor of the standard deviation that advantages are divided by, for groups whose returns are all equal."""


def group_advantages(returns: Tensor) -> Tensor:
    """Returns the advantage of each race [K, G]: its return, standardised within its group.

    This removes the scale of rewards: groups whose returns differ little count as much as those whose returns differ
    a lot, which Liu et al. 2025, arXiv:2503.20783, call a bias.

    Args:
        returns: [K, G] returns of races with the same start; G at least 2.
    """
    centred = returns - returns.mean(dim=1, keepdim=True)
    return centred / returns.std(dim=1, keepdim=True).clamp(min=SMALLEST_DEVIATION)


def decision_weights(num_decisions: Tensor) -> Tensor:
    """Returns the weight of each decision of a race, by race [R]; the mean over all decisions is 1.

    A decision in a race of L decisions weighs M / (R L), the paper's 1 / L: a long failed race weighs no more than a
    short finished one.

    Args:
        num_decisions: [R] lengths of the races, at least 1.
    """
    length = num_decisions.float()
    return length.mean() / length


# DPO ------------------------------------------------------------------------------------------------------------------


class Pairs(NamedTuple):
    """Preference pairs of an update, see `PreferencePairs`, with log-probabilities under the reference.

    Attributes:
        image: [M, L, H, W] uint8; or image features [M, E] while the encoder is frozen.
        floats: [M, F] float32 raw.
        action: [M, actions of a decision] int64; float32 if decisions are continuous.
        num_decisions: [S] int64.
        pairs: [P, 2] int64 indices of the preferred stretch and the other one.
        reference: [M] float32 log-probability of the action under the reference.
    """

    image: Tensor
    floats: Tensor
    action: Tensor
    num_decisions: Tensor
    pairs: Tensor
    reference: Tensor

    def of(self, which: Tensor) -> Pairs:
        """Returns a subset of the pairs, with their stretches only."""
        stretches, places = self.pairs[which].unique(return_inverse=True)
        lengths = self.num_decisions[stretches]
        ends = self.num_decisions.cumsum(0)[stretches]
        first = (ends - lengths).repeat_interleave(lengths)
        # Row = first row of its stretch + offset in it; the offset is arange less the rows of earlier stretches here.
        before = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
        rows = first + torch.arange(len(first), device=first.device) - before
        reference = self.reference[rows] if len(self.reference) else self.reference
        return Pairs(self.image[rows], self.floats[rows], self.action[rows], lengths, places, reference)

    @property
    def stretch(self) -> Tensor:
        """[M] index of the stretch of each decision."""
        return torch.arange(len(self.num_decisions), device=self.pairs.device).repeat_interleave(self.num_decisions)


class PassedDecisions(QueuedBlocks):
    """Counts decisions until an update consumes them; they set the pace of learning from given pairs."""

    _version = 0

    def insert(self, block: ExperienceBlock, collector: int, version: int) -> None:
        """Counts the decisions of a block."""
        del collector
        self.num_decisions += block.is_reset.size
        self._version = version

    def versions_behind(self, version: int) -> float:
        """Returns the lag behind `version` of the weights that acted last."""
        return float(version - self._version)

    def drop(self) -> None:
        """Resets the count."""
        self.num_decisions = 0

    def experience(self) -> StoredExperience:
        """Returns the count; see `rulka.agents.shared.learner.Learner`."""
        return StoredExperience({"num_decisions": self.num_decisions, "version": self._version}, {})

    def load_experience(self, experience: StoredExperience) -> None:
        """Resumes from an `experience`."""
        self.num_decisions, self._version = int(experience.state["num_decisions"]), int(experience.state["version"])


class DpoLearner(PolicyLearner[DpoParams, QueuedRaces | PassedDecisions]):
    """Learns from preference pairs: built from the agent's own races, or sampled from given ones."""

    _given: Pairs | None = None
    """The given pairs, in main memory."""

    def insert_pairs(self, pairs: PreferencePairs) -> None:
        """Sets the pairs to learn from.

        Raises:
            AgentError: if `dpo.pairs.kind` is online.
        """
        if isinstance(self._params.pairs, OnlinePairsParams):
            raise AgentError(
                f"{len(pairs.pairs)} pairs are given, and dpo.pairs.kind online makes them of the agent's own races"
            )
        image, floats, action, num_decisions, places = (torch.from_numpy(column) for column in pairs)
        self._given = Pairs(image, floats, action, num_decisions, places, torch.empty(0))

    def _make_queue(self) -> QueuedRaces | PassedDecisions:
        if isinstance(self._params.pairs, OnlinePairsParams):
            return QueuedRaces(self._params.races_per_start, self._device)
        return PassedDecisions()

    def _learn_from_queue(self, means: MetricMeans) -> dict[str, float]:
        facts = {"versions_behind": self._queue.versions_behind(self.version)}
        pairs = self._own_pairs(self._queue, facts) if isinstance(self._queue, QueuedRaces) else self._drawn_pairs()
        self._queue.drop()
        num_samples = 0 if pairs is None else self._fit(pairs, means)
        return facts | {
            "num_pairs": 0.0 if pairs is None else float(len(pairs.pairs)),
            "num_decisions": 0.0 if pairs is None else float(len(pairs.floats)),
            "num_samples": float(num_samples),
            "beta": self._params.beta.at(self.moment),
        }

    def _own_pairs(self, queue: QueuedRaces, facts: dict[str, float]) -> Pairs | None:
        """Returns the best and the worst race of every group whose returns differ by more than `min_gap`, or None."""
        source = self._params.pairs
        assert isinstance(source, OnlinePairsParams)
        returns = queue.returns(source.gamma, source.cut_worth)
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
            for group, *places, counts in zip(queue.groups(), best.tolist(), worst.tolist(), is_pair, strict=True)
            for place in places
            if counts
        ]
        if not races:
            return None
        rows = queue.rows(races)
        pairs = torch.arange(len(races), device=self._device).view(-1, 2)
        return self._with_reference(
            Pairs(rows.image, rows.floats, rows.action, rows.num_decisions, pairs, rows.log_prob[:0])
        )

    def _drawn_pairs(self) -> Pairs:
        """Samples `pairs_per_update` of the given pairs."""
        source = self._params.pairs
        assert not isinstance(source, OnlinePairsParams)
        if self._given is None:
            raise AgentError(f"dpo.pairs.kind {source.kind} learns from pairs that are given, and none were")
        order = torch.randperm(len(self._given.pairs), generator=self._generators.device, device=self._device)
        return self._with_reference(upload(self._given.of(order[: source.pairs_per_update].cpu()), self._device))

    def _with_reference(self, pairs: Pairs) -> Pairs:
        outputs = self._initial_outputs(pairs.image, pairs.floats)
        return pairs._replace(reference=self._distribution.log_prob(outputs, pairs.action))

    def _fit(self, pairs: Pairs, means: MetricMeans) -> int:
        """Runs all epochs, those that train the encoder last; returns the number of decisions learned from."""
        features = pairs._replace(image=self._encode(pairs.image, pairs.floats))
        num_samples = 0
        for rows, decide, num_epochs in self._passes(features, pairs, self._params):
            for which, _ in self._minibatches(len(rows.pairs), self._params.pairs_per_step, num_epochs):
                part = rows.of(which)
                loss = self._gradient_step(part, decide, means)
                means.add(loss=loss.loss, margin=loss.margin, accuracy=loss.accuracy)
                num_samples += len(part.floats)
        return num_samples

    def _gradient_step(
        self, part: Pairs, decide: Callable[[Tensor, Tensor], PolicyAndValue], means: MetricMeans
    ) -> PreferenceLoss:
        """Runs one gradient step and returns the loss before it."""
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
        """Returns log pi / pi_ref of each stretch [S]."""
        # Computed like the reference, so that the first ratios are exactly 1.
        outputs = self._in_parts(lambda image, floats: decide(image, floats).outputs, part.image, part.floats)
        difference = self._distribution.log_prob(outputs, part.action) - part.reference
        return torch.zeros(len(part.num_decisions), device=self._device).index_add(0, part.stretch, difference)


class PreferenceLoss(NamedTuple):
    """Scalars; only `loss` carries a gradient.

    Attributes:
        loss: mean negative log-likelihood of the preferences; ln 2 while the policy equals the reference.
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
        beta: KL penalty coefficient, positive: reward per nat of log-ratio. If a preference holds with probability p,
            the log-ratios of the optimal policy differ by log(p / (1 - p)) / beta.
    """
    margin = beta * (chosen_log_ratio - rejected_log_ratio)
    loss = -functional.logsigmoid(margin).mean()
    return PreferenceLoss(loss, margin.detach().mean(), (margin.detach() > 0.0).float().mean())
