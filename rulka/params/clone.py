"""Behaviour cloning: section `clone`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field

from rulka.params.base import CloneShape, Count, MapChoice, NotNegative, Section, Several, Share, Whole, key
from rulka.params.pretrain import Epochs, FitLearningRate, FitParams, WeightDecay
from rulka.params.races import LineStartParams

LabelKind = Literal["soft", "hard"]


class DaggerParams(Section):
    """The policy drives while it is taught, and learns what the built-in driver advises where it got to.

    Ross et al. 2011, arXiv:1011.0686.
    """

    rounds: Count = key(7, "how often it drives")
    every: Count = key(1, "epochs from one round to the next")
    num_races: Several = key(20, "races of a round, side by side")
    pace: float = key(0.9, "share of the possible speed at which the adviser would drive", gt=0, le=1)


class CloneParams(FitParams, LineStartParams):
    """Stage `clone` (Level 1): behaviour cloning."""

    epochs: Epochs = 8
    learning_rate: FitLearningRate = 0.001
    weight_decay: WeightDecay = 0.01
    shape: CloneShape = key("policy", "network: policy is PPO's, and can guide IQN; iqn can become IQN's values")
    maps: MapChoice = key("main", "whose races are imitated: the main track's, or those of all maps")
    previous_action_dropout: Share = key(0.5, "share of samples that do not see the previous actions")
    float_noise: NotNegative = key(0.02, "noise on the floats, in units of the normalisation's std")
    labels: LabelKind = key("soft", "shares of a decision's actions, or the one that was held longest")
    dropout: float = key(0.0, "share of the trunk's units that learning leaves out at random", ge=0, lt=1)
    offsets: tuple[Annotated[int, Field(ge=0, le=1000)], ...] = key(
        (0,), "decisions ahead whose actions are learned; 0, the policy, and later ones", strict=False, min_length=1
    )
    dagger: DaggerParams | None = key(None, "null: it learns from recorded races alone")
    race_every: Whole = key(2, "epochs after which it races; the best racer is kept, at 0 the least loss")
    num_races: Several = key(40, "races each time, side by side")

    def _impossible(self) -> Iterator[str]:
        if self.offsets[0] != 0 or any(low >= high for low, high in pairwise(self.offsets)):
            yield f"offsets must begin with 0, which drives, and rise, not {list(self.offsets)}"
        last = 0 if self.dagger is None else self.dagger.rounds * self.dagger.every
        if last >= self.epochs:
            yield f"dagger's last round comes after epoch {last} of {self.epochs}: none is left to learn of it"
