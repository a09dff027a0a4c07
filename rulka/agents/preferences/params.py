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
    group_size: GroupSize = key(8, "Races with the same start that are compared with each other.")
    # As rewards.off_track: standing still must not be better than trying.
    cut_worth: Weight = key(-4.0, "Reward added after a race that a limit has cut, in place of a value.")

    @property
    def races_per_start(self) -> int:
        """The group size."""
        return self.group_size


class OnlinePairsParams(Section):
    """The races with the best and the worst return of a group with the same start."""

    kind: Literal["online"] = key("online", "Races of the agent itself.")
    group_size: GroupSize = key(8, "Races with the same start, the best and the worst of which are a pair.")
    gamma: Share = key(0.985, "Discount of one decision in the returns that are compared.")
    cut_worth: Weight = key(-4.0, "Reward added after a race that a limit has cut, in place of a value.")
    min_gap: NotNegative = key(0.5, "Least difference between the returns of a pair.")


class FilePairsParams(Section):
    """Pairs listed in a file; see `rulka.training.preference_pairs`."""

    kind: Literal["file"] = key("file", "File of pairs, in JSON lines.")
    path: str = Field(min_length=1, description="Path of the file.")
    pairs_per_update: Count = key(16, "Pairs drawn for one update.")


class DemonstrationPairsParams(Section):
    """Pairs of captured races over the same stretch of the main track; the faster one is preferred."""

    kind: Literal["demonstrations"] = key("demonstrations", "Recorded races, or races of the built-in driver.")
    stretch_m: Positive = key(100.0, "Approximate length of a compared stretch of the track, in metres.")
    min_gain_s: NotNegative = key(0.1, "Least lead of the preferred race over the stretch, in seconds.")
    max_pairs: Count = key(1000, "Largest number of pairs, drawn from all that there are.")
    pairs_per_update: Count = key(16, "Pairs drawn for one update.")


GivenPairsParams = FilePairsParams | DemonstrationPairsParams
"""Pairs that are fixed before training starts."""
PairsParams = Annotated[OnlinePairsParams | FilePairsParams | DemonstrationPairsParams, Field(discriminator="kind")]
"""Sources of preference pairs, discriminated by `kind`."""


class DpoParams(PolicyParams, EpochsParams):
    """Direct preference optimisation, Rafailov et al. 2023, arXiv:2305.18290."""

    LABEL = "DPO"
    LEARNER = "rulka.agents.preferences.learner:DpoLearner"

    pairs: PairsParams = key(OnlinePairsParams(), "Source of preference pairs.")
    epochs: Epochs = 2
    # Log-ratios are sums over whole races: a difference of 100 nats is a margin of 1.
    beta: PositiveSchedule = key(constant(0.01), "Strength of the KL constraint to the initial policy (paper's beta).")
    pairs_per_step: Count = key(2, "Pairs per gradient step.")

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
            yield f"dpo.pairs {self.pairs.kind} needs decisions taken once: set dpo.action_repeat to 1"
