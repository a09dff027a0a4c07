"""Section `ppo`."""

from __future__ import annotations

from pydantic import Field, model_validator

from rulka.params.algorithm import AlgorithmParams
from rulka.params.base import (
    BatchSize,
    Count,
    LearningRateSchedule,
    NotNegative,
    NotNegativeSchedule,
    Positive,
    Share,
    Whole,
)
from rulka.params.networks import NetworkParams, PartsParams


class PpoParams(AlgorithmParams):
    """Proximal policy optimisation, Schulman et al. 2017, arXiv:1707.06347."""

    steps_per_update: int = Field(ge=2, le=1_000_000, description="decisions of experience for one update")
    epochs: Count = Field(description="passes over the experience of one update")
    encoder_epochs: Whole = Field(description="last epochs of an update, which also train the encoder")
    batch_size: BatchSize = Field(description="decisions of one gradient step")
    learning_rate: LearningRateSchedule = Field(description="of Adam, over environment steps")
    gamma: Share = Field(description="discount of one decision")
    gae_lambda: Share = Field(description="weight of longer returns in advantages: 0 is one step, 1 the whole race")
    clip: Positive = Field(description="how far the probability ratio of an action may leave 1 and still gain")
    value_clip: Positive = Field(description="in units of the root mean square return")
    value_weight: NotNegative = Field(description="of the value loss, beside the policy loss")
    entropy_weight: NotNegativeSchedule = Field(description="of the policy's entropy, over environment steps")
    clone_weight: NotNegativeSchedule = Field(
        description="of the divergence from the policy that it began as, which holds on to it; 0 lets go"
    )
    max_grad_norm: Positive = Field(description="gradients are scaled down to this norm")
    racer_tau: float = Field(
        gt=0,
        le=1,
        description="how far raced weights follow those that learn, once an update; 1 races these",
    )
    max_versions_behind: Whole = Field(description="how many weight versions experience may lag the learner")
    value_warmup_steps: Whole = Field(description="first decisions, from which the value head alone is solved for")
    value_warmup_ridge: NotNegative = Field(
        description="pull of its weights toward 0, as a share of the mean variance of the features"
    )
    max_kl: Positive = Field(description="an update ends when it has moved the policy this far, in nats")

    def impossible(
        self, network: NetworkParams, parts: PartsParams, decision_ms: int, *, is_trained: bool
    ) -> list[tuple[bool, str]]:
        """Returns what cannot be together; see `AlgorithmParams`."""
        return [
            (
                is_trained and parts.heads == "fresh" and self.value_warmup_steps > 0,
                f"ppo.value_warmup_steps {self.value_warmup_steps} spares a cloned policy, and transfer.ppo.heads is "
                "fresh: set ppo.value_warmup_steps to 0",
            ),
        ]

    @property
    def holds_on(self) -> bool:
        """Whether the loss ever holds on to the policy that it began as."""
        return any(value > 0.0 for value in self.clone_weight.values)

    @model_validator(mode="after")
    def _check(self) -> PpoParams:
        if self.encoder_epochs > self.epochs:
            message = f"encoder_epochs {self.encoder_epochs} is larger than epochs {self.epochs}"
            raise ValueError(message)
        if self.batch_size > self.steps_per_update:
            message = f"batch_size {self.batch_size} is larger than steps_per_update {self.steps_per_update}"
            raise ValueError(message)
        return self
