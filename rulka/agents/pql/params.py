"""Parameters of parallel Q-learning."""

from __future__ import annotations

from collections.abc import Iterator

from rulka.agents.shared.params import Gamma, MaxGradNorm, OffPolicyParams, RacerTau, SectionContext
from rulka.contracts.schedule import Schedule
from rulka.contracts.section import (
    NEEDS_FREE,
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

    steps_per_critic_update: Count = key(32, "Decisions per critic update, exactly (paper's beta_a:v).")
    critic_updates_per_policy_update: Count = key(2, "Critic updates per policy update, exactly (paper's beta_p:v).")
    policy_process: bool = key(False, "Learn the policy in a process of its own, if collectors have theirs.")
    critic_updates_per_version: Count = key(8, "Critic updates per version of the weights.")
    critic_warmup_updates: Whole = key(1000, "First critic updates, during which the policy stays as cloned.")
    max_steps_ahead: Whole = key(4096, "Decisions that collectors may be ahead of those that are due.")
    batch_size: BatchSize = key(512, "Transitions per critic update, and states per policy update.")
    n_steps: Count = key(3, "Largest number of decisions in a transition.")
    gamma: Gamma = constant(0.985)
    learning_rate: LearningRateSchedule = key(
        constant(0.0005), "Adam's learning rate for critics, encoder and float head."
    )
    policy_learning_rate: LearningRateSchedule = key(
        constant(0.0001), "Adam's learning rate for trunk and heads of the policy."
    )
    max_grad_norm: MaxGradNorm = constant(1.0)
    target_tau: float = key(0.05, "Step of the target critics toward the learned ones, per update.", gt=0, le=1)
    noise_least: ShareSchedule = key(
        constant(0.02), "Noise of a collector's first car: half intervals, or share of random actions."
    )
    noise_most: ShareSchedule = key(constant(0.3), "Noise of a collector's last car; others lie between.")
    entropy_weight: NotNegativeSchedule = key(
        over_budget("linear", (0.0, 0.01), (1.0, 0.001)),
        "Weight of the policy's entropy bonus, if decisions are discrete.",
    )
    racer_tau: RacerTau = 0.02

    def impossible(self, context: SectionContext) -> Iterator[str]:
        """Yields conflicts; see `AlgorithmParams`."""
        yield from super().impossible(context)
        if self.policy_process and context.is_exact:
            yield f"pql.policy_process {NEEDS_FREE}, or pql.policy_process to false"
        if (count := context.network.num_parts) > 1:
            yield f"pql needs single actions, but network.actions_per_decision is {count}: set it to 1"
        if context.parts.heads == "fresh" and self.critic_warmup_updates > 0:
            yield (
                f"pql.critic_warmup_updates {self.critic_warmup_updates} needs a trained policy, but "
                "transfer.pql.heads is fresh: set pql.critic_warmup_updates to 0, or transfer.pql.heads to cloned"
            )

    def _check_combinations(self) -> Iterator[str]:
        yield from super()._check_combinations()
        least, most = max(self.noise_least.values), max(self.noise_most.values)
        if least > most:
            yield f"noise_least needs to be at most noise_most, but {least} is greater than {most}: lower noise_least"
