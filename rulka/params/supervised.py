"""Supervised training: sections `pretrain` and `clone`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rulka.params.base import BatchSize, Count, LearningRate, NotNegative, Positive, Section, Seed, Share, Size


class FitParams(Section):
    """Supervised training, shared by the stages `pretrain` and `clone`."""

    epochs: Count
    batch_size: BatchSize
    learning_rate: LearningRate = Field(description="highest; rises at once and falls along half a cosine")
    weight_decay: NotNegative
    max_grad_norm: Positive
    precision: Literal["measured", "float32", "bfloat16"] = Field(description="measured takes the faster one")
    seed: Seed


class PretrainParams(FitParams):
    """Stage `pretrain` (Level 0)."""

    task: Literal["autoencoder", "vae", "simclr"]
    vae_latent: Size = Field(description="latent numbers of the variational autoencoder")
    kl_weight: NotNegative = Field(description="weight of its divergence, summed over the latent numbers")
    simclr_projection: Size
    simclr_temperature: Positive
    simclr_crop_pixels: NotNegative = Field(description="most rows and columns that a view loses")
    simclr_brightness: float = Field(ge=0, lt=1, description="a view is lit by a factor within this of 1")

    @model_validator(mode="after")
    def _check(self) -> PretrainParams:
        if self.task == "simclr" and self.batch_size == 1:
            message = "simclr tells the images of a batch apart: batch_size must be at least 2"
            raise ValueError(message)
        return self


class CloneParams(FitParams):
    """Stage `clone` (Level 1): behaviour cloning."""

    fastest_share: float = Field(gt=0, le=1, description="share of the training races that are imitated, fastest first")
    previous_action_dropout: Share = Field(description="share of samples that do not see the previous actions")
    float_noise: NotNegative = Field(description="noise on the floats, in units of the normalisation's std")
