"""Levels 0 and 1: sections `pretrain` and `clone`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field

from rulka.agents.shared.network_params import CloneShape
from rulka.contracts.observation_params import PartNormalisationParams
from rulka.contracts.section import (
    BatchSize,
    Count,
    LearningPrecision,
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
from rulka.planner.params import PlannerParams
from rulka.simulator.race_params import LineStartParams
from rulka.tracks.params import MainTrackParams, TracksParams

# Fields with different defaults in the two stages.
Epochs = Annotated[Count, Field(description="Passes over the training frames.")]
FitLearningRate = Annotated[
    LearningRate, Field(description="Peak learning rate, after a short linear warm-up; falls along half a cosine.")
]
WeightDecay = Annotated[NotNegative, Field(description="AdamW's weight decay, decoupled from the gradient.")]


class FitParams(Section):
    """Supervised training, shared by the stages `pretrain` and `clone`."""

    epochs: Epochs = 5
    patience: Count | None = key(None, "Epochs without improvement after which training stops; null for all epochs.")
    batch_size: BatchSize = key(256, "Frames per gradient step.")
    learning_rate: FitLearningRate = 0.002
    weight_decay: WeightDecay = 0.0
    max_grad_norm: Positive = key(1.0, "Gradient norm that larger gradients are scaled down to.")
    precision: LearningPrecision = "auto"
    checkpoint_s: Positive = key(60.0, "Interval between checkpoints, in seconds.")
    seed: Seed = key(1, "Seed of fresh weights, frame order and all noise.")


class AutoencoderParams(Section):
    """Reconstruction of frames from their features."""

    kind: Literal["autoencoder"] = key("autoencoder", "Autoencoder, by the mean squared error of reconstructed frames.")


class VaeParams(Section):
    """Reconstruction of frames from a noisy latent code, Kingma and Welling 2013, arXiv:1312.6114."""

    kind: Literal["vae"] = key("vae", "Variational autoencoder.")
    num_latent: Size = key(64, "Size of the latent code.")
    kl_weight: NotNegative = key(0.001, "Weight of the latent code's KL divergence, summed over its dimensions.")


class ViewsParams(Section):
    """Comparison of two random views of a frame, or of it and a later one; see `rulka.pretraining.objectives`."""

    later: Whole = key(0, "Decisions from the first view's frame to the second's, which it predicts; 0: the same.")
    projection: Size = key(128, "Size of the projection in which views are compared.")
    crop_pixels: NotNegative = key(8.0, "Largest crop of a view before it is scaled back, in pixels per side.")
    brightness: float = key(0.2, "Largest relative change of a view's brightness.", ge=0, lt=1)
    blur_pixels: float = key(1.0, "Largest standard deviation of a view's blur, in pixels.", ge=0, le=8)
    noise: NotNegative = key(0.1, "Largest standard deviation of a view's noise; black to white is 2.")


class SimclrParams(ViewsParams):
    """Contrastive learning: finds the other view of a frame in its batch, Chen et al. 2020, arXiv:2002.05709."""

    kind: Literal["simclr"] = key("simclr", "Contrastive learning; reconstructs no frames.")
    temperature: Positive = key(0.5, "Temperature that similarities are divided by.")


class VicregParams(ViewsParams):
    """Similar views of a frame, with variance in every dimension over frames, Bardes et al. 2021, arXiv:2105.04906."""

    kind: Literal["vicreg"] = key("vicreg", "Variance, invariance and covariance; compares no frame with another.")
    invariance: NotNegative = key(25.0, "Weight of the distance between views of a frame.")
    variance: NotNegative = key(25.0, "Weight of the shortfall of each dimension's standard deviation below 1.")
    covariance: NotNegative = key(1.0, "Weight of the covariance between dimensions.")


ObjectiveParams = Annotated[AutoencoderParams | VaeParams | SimclrParams | VicregParams, Field(discriminator="kind")]
"""Objective of Level 0, discriminated by `kind`."""


class PretrainParams(FitParams):
    """Stage `pretrain` (Level 0)."""

    epochs: Whole = key(5, "Passes over the training frames; 0 keeps the encoder's first weights, say a backbone's.")
    objective: ObjectiveParams = key(AutoencoderParams(), "Training objective of the encoder.")
    normalisation: tuple[PartNormalisationParams, ...] = key(
        (), "Parts of the floats normalised otherwise than in the reference, here and in all networks.", strict=False
    )

    def _check_combinations(self) -> Iterator[str]:
        parts = [each.part for each in self.normalisation]
        if len(set(parts)) < len(parts):
            yield f"normalisation needs each part once, but has {', '.join(parts)}: remove one"
        if isinstance(self.objective, ViewsParams) and self.batch_size == 1:
            yield f"objective {self.objective.kind} needs several images in a batch, but batch_size is 1: raise it"


LabelKind = Literal["soft", "hard"]
ImitatedMaps = Literal["main", "all", "others"]
"""Maps whose races are imitated: the main track, all, or all but the main track, whose races then test the policy."""


class DaggerParams(Section):
    """DAgger: the policy drives during training and learns an adviser's actions in the states it visits.

    Ross et al. 2011, arXiv:1011.0686.
    """

    rounds: Count = key(8, "Number of rounds in which the policy drives.")
    every: Count = key(1, "Epochs from one round to the next.")
    tracks: tuple[TracksParams, ...] = key(
        (MainTrackParams(),),
        "Tracks that the policy drives on, for DAgger and to select the epoch; generated ones are new in each round.",
        strict=False,
        min_length=1,
    )
    num_races: Several = key(20, "Races per round and track, side by side; few if there are many tracks.")
    adviser: Literal["planner", "recording", "recorded_line"] = key(
        "planner", "The planner races (on from the reference lap's line), follows the fastest race, or races near it."
    )
    planner: PlannerParams = key(PlannerParams(), "Plans of the labeller.")
    keep: bool = key(False, "Demonstrations remain in the batches once visited states are labelled.")
    epoch_frames: Count | None = key(None, "Frames of an epoch from then on, at most; null: as many as are imitated.")


class CloneParams(FitParams, LineStartParams):
    """Stage `clone` (Level 1): behaviour cloning."""

    epochs: Epochs = 12
    batch_size: BatchSize = key(128, "Frames per gradient step.")
    learning_rate: FitLearningRate = 0.001
    weight_decay: WeightDecay = 0.01
    precision: LearningPrecision = "float32"  # bfloat16 may cost speed on the track: docs/levels.md
    shape: CloneShape = key("policy", "Network: policy is PPO's, and can guide IQN; iqn can become IQN's Q-values.")
    maps: ImitatedMaps = key(
        "main",
        "Imitated maps: the main track, all, or all others, so that it tests the policy.",
    )
    previous_action_dropout: Share = key(0.5, "Share of samples whose previous actions are hidden.")
    float_noise: NotNegative = key(0.02, "Standard deviation of noise on the normalised floats.")
    labels: LabelKind = key("soft", "Labels: shares of a decision's actions (soft), or the action held longest (hard).")
    offsets: tuple[Annotated[int, Field(ge=0, le=1000)], ...] = key(
        (0,),
        "Decisions ahead whose actions are learned: 0, which is the policy, and later ones.",
        strict=False,
        min_length=1,
    )
    dagger: DaggerParams | None = key(DaggerParams(), "DAgger; null learns from recorded races alone.")
    takeovers: bool = key(True, "Learns from the ticks that a person drove in an agent's place on the driving page.")
    race_every: Whole = key(2, "Epochs between races, whose best result selects the epoch; 0: by validation loss.")
    num_races: Several = key(40, "Races per selection and track, side by side.")

    def _check_combinations(self) -> Iterator[str]:
        if self.offsets[0] != 0 or any(low >= high for low, high in pairwise(self.offsets)):
            yield f"offsets need to rise from 0, which drives, but are {list(self.offsets)}: sort them"
        if self.maps == "others" and (self.race_every or self.dagger):
            yield "maps others needs an unseen main track: set race_every to 0 and dagger to null, or maps to all"
        if self.dagger and self.dagger.adviser != "planner" and self.dagger.tracks != (MainTrackParams(),):
            yield f"dagger.adviser {self.dagger.adviser} needs the main track alone: remove dagger.tracks"
        if self.patience and self.dagger and not self.race_every:
            yield "patience with dagger needs races, but race_every is 0: set it to 1 or more, or patience to null"
        last = 0 if self.dagger is None else self.dagger.rounds * self.dagger.every
        if last >= self.epochs:
            yield f"dagger needs an epoch after its last round, but epochs is {self.epochs}: set it above {last}"
