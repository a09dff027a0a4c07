"""Section `pql`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from rulka.params.algorithm import AlgorithmParams, Beside, StillEncoderParams
from rulka.params.base import (
    BatchSize,
    Count,
    LearningRateSchedule,
    NotNegativeSchedule,
    PositiveSchedule,
    Section,
    ShareSchedule,
    Weight,
    Whole,
    key,
)
from rulka.schedule import Schedule


class MeanReturnParams(Section):
    """Critics say what is earned on average, and their loss is the squared error."""

    kind: Literal["mean"] = key("mean", "the mean return")


class C51Params(Section):
    """Critics say how likely each of some returns is, Bellemare et al. 2017, arXiv:1707.06887."""

    kind: Literal["c51"] = key("c51", "the distribution of the return over atoms")
    atoms: int = key(51, "returns that are told apart, at equal distances", ge=2, le=1001)
    least: Weight = key(-10.0, "return of the first atom; smaller ones count as this")
    most: Weight = key(40.0, "return of the last atom; larger ones count as this")

    def _impossible(self) -> Iterator[str]:
        if self.least >= self.most:
            yield f"least {self.least:g} must be smaller than most {self.most:g}"


class PqlParams(AlgorithmParams):
    """Parallel Q-learning, Li et al. 2023, arXiv:2307.12983."""

    # Sections are frozen, so that a narrower type is safe.
    rate_of: StillEncoderParams = key(  # pyright: ignore[reportIncompatibleVariableOverride]
        StillEncoderParams(), "factors of the learning rate, by part of the network; 0 freezes one"
    )
    critic: MeanReturnParams | C51Params = key(
        MeanReturnParams(), "what the critics say of a return", discriminator="kind"
    )
    steps_per_critic_update: Count = key(32, "decisions for one update of the critics: beta_a:v, exactly")
    critic_updates_per_policy_update: Count = key(2, "of these for one of the policy: beta_p:v, exactly")
    policy_process: bool = key(False, "the policy learns in a process of its own, where collectors have theirs")
    critic_updates_per_version: Count = key(8, "of these between two versions of the weights")
    critic_warmup_updates: Whole = key(
        1000, "first updates of the critics, in which all else stays as it is: a cloned policy waits for them"
    )
    max_steps_ahead: Whole = key(4096, "decisions that collectors may be ahead of those that are due")
    batch_size: BatchSize = key(512, "transitions of an update of the critics, and states of one of the policy")
    n_steps: Count = key(3, "most decisions in a transition")
    gamma: ShareSchedule = key(Schedule.constant(0.985), "discount of one decision")
    learning_rate: LearningRateSchedule = key(Schedule.constant(0.0005), "of Adam, for critics and what they see by")
    policy_learning_rate: LearningRateSchedule = key(
        Schedule.constant(0.0001), "of Adam, for trunk and heads of the policy"
    )
    max_grad_norm: PositiveSchedule = key(Schedule.constant(1.0), "gradients are scaled down to this norm")
    target_tau: float = key(0.05, "step of the slow critics toward those that learn, an update", gt=0, le=1)
    noise_least: ShareSchedule = key(
        Schedule.constant(0.02), "noise of a first car: half intervals, or share of random actions"
    )
    noise_most: ShareSchedule = key(
        Schedule.constant(0.3), "the same of the last car of a collector; others lie between"
    )
    entropy_weight: NotNegativeSchedule = key(
        Schedule.over_budget("linear", (0.0, 0.01), (1.0, 0.001)),
        "of the policy's entropy, where decisions are choices",
    )
    racer_tau: float = key(
        0.02, "how far raced weights follow those that learn, once a version; 1 races these", gt=0, le=1
    )
    buffer_steps: Count = key(100_000, "decisions kept")
    start_steps: Count = key(8192, "decisions in the buffer before the first update")

    @property
    def acts_quantised(self) -> bool:
        """Never: nobody has written it."""
        return False

    def impossible(self, beside: Beside) -> Iterator[str]:
        """Yields what cannot be together; see `AlgorithmParams`."""
        yield from super().impossible(beside)
        if beside.network.actions_per_decision > 1:
            yield (
                "pql rates single actions: set network.actions_per_decision to 1, or train.algorithm and "
                "train.compared to what decides for chunks"
            )
        if beside.parts.heads == "fresh" and self.critic_warmup_updates > 0:
            yield (
                f"pql.critic_warmup_updates {self.critic_warmup_updates} spares a cloned policy, and "
                "transfer.pql.heads is fresh: set pql.critic_warmup_updates to 0"
            )

    def _impossible(self) -> Iterator[str]:
        least, most = max(self.noise_least.values), max(self.noise_most.values)
        if self.start_steps > self.buffer_steps:
            yield f"start_steps {self.start_steps} is larger than buffer_steps {self.buffer_steps}"
        if least > most:
            yield f"noise_least {least} is larger than noise_most {most}"
