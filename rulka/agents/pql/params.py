"""Parameters of parallel Q-learning."""

from __future__ import annotations

from collections.abc import Iterator

from rulka.agents.shared.params import MaxGradNorm, OffPolicyParams, RacerTau, SectionContext
from rulka.contracts.schedule import Schedule
from rulka.contracts.section import (
    TAKE_FREE,
    BatchSize,
    Count,
    LearningRateSchedule,
    NotNegativeSchedule,
    ShareSchedule,
    Whole,
    key,
)

constant, over_budget = Schedule.constant, Schedule.over_budget


class PqlParams(OffPolicyParams):
    """Parallel Q-learning, Li et al. 2023, arXiv:2307.12983."""

    LABEL = "PQL"
    LEARNER = "rulka.agents.pql.learner:PqlLearner"
    ACTOR = "rulka.agents.pql.actor:PqlActor"

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
    gamma: ShareSchedule = key(constant(0.985), "discount of one decision")
    learning_rate: LearningRateSchedule = key(constant(0.0005), "of Adam, for critics and what they see by")
    policy_learning_rate: LearningRateSchedule = key(constant(0.0001), "of Adam, for trunk and heads of the policy")
    max_grad_norm: MaxGradNorm = constant(1.0)
    target_tau: float = key(0.05, "step of the slow critics toward those that learn, an update", gt=0, le=1)
    noise_least: ShareSchedule = key(constant(0.02), "noise of a first car: half intervals, or share of random actions")
    noise_most: ShareSchedule = key(constant(0.3), "the same of the last car of a collector; others lie between")
    entropy_weight: NotNegativeSchedule = key(
        over_budget("linear", (0.0, 0.01), (1.0, 0.001)),
        "of the policy's entropy, where decisions are choices",
    )
    racer_tau: RacerTau = 0.02

    def impossible(self, context: SectionContext) -> Iterator[str]:
        """Yields conflicts; see `AlgorithmParams`."""
        yield from super().impossible(context)
        if context.acting_precision is not None:
            acting = f"train.acting_precision is {context.acting_precision}"
            yield f"{acting}, and pql acts in train.precision: set it to null"
        if self.policy_process and context.is_exact:
            yield f"pql.policy_process has two processes learn, each as fast as it is: {TAKE_FREE}"
        if context.network.actions_per_decision > 1:
            yield (
                "pql rates single actions: set network.actions_per_decision to 1, or train.algorithm and "
                "train.compared to what decides for chunks"
            )
        if context.parts.heads == "fresh" and self.critic_warmup_updates > 0:
            yield (
                f"pql.critic_warmup_updates {self.critic_warmup_updates} spares a cloned policy, and "
                "transfer.pql.heads is fresh: set pql.critic_warmup_updates to 0"
            )

    def _check_combinations(self) -> Iterator[str]:
        yield from super()._check_combinations()
        least, most = max(self.noise_least.values), max(self.noise_most.values)
        if least > most:
            yield f"noise_least {least} is larger than noise_most {most}"
