"""Supervised training: sections `pretrain` and `clone`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rulka.params.base import (
    BatchSize,
    Count,
    LearningRate,
    NotNegative,
    Positive,
    Section,
    Seed,
    Several,
    Share,
    Size,
    Whole,
)


class FitParams(Section):
    """Supervised training, shared by the stages `pretrain` and `clone`."""

    epochs: Count = Field(description="passes over the training frames")
    batch_size: BatchSize = Field(description="frames of one gradient step")
    learning_rate: LearningRate = Field(description="highest; rises at once and falls along half a cosine")
    weight_decay: NotNegative = Field(description="of AdamW, decoupled from the gradient")
    max_grad_norm: Positive = Field(description="gradients are scaled down to this norm")
    precision: Literal["measured", "float32", "bfloat16"] = Field(description="measured takes the faster one")
    seed: Seed = Field(description="of fresh weights, of the order of the frames and of all noise")


class AutoencoderParams(Section):
    """Frames are rebuilt from their features."""

    kind: Literal["autoencoder"] = Field(description="mean squared error of the rebuilt frames")


class VaeParams(Section):
    """Frames are rebuilt from a noisy code, Kingma and Welling 2013, arXiv:1312.6114."""

    kind: Literal["vae"] = Field(description="variational autoencoder")
    num_latent: Size = Field(description="numbers of the code")
    kl_weight: NotNegative = Field(description="weight of the code's divergence, summed over its numbers")


class SimclrParams(Section):
    """Two views of a frame are found among those of its batch, Chen et al. 2020, arXiv:2002.05709."""

    kind: Literal["simclr"] = Field(description="contrastive learning; rebuilds nothing")
    projection: Size = Field(description="numbers in which views are compared")
    temperature: Positive = Field(description="similarities are divided by this")
    crop_pixels: NotNegative = Field(description="most rows and columns that a view loses before it is scaled back")
    brightness: float = Field(ge=0, lt=1, description="a view is lit by a factor within this of 1")


ObjectiveParams = Annotated[AutoencoderParams | VaeParams | SimclrParams, Field(discriminator="kind")]
"""What Level 0 learns from, told apart by its `kind`."""


class PretrainParams(FitParams):
    """Stage `pretrain` (Level 0)."""

    objective: ObjectiveParams = Field(description="what the encoder is trained to be good for")

    @model_validator(mode="after")
    def _check(self) -> PretrainParams:
        if self.objective.kind == "simclr" and self.batch_size == 1:
            message = "simclr tells the images of a batch apart: batch_size must be at least 2"
            raise ValueError(message)
        return self


class CloneParams(FitParams):
    """Stage `clone` (Level 1): behaviour cloning."""

    fastest_share: float = Field(gt=0, le=1, description="share of the training races that are imitated, fastest first")
    previous_action_dropout: Share = Field(description="share of samples that do not see the previous actions")
    float_noise: NotNegative = Field(description="noise on the floats, in units of the normalisation's std")
    race_every: Whole = Field(description="epochs after which it races; the best racer is kept, at 0 the least loss")
    num_races: Several = Field(description="races each time, side by side")
