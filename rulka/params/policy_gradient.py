"""What the sections of algorithms that learn a policy have in common."""

from __future__ import annotations

from pydantic import Field, model_validator

from rulka.params.algorithm import AlgorithmParams
from rulka.params.base import (
    Algorithm,
    BatchSize,
    LearningRateSchedule,
    NotNegative,
    NotNegativeSchedule,
    PositiveSchedule,
    ShareSchedule,
    Whole,
)
from rulka.params.networks import PartsParams


class PolicyGradientParams(AlgorithmParams):
    """Base of the sections of algorithms whose policy learns from what it did itself."""

    steps_per_update: int = Field(ge=2, le=1_000_000, description="decisions of experience for one update")
    batch_size: BatchSize = Field(description="decisions of one gradient step")
    learning_rate: LearningRateSchedule = Field(description="of Adam, over environment steps")
    gamma: ShareSchedule = Field(description="discount of one decision")
    entropy_weight: NotNegativeSchedule = Field(description="of the policy's entropy, over environment steps")
    clone_weight: NotNegativeSchedule = Field(
        description="of the divergence from the policy that it began as, which holds on to it; 0 lets go"
    )
    max_grad_norm: PositiveSchedule = Field(description="gradients are scaled down to this norm")
    racer_tau: float = Field(
        gt=0,
        le=1,
        description="how far raced weights follow those that learn, once an update; 1 races these",
    )
    max_versions_behind: Whole = Field(description="how many weight versions experience may lag the learner")

    @property
    def holds_on(self) -> bool:
        """Whether the loss ever holds on to the policy that it began as."""
        return any(value > 0.0 for value in self.clone_weight.values)

    @model_validator(mode="after")
    def _check_batch(self) -> PolicyGradientParams:
        if self.batch_size > self.steps_per_update:
            message = f"batch_size {self.batch_size} is larger than steps_per_update {self.steps_per_update}"
            raise ValueError(message)
        return self


class CriticParams(PolicyGradientParams):
    """Base of those whose policy learns with a value."""

    value_weight: NotNegativeSchedule = Field(description="of the value loss, beside the policy loss")
    value_warmup_steps: Whole = Field(description="first decisions, from which the value head alone is solved for")
    value_warmup_ridge: NotNegative = Field(
        description="pull of its weights toward 0, as a share of the mean variance of the features"
    )

    def warmup_without_clone(self, name: Algorithm, parts: PartsParams, *, is_trained: bool) -> tuple[bool, str]:
        """Returns whether the value is solved for though no policy is spared by it, and what is wrong with that."""
        return (
            is_trained and parts.heads == "fresh" and self.value_warmup_steps > 0,
            f"{name}.value_warmup_steps {self.value_warmup_steps} spares a cloned policy, and transfer.{name}.heads is "
            f"fresh: set {name}.value_warmup_steps to 0",
        )
