"""Levels 0 and 1: sections `pretrain` and `clone`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field

from rulka.agents.shared.network_params import CloneShape
from rulka.contracts.section import (
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
    key,
)
from rulka.simulator.race_params import LineStartParams
from rulka.tracks.params import MainTrackParams, TracksParams

# Fields with different defaults in the two stages.
Epochs = Annotated[Count, Field(description="passes over the training frames")]
FitLearningRate = Annotated[LearningRate, Field(description="highest; rises at once and falls along half a cosine")]
WeightDecay = Annotated[NotNegative, Field(description="of AdamW, decoupled from the gradient")]


class FitParams(Section):
    """Supervised training, shared by the stages `pretrain` and `clone`."""

    epochs: Epochs = 5
    patience: Count | None = key(None, "epochs without a better one after which training ends; null: never")
    batch_size: BatchSize = key(256, "frames of one gradient step")
    learning_rate: FitLearningRate = 0.002
    weight_decay: WeightDecay = 0.0
    max_grad_norm: Positive = key(1.0, "gradients are scaled down to this norm")
    precision: Literal["auto", "float32", "bfloat16"] = key(
        "auto", "auto: bfloat16 where the processor has instructions for it"
    )
    checkpoint_s: Positive = key(60.0, "seconds between live checkpoints")
    seed: Seed = key(1, "of fresh weights, of the order of the frames and of all noise")


class AutoencoderParams(Section):
    """Reconstruction of frames from their features."""

    kind: Literal["autoencoder"] = key("autoencoder", "mean squared error of the rebuilt frames")


class VaeParams(Section):
    """Reconstruction of frames from a noisy latent code, Kingma and Welling 2013, arXiv:1312.6114."""

    kind: Literal["vae"] = key("vae", "variational autoencoder")
    num_latent: Size = key(64, "numbers of the code")
    kl_weight: NotNegative = key(0.001, "weight of the code's divergence, summed over its numbers")


class ViewsParams(Section):
    """Comparison of two random views of a frame, or of it and a later one; see `rulka.pretraining.objectives`."""

    later: Whole = key(
        0, "the second view is of the frame so many decisions later, and is predicted from the first; 0: the same frame"
    )
    projection: Size = key(128, "numbers in which views are compared")
    crop_pixels: NotNegative = key(8.0, "most rows and columns that a view loses before it is scaled back")
    brightness: float = key(0.2, "a view is lit by a factor within this of 1", ge=0, lt=1)
    blur_pixels: float = key(1.0, "largest standard deviation of a view's blur", ge=0, le=8)
    noise: NotNegative = key(0.1, "largest standard deviation of a view's noise; black to white is 2")


class SimclrParams(ViewsParams):
    """Contrastive learning: finds the other view of a frame in its batch, Chen et al. 2020, arXiv:2002.05709."""

    kind: Literal["simclr"] = key("simclr", "contrastive learning; rebuilds nothing")
    temperature: Positive = key(0.5, "similarities are divided by this")


class VicregParams(ViewsParams):
    """Similar views of a frame, with variance in every dimension over frames, Bardes et al. 2021, arXiv:2105.04906."""

    kind: Literal["vicreg"] = key("vicreg", "variance, invariance and covariance; compares no frame with another")
    invariance: NotNegative = key(25.0, "weight of how far views of a frame are apart")
    variance: NotNegative = key(25.0, "weight of how much less than 1 a number's standard deviation is")
    covariance: NotNegative = key(1.0, "weight of what numbers have in common")


ObjectiveParams = Annotated[AutoencoderParams | VaeParams | SimclrParams | VicregParams, Field(discriminator="kind")]
"""Objective of Level 0, discriminated by `kind`."""


class PretrainParams(FitParams):
    """Stage `pretrain` (Level 0)."""

    epochs: Whole = key(5, "passes over the training frames; 0 keeps the encoder's first weights, such as a backbone's")
    objective: ObjectiveParams = key(AutoencoderParams(), "what the encoder is trained to be good for")

    def _check_combinations(self) -> Iterator[str]:
        if isinstance(self.objective, ViewsParams) and self.batch_size == 1:
            yield f"{self.objective.kind} tells the images of a batch apart: batch_size must be at least 2"


LabelKind = Literal["soft", "hard"]
ImitatedMaps = Literal["main", "all", "others"]
"""Maps whose races are imitated: the main track, all, or all but the main track, whose races then test the policy."""


class DaggerParams(Section):
    """DAgger: the policy drives during training and learns an adviser's actions in the states it visits.

    Ross et al. 2011, arXiv:1011.0686.
    """

    rounds: Count = key(7, "how often it drives")
    every: Count = key(1, "epochs from one round to the next")
    tracks: tuple[TracksParams, ...] = key(
        (MainTrackParams(),), "where it drives, here and to select the epoch", strict=False, min_length=1
    )
    num_races: Several = key(20, "races of a round on each of these, side by side: few if they are many")
    adviser: Literal["driver", "recording"] = key(
        "driver", "who labels: the built-in driver, or a follower of the fastest race of training"
    )
    pace: float = key(0.9, "share of the possible speed at which the driver would drive", gt=0, le=1)


class CloneParams(FitParams, LineStartParams):
    """Stage `clone` (Level 1): behaviour cloning."""

    epochs: Epochs = 8
    learning_rate: FitLearningRate = 0.001
    weight_decay: WeightDecay = 0.01
    shape: CloneShape = key("policy", "network: policy is PPO's, and can guide IQN; iqn can become IQN's values")
    maps: ImitatedMaps = key(
        "main", "whose races are imitated: the main track's, those of all maps, or all but the main track's, to test it"
    )
    previous_action_dropout: Share = key(0.5, "share of samples that do not see the previous actions")
    float_noise: NotNegative = key(0.02, "noise on the floats, in units of the normalisation's std")
    labels: LabelKind = key("soft", "shares of a decision's actions, or the one that was held longest")
    offsets: tuple[Annotated[int, Field(ge=0, le=1000)], ...] = key(
        (0,), "decisions ahead whose actions are learned; 0, the policy, and later ones", strict=False, min_length=1
    )
    dagger: DaggerParams | None = key(None, "null: it learns from recorded races alone")
    race_every: Whole = key(2, "epochs after which it races; the best racer is kept, at 0 the least loss")
    num_races: Several = key(40, "races each time and track, side by side")

    def _check_combinations(self) -> Iterator[str]:
        if self.offsets[0] != 0 or any(low >= high for low, high in pairwise(self.offsets)):
            yield f"offsets must begin with 0, which drives, and rise, not {list(self.offsets)}"
        if self.maps == "others" and (self.race_every or self.dagger):
            yield "with maps: others the main track tests the policy: race_every must be 0, and dagger null"
        if self.dagger and self.dagger.adviser == "recording" and self.dagger.tracks != (MainTrackParams(),):
            yield "dagger's adviser recording drives on the main track: dagger.tracks must be that alone"
        if self.patience and self.dagger and not self.race_every:
            yield "with dagger, patience counts epochs since the best race: race_every must not be 0"
        last = 0 if self.dagger is None else self.dagger.rounds * self.dagger.every
        if last >= self.epochs:
            yield f"dagger's last round comes after epoch {last} of {self.epochs}: none is left to learn of it"
