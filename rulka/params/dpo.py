"""Section `dpo`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from rulka.params.algorithm import Beside
from rulka.params.base import (
    Count,
    GroupSize,
    NotNegative,
    Positive,
    PositiveSchedule,
    Section,
    Share,
    Weight,
    key,
)
from rulka.params.policy_gradient import Epochs, EpochsParams, PolicyParams
from rulka.schedule import Schedule


class OnlinePairsParams(Section):
    """The best and the worst race of a group from equal starts, by what they were paid."""

    kind: Literal["online"] = key("online", "races of the agent itself")
    group_size: GroupSize = key(8, "races that begin alike, of which the best and the worst are a pair")
    gamma: Share = key(0.985, "discount of one decision, in what a race was paid")
    cut_worth: Weight = key(-4.0, "counts as paid after a race that a limit has cut")
    min_gap: NotNegative = key(0.5, "how much more the best has to be paid than the worst")


class FilePairsParams(Section):
    """Pairs that a file names; see `rulka.training.preference_pairs`."""

    kind: Literal["file"] = key("file", "a file of pairs, JSON lines")
    path: str = Field(min_length=1, description="where it is")
    pairs_per_update: Count = key(16, "drawn for one update")


class DemonstrationPairsParams(Section):
    """Any two captured races over the same stretch of the main track, the faster one preferred."""

    kind: Literal["demonstrations"] = key(
        "demonstrations", "races that were recorded, or driven by the built-in driver"
    )
    stretch_m: Positive = key(100.0, "about so long is a stretch of the track")
    min_gain_s: NotNegative = key(0.1, "how much faster the preferred race has to be over the stretch")
    max_pairs: Count = key(1000, "so many are taken of all that there are")
    pairs_per_update: Count = key(16, "drawn for one update")


GivenPairsParams = FilePairsParams | DemonstrationPairsParams
"""Pairs that are given before training begins."""
PairsParams = Annotated[OnlinePairsParams | FilePairsParams | DemonstrationPairsParams, Field(discriminator="kind")]
"""Where preference pairs come from, told apart by its `kind`."""


class DpoParams(PolicyParams, EpochsParams):
    """Direct preference optimisation, Rafailov et al. 2023, arXiv:2305.18290."""

    pairs: PairsParams = key(OnlinePairsParams(), "what is preferred to what")
    epochs: Epochs = 2
    # Ratios are of whole races: 100 nats apart are a margin of 1.
    beta: PositiveSchedule = key(Schedule.constant(0.01), "how dear it is to leave the policy that it began as")
    pairs_per_step: Count = key(2, "pairs of one gradient step")

    @property
    def races_per_start(self) -> int:
        """As many as are compared; races that nobody learns from begin each by itself."""
        return self.pairs.group_size if isinstance(self.pairs, OnlinePairsParams) else 1

    @property
    def given_pairs(self) -> GivenPairsParams | None:
        """Where the pairs come from, if they are given."""
        return None if isinstance(self.pairs, OnlinePairsParams) else self.pairs

    def impossible(self, beside: Beside) -> Iterator[str]:
        """Yields what cannot be together; see `AlgorithmParams`."""
        yield from super().impossible(beside)
        if self.given_pairs is not None and self.action_repeat > 1:
            yield f"dpo.pairs of kind {self.pairs.kind} hold decisions that were taken once: set dpo.action_repeat to 1"

    @property
    def holds_on(self) -> bool:
        """Always: the policy that it began as is the reference."""
        return True
