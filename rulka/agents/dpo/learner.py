"""Direct preference optimisation, Rafailov et al. 2023, arXiv:2305.18290: how it learns.

Pairs are races of the agent itself, the best and the worst of a group that began alike, or were given before training
began. The reference is the policy that learning began with and stays that, as the paper's. The loss of a pair is one
number for all decisions of two stretches, more than fit into one pass: how much the log-ratio of each stretch counts is
found first, without gradients, and then the gradient is summed up part by part, to the same as that of the whole.
Dimensions: M decisions, S stretches, P pairs, L frames seen at once, H x W pixels, F floats, E image features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from models.actor_critic import PolicyAndValue
from rulka.agents.dpo.passed import PassedDecisions
from rulka.agents.metrics import MetricMeans
from rulka.agents.policy_gradient.learner import BasePolicyLearner
from rulka.agents.policy_gradient.waiting_races import WaitingRaces
from rulka.agents.precision import autocast
from rulka.agents.spec import AgentError
from rulka.buffers.pairs import PreferencePairs
from rulka.device import upload
from rulka.losses.dpo import PreferenceLoss, preference_loss
from rulka.params import DpoParams, OnlinePairsParams


class _Pairs(NamedTuple):
    """What an update learns from; see `rulka.buffers.pairs`, with what the reference thinks of it.

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

    def of(self, which: Tensor) -> _Pairs:
        """Returns some of the pairs, with the stretches of those alone."""
        stretches, places = self.pairs[which].unique(return_inverse=True)
        lengths = self.num_decisions[stretches]
        ends = self.num_decisions.cumsum(0)[stretches]
        first = (ends - lengths).repeat_interleave(lengths)
        # Each stretch counts from its first row on: all rows from 0 on, less those of the stretches before it here.
        before = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
        rows = first + torch.arange(len(first), device=first.device) - before
        reference = self.reference[rows] if len(self.reference) else self.reference
        return _Pairs(self.image[rows], self.floats[rows], self.action[rows], lengths, places, reference)

    @property
    def stretch(self) -> Tensor:
        """[M] number of the stretch of each decision."""
        return torch.arange(len(self.num_decisions), device=self.pairs.device).repeat_interleave(self.num_decisions)


class DpoLearner(BasePolicyLearner[DpoParams, WaitingRaces | PassedDecisions]):
    """Makes pairs of what the agent drove, or draws some of those that were given, and learns to prefer."""

    _given: _Pairs | None = None
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
        self._given = _Pairs(image, floats, action, num_decisions, places, torch.empty(0))

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

    def _own_pairs(self, waiting: WaitingRaces, facts: dict[str, float]) -> _Pairs | None:
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
            _Pairs(rows.image, rows.floats, rows.action, rows.num_decisions, pairs, rows.log_prob[:0])
        )

    def _drawn_pairs(self) -> _Pairs:
        """Returns some of the given pairs."""
        source = self._params.pairs
        assert not isinstance(source, OnlinePairsParams)
        if self._given is None:
            message = f"dpo.pairs.kind {source.kind} learns from pairs that are given, and none were"
            raise AgentError(message)
        order = torch.randperm(len(self._given.pairs), generator=self._generators.device, device=self._device)
        return self._with_reference(upload(self._given.of(order[: source.pairs_per_update].cpu()), self._device))

    def _with_reference(self, pairs: _Pairs) -> _Pairs:
        outputs = self._first_outputs(pairs.image, pairs.floats)
        return pairs._replace(reference=self._distribution.log_prob(outputs, pairs.action))

    def _fit(self, pairs: _Pairs, means: MetricMeans) -> int:
        """Makes the gradient steps of all epochs, the encoder's last; returns how many decisions were learned from."""
        params, network = self._params, self.network
        num_encoder_epochs = self._num_encoder_epochs(params)
        features = pairs._replace(image=self._encode(pairs.image, pairs.floats))
        parts = (
            (features, network.decide, params.epochs - num_encoder_epochs),
            (pairs, network, num_encoder_epochs),
        )
        num_samples = 0
        for rows, decide, num_epochs in parts:
            for which in self._minibatches(len(rows.pairs), params.pairs_per_step, num_epochs):
                part = rows.of(which)
                loss = self._learn_from(part, decide, means)
                means.add(loss=loss.loss, margin=loss.margin, accuracy=loss.accuracy)
                num_samples += len(part.floats)
        return num_samples

    def _learn_from(
        self, part: _Pairs, decide: Callable[[Tensor, Tensor], PolicyAndValue], means: MetricMeans
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

    def _log_ratios(self, part: _Pairs, decide: Callable[[Tensor, Tensor], PolicyAndValue]) -> Tensor:
        """Returns how much likelier each stretch [S] is now than under the reference, as logarithms."""
        size = self._params.batch_size
        seen = zip(part.image.split(size), part.floats.split(size), strict=True)
        self.network.eval()  # as the reference was computed, so that the first ratios are 1 to the bit
        with torch.no_grad(), autocast(self.precision, self._device):
            outputs = torch.cat([decide(image, floats).outputs for image, floats in seen])
        self.network.train()
        difference = self._distribution.log_prob(outputs, part.action) - part.reference
        return torch.zeros(len(part.num_decisions), device=self._device).index_add(0, part.stretch, difference)
