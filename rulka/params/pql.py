"""Section `pql`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rulka.params.algorithm import AlgorithmParams
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
    refuse_impossible,
)
from rulka.params.networks import NetworkParams, PartsParams


class MeanReturnParams(Section):
    """Critics say what is earned on average, and their loss is the squared error."""

    kind: Literal["mean"] = Field(description="the mean return")


class C51Params(Section):
    """Critics say how likely each of some returns is, Bellemare et al. 2017, arXiv:1707.06887."""

    kind: Literal["c51"] = Field(description="the distribution of the return over atoms")
    atoms: int = Field(ge=2, le=1001, description="returns that are told apart, at equal distances")
    least: Weight = Field(description="return of the first atom; smaller ones count as this")
    most: Weight = Field(description="return of the last atom; larger ones count as this")

    @model_validator(mode="after")
    def _check(self) -> C51Params:
        if self.least >= self.most:
            message = f"least {self.least:g} must be smaller than most {self.most:g}"
            raise ValueError(message)
        return self


class PqlParams(AlgorithmParams):
    """Parallel Q-learning, Li et al. 2023, arXiv:2307.12983."""

    critic: Annotated[MeanReturnParams | C51Params, Field(discriminator="kind")] = Field(
        description="what the critics say of a return"
    )
    steps_per_critic_update: Count = Field(description="decisions for one update of the critics: beta_a:v, exactly")
    critic_updates_per_policy_update: Count = Field(description="of these for one of the policy: beta_p:v, exactly")
    policy_process: bool = Field(description="the policy learns in a process of its own, where collectors have theirs")
    critic_updates_per_version: Count = Field(description="of these between two versions of the weights")
    critic_warmup_updates: Whole = Field(
        description="first updates of the critics, in which all else stays as it is: a cloned policy waits for them"
    )
    max_steps_ahead: Whole = Field(description="decisions that collectors may be ahead of those that are due")
    batch_size: BatchSize = Field(
        description="transitions of an update of the critics, and states of one of the policy"
    )
    n_steps: Count = Field(description="most decisions in a transition")
    gamma: ShareSchedule = Field(description="discount of one decision")
    learning_rate: LearningRateSchedule = Field(description="of Adam, for critics and what they see by")
    policy_learning_rate: LearningRateSchedule = Field(description="of Adam, for trunk and heads of the policy")
    max_grad_norm: PositiveSchedule = Field(description="gradients are scaled down to this norm")
    target_tau: float = Field(gt=0, le=1, description="step of the slow critics toward those that learn, an update")
    noise_least: ShareSchedule = Field(description="noise of a first car: half intervals, or share of random actions")
    noise_most: ShareSchedule = Field(description="the same of the last car of a collector; others lie between")
    entropy_weight: NotNegativeSchedule = Field(description="of the policy's entropy, where decisions are choices")
    racer_tau: float = Field(
        gt=0, le=1, description="how far raced weights follow those that learn, once a version; 1 races these"
    )
    buffer_steps: Count = Field(description="decisions kept")
    start_steps: Count = Field(description="decisions in the buffer before the first update")

    def impossible(
        self, network: NetworkParams, parts: PartsParams, decision_ms: int, *, is_trained: bool
    ) -> list[tuple[bool, str]]:
        """Returns what cannot be together; see `AlgorithmParams`."""
        del decision_ms
        return [
            (
                is_trained and network.actions_per_decision > 1,
                "pql rates single actions: set network.actions_per_decision to 1, or train.algorithm and "
                "train.compared to what decides for chunks",
            ),
            (
                is_trained and parts.heads == "fresh" and self.critic_warmup_updates > 0,
                f"pql.critic_warmup_updates {self.critic_warmup_updates} spares a cloned policy, and "
                "transfer.pql.heads is fresh: set pql.critic_warmup_updates to 0",
            ),
        ]

    @model_validator(mode="after")
    def _check(self) -> PqlParams:
        refuse_impossible(
            [
                (
                    self.start_steps > self.buffer_steps,
                    f"start_steps {self.start_steps} is larger than buffer_steps {self.buffer_steps}",
                ),
                (
                    max(self.noise_least.values) > max(self.noise_most.values),
                    f"noise_least {max(self.noise_least.values)} is larger than noise_most "
                    f"{max(self.noise_most.values)}",
                ),
            ]
        )
        return self
