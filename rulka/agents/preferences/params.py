"""Parameters of GRPO and DPO, which learn from preferences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from rulka.agents.shared.params import (
    ClippedParams,
    Epochs,
    EpochsParams,
    InitialKlWeight,
    PolicyGradientParams,
    PolicyParams,
    SectionContext,
)
from rulka.contracts.schedule import Schedule
from rulka.contracts.section import (
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

constant = Schedule.constant


class GrpoParams(PolicyGradientParams, ClippedParams):
    """Group relative policy optimisation, Shao et al. 2024, arXiv:2402.03300."""

    LABEL = "GRPO"
    LEARNER = "rulka.agents.preferences.learner:GrpoLearner"

    # Discounting favours the start of a race; gamma 1 is for agents that finish.
    initial_kl_weight: InitialKlWeight = constant(0.01)
    group_size: GroupSize = key(8, "races that begin alike and are compared with each other")
    # As rewards.off_track: standing still must not be better than trying.
    cut_worth: Weight = key(-4.0, "counts as paid after a race that a limit has cut; there is no value to ask")

    @property
    def races_per_start(self) -> int:
        """The group size."""
        return self.group_size


class OnlinePairsParams(Section):
    """The races with the best and the worst return of a group with the same start."""

    kind: Literal["online"] = key("online", "races of the agent itself")
    group_size: GroupSize = key(8, "races that begin alike, of which the best and the worst are a pair")
    gamma: Share = key(0.985, "discount of one decision, in what a race was paid")
    cut_worth: Weight = key(-4.0, "counts as paid after a race that a limit has cut")
    min_gap: NotNegative = key(0.5, "how much more the best has to be paid than the worst")


class FilePairsParams(Section):
    """Pairs listed in a file; see `rulka.training.preference_pairs`."""

    kind: Literal["file"] = key("file", "a file of pairs, JSON lines")
    path: str = Field(min_length=1, description="where it is")
    pairs_per_update: Count = key(16, "drawn for one update")


class DemonstrationPairsParams(Section):
    """Pairs of captured races over the same stretch of the main track; the faster one is preferred."""

    kind: Literal["demonstrations"] = key(
        "demonstrations", "races that were recorded, or driven by the built-in driver"
    )
    stretch_m: Positive = key(100.0, "about so long is a stretch of the track")
    min_gain_s: NotNegative = key(0.1, "how much faster the preferred race has to be over the stretch")
    max_pairs: Count = key(1000, "so many are taken of all that there are")
    pairs_per_update: Count = key(16, "drawn for one update")


GivenPairsParams = FilePairsParams | DemonstrationPairsParams
"""Pairs that are fixed before training starts."""
PairsParams = Annotated[OnlinePairsParams | FilePairsParams | DemonstrationPairsParams, Field(discriminator="kind")]
"""Sources of preference pairs, discriminated by `kind`."""


class DpoParams(PolicyParams, EpochsParams):
    """Direct preference optimisation, Rafailov et al. 2023, arXiv:2305.18290."""

    LABEL = "DPO"
    LEARNER = "rulka.agents.preferences.learner:DpoLearner"

    pairs: PairsParams = key(OnlinePairsParams(), "what is preferred to what")
    epochs: Epochs = 2
    # Log-ratios are sums over whole races: a difference of 100 nats is a margin of 1.
    beta: PositiveSchedule = key(constant(0.01), "how dear it is to leave the policy that it began as")
    pairs_per_step: Count = key(2, "pairs of one gradient step")

    @property
    def races_per_start(self) -> int:
        """The group size of online pairs; 1 for given pairs, as DPO then learns nothing from the agent's races."""
        return self.pairs.group_size if isinstance(self.pairs, OnlinePairsParams) else 1

    @property
    def given_pairs(self) -> GivenPairsParams | None:
        """Source of the given pairs; None if pairs are online."""
        return None if isinstance(self.pairs, OnlinePairsParams) else self.pairs

    @staticmethod
    def describe_help(section: Mapping[str, Any]) -> str:
        """Describes given pairs; see `AlgorithmParams`."""
        is_given = section.get("pairs", {}).get("kind", "online") != "online"
        return "DPO learns which of two captured races to prefer, and nothing of its own races." if is_given else ""

    def impossible(self, context: SectionContext) -> Iterator[str]:
        """Yields conflicts; see `AlgorithmParams`."""
        yield from super().impossible(context)
        if self.given_pairs is not None and self.action_repeat > 1:
            yield f"dpo.pairs of kind {self.pairs.kind} hold decisions that were taken once: set dpo.action_repeat to 1"

    @property
    def needs_initial_policy(self) -> bool:
        """Always True: the initial policy is the reference."""
        return True
