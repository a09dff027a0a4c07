"""What the sections of algorithms that learn a policy have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field

from rulka.params.algorithm import AlgorithmParams, Beside
from rulka.params.base import (
    BatchSize,
    Count,
    LearningRateSchedule,
    NotNegativeSchedule,
    PositiveSchedule,
    Section,
    ShareSchedule,
    Whole,
    key,
)
from rulka.schedule import Schedule

# Fields of which algorithms have defaults of their own.
StepsPerUpdate = Annotated[int, Field(ge=2, le=1_000_000, description="decisions of experience for one update")]
PolicyLearningRate = Annotated[LearningRateSchedule, Field(description="of Adam, over environment steps")]
RacerTau = Annotated[
    float,
    Field(gt=0, le=1, description="how far raced weights follow those that learn, once an update; 1 races these"),
]
VersionsBehind = Annotated[Whole, Field(description="how many weight versions experience may lag the learner")]
Gamma = Annotated[ShareSchedule, Field(description="discount of one decision")]
CloneWeight = Annotated[
    NotNegativeSchedule,
    Field(description="of the divergence from the policy that it began as, which holds on to it; 0 lets go"),
]
Epochs = Annotated[Count, Field(description="passes over the experience of one update")]


class PolicyParams(AlgorithmParams):
    """Base of the sections of algorithms that learn a policy."""

    steps_per_update: StepsPerUpdate = 8192
    batch_size: BatchSize = key(512, "decisions of one gradient step")
    learning_rate: PolicyLearningRate = Schedule.over_budget("linear", (0.0, 0.0001), (1.0, 0.00001))
    max_grad_norm: PositiveSchedule = key(Schedule.constant(0.5), "gradients are scaled down to this norm")
    # What races greedily and becomes the agent is an average of about ten updates.
    racer_tau: RacerTau = 0.1
    max_versions_behind: VersionsBehind = 1

    @property
    def holds_on(self) -> bool:
        """Whether the loss ever holds on to the policy that it began as."""
        raise NotImplementedError

    def _impossible(self) -> Iterator[str]:
        yield from super()._impossible()
        if self.batch_size > self.steps_per_update:
            yield f"batch_size {self.batch_size} is larger than steps_per_update {self.steps_per_update}"


class PolicyGradientParams(PolicyParams):
    """Base of the sections of algorithms whose policy learns from what its own actions were worth."""

    gamma: Gamma = Schedule.constant(0.985)  # 3.3 s
    entropy_weight: NotNegativeSchedule = key(
        Schedule.over_budget("linear", (0.0, 0.003), (1.0, 0.0)), "of the policy's entropy, over environment steps"
    )
    clone_weight: CloneWeight = Schedule.constant(0.0)

    @property
    def holds_on(self) -> bool:
        """Whether the loss ever holds on to the policy that it began as."""
        return any(value > 0.0 for value in self.clone_weight.values)


class CriticParams(PolicyGradientParams):
    """Base of those whose policy learns with a value."""

    SPLIT: ClassVar[tuple[str, ...]] = ("steps_per_update", "batch_size", "value_warmup_steps")

    value_weight: NotNegativeSchedule = key(Schedule.constant(0.5), "of the value loss, beside the policy loss")
    value_warmup_steps: Whole = key(16_384, "first decisions, from which the value head alone is solved for")

    def impossible(self, beside: Beside) -> Iterator[str]:
        """Yields what cannot be together; see `AlgorithmParams`."""
        yield from super().impossible(beside)
        name, steps = beside.name, self.value_warmup_steps
        if beside.parts.heads == "fresh" and steps > 0:
            yield (
                f"{name}.value_warmup_steps {steps} spares a cloned policy, and transfer.{name}.heads is fresh: "
                f"set {name}.value_warmup_steps to 0"
            )


class EpochsParams(Section):
    """What algorithms say that go through the experience of an update more than once."""

    epochs: Epochs = 4
    # The encoder takes most of the time; until these epochs one pass of it serves all.
    encoder_epochs: Whole = key(1, "last epochs of an update, which also train the encoder")

    def _impossible(self) -> Iterator[str]:
        if self.encoder_epochs > self.epochs:
            yield f"encoder_epochs {self.encoder_epochs} is larger than epochs {self.epochs}"
