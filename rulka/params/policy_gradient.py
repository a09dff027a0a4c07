"""What the sections of algorithms that learn a policy have in common."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from rulka.params.algorithm import AlgorithmParams
from rulka.params.base import (
    Algorithm,
    BatchSize,
    Count,
    LearningRateSchedule,
    NotNegativeSchedule,
    PositiveSchedule,
    Section,
    ShareSchedule,
    Whole,
)
from rulka.params.networks import PartsParams


class PolicyParams(AlgorithmParams):
    """Base of the sections of algorithms that learn a policy."""

    steps_per_update: int = Field(ge=2, le=1_000_000, description="decisions of experience for one update")
    batch_size: BatchSize = Field(description="decisions of one gradient step")
    learning_rate: LearningRateSchedule = Field(description="of Adam, over environment steps")
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
        raise NotImplementedError

    @model_validator(mode="after")
    def _check_batch(self) -> PolicyParams:
        if self.batch_size > self.steps_per_update:
            message = f"batch_size {self.batch_size} is larger than steps_per_update {self.steps_per_update}"
            raise ValueError(message)
        return self


class PolicyGradientParams(PolicyParams):
    """Base of the sections of algorithms whose policy learns from what its own actions were worth."""

    gamma: ShareSchedule = Field(description="discount of one decision")
    entropy_weight: NotNegativeSchedule = Field(description="of the policy's entropy, over environment steps")
    clone_weight: NotNegativeSchedule = Field(
        description="of the divergence from the policy that it began as, which holds on to it; 0 lets go"
    )

    @property
    def holds_on(self) -> bool:
        """Whether the loss ever holds on to the policy that it began as."""
        return any(value > 0.0 for value in self.clone_weight.values)


class CriticParams(PolicyGradientParams):
    """Base of those whose policy learns with a value."""

    SPLIT: ClassVar[tuple[str, ...]] = ("steps_per_update", "batch_size", "value_warmup_steps")

    value_weight: NotNegativeSchedule = Field(description="of the value loss, beside the policy loss")
    value_warmup_steps: Whole = Field(description="first decisions, from which the value head alone is solved for")

    def warmup_without_clone(self, name: Algorithm, parts: PartsParams, *, is_trained: bool) -> tuple[bool, str]:
        """Returns whether the value is solved for though no policy is spared by it, and what is wrong with that."""
        return (
            is_trained and parts.heads == "fresh" and self.value_warmup_steps > 0,
            f"{name}.value_warmup_steps {self.value_warmup_steps} spares a cloned policy, and transfer.{name}.heads is "
            f"fresh: set {name}.value_warmup_steps to 0",
        )


class EpochsParams(Section):
    """What algorithms say that go through the experience of an update more than once."""

    epochs: Count = Field(description="passes over the experience of one update")
    encoder_epochs: Whole = Field(description="last epochs of an update, which also train the encoder")

    @model_validator(mode="after")
    def _check_epochs(self) -> EpochsParams:
        if self.encoder_epochs > self.epochs:
            message = f"encoder_epochs {self.encoder_epochs} is larger than epochs {self.epochs}"
            raise ValueError(message)
        return self
