"""Section `impala`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from rulka.params.base import NotNegative, Positive, Section, key, wrong_order
from rulka.params.policy_gradient import CriticParams, PolicyLearningRate, RacerTau, StepsPerUpdate, VersionsBehind
from rulka.schedule import Schedule


class NoCorrectionParams(Section):
    """Experience counts as the learning policy's own."""

    kind: Literal["none"] = key("none", "no correction")


class EpsilonParams(Section):
    """The same, and no logarithm of a probability falls without bound, Babaeizadeh et al. 2017, arXiv:1611.06256."""

    kind: Literal["epsilon"] = key("epsilon", "no correction but a floor of probabilities")
    epsilon: float = key(1e-06, "added to a probability inside its logarithm", gt=0, le=1)


class OneStepParams(Section):
    """Each action's advantage is weighed by how much likelier it has become; values are not corrected."""

    kind: Literal["one_step"] = key("one_step", "importance sampling of one step")
    rho_bar: Positive = key(1.0, "bound of the weight")


class VtraceParams(Section):
    """Advantages and values are weighed, Espeholt et al. 2018, arXiv:1802.01561."""

    kind: Literal["vtrace"] = key("vtrace", "the paper's correction")
    rho_bar: Positive = key(1.0, "bound of a decision's own weight: whose values are learned")
    c_bar: NotNegative = key(1.0, "bound of its weight for those before it: how far surprises travel back")

    def _impossible(self) -> Iterator[str]:
        yield from wrong_order(self, "c_bar", "rho_bar")


CorrectionParams = Annotated[
    NoCorrectionParams | EpsilonParams | OneStepParams | VtraceParams, Field(discriminator="kind")
]
"""What is done about experience of an older policy, told apart by its `kind`: the specification's ablation."""


class ImpalaParams(CriticParams):
    """Actors that run ahead of the learner, and V-trace, Espeholt et al. 2018, arXiv:1802.01561."""

    steps_per_update: StepsPerUpdate = 2048  # a block of one collector
    learning_rate: PolicyLearningRate = Schedule.over_budget("linear", (0.0, 0.0002), (1.0, 0.00002))
    racer_tau: RacerTau = 0.05  # an average of about twenty updates
    max_versions_behind: VersionsBehind = 4
    correction: CorrectionParams = key(VtraceParams(), "of experience that an older policy made")
    forced_lag: int = key(
        0, "updates that experience waits before it is learned from, to try corrections out", ge=0, le=10_000
    )
