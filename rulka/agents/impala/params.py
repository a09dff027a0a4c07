"""Parameters of IMPALA."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from rulka.agents.shared.params import CriticParams, PolicyLearningRate, RacerTau, StepsPerUpdate, VersionsBehind
from rulka.contracts.schedule import Schedule
from rulka.contracts.section import NotNegative, Positive, Section, key, wrong_order

constant, over_budget = Schedule.constant, Schedule.over_budget


class NoCorrectionParams(Section):
    """No correction: experience is treated as on-policy."""

    kind: Literal["none"] = key("none", "No correction.")


class EpsilonParams(Section):
    """No correction, but epsilon bounds log-probabilities from below, Babaeizadeh et al. 2017, arXiv:1611.06256."""

    kind: Literal["epsilon"] = key("epsilon", "No correction, with a floor on probabilities.")
    epsilon: float = key(1e-06, "Small number added to a probability inside its logarithm.", gt=0, le=1)


class OneStepParams(Section):
    """One-step importance sampling: advantages are weighted by the truncated ratio, values are not corrected."""

    kind: Literal["one_step"] = key("one_step", "Importance sampling of one step.")
    rho_bar: Positive = key(1.0, "Bound of the importance weight.")


class VtraceParams(Section):
    """V-trace: advantages and values are importance-weighted, Espeholt et al. 2018, arXiv:1802.01561."""

    kind: Literal["vtrace"] = key("vtrace", "V-trace, the paper's correction.")
    rho_bar: Positive = key(1.0, "Bound of a decision's own importance weight; sets which policy's values are learned.")
    c_bar: NotNegative = key(1.0, "Bound of the weight passed to earlier decisions; sets how far errors travel back.")

    def _check_combinations(self) -> Iterator[str]:
        yield from wrong_order(self, "c_bar", "rho_bar")


CorrectionParams = Annotated[
    NoCorrectionParams | EpsilonParams | OneStepParams | VtraceParams, Field(discriminator="kind")
]
"""Off-policy corrections, discriminated by `kind`: the specification's ablation."""


class ImpalaParams(CriticParams):
    """Actors that run ahead of the learner, and V-trace, Espeholt et al. 2018, arXiv:1802.01561."""

    LABEL = "IMPALA"
    LEARNER = "rulka.agents.impala.learner:ImpalaLearner"

    steps_per_update: StepsPerUpdate = 2048  # a block of one collector
    learning_rate: PolicyLearningRate = over_budget("linear", (0.0, 0.0002), (1.0, 0.00002))
    racer_tau: RacerTau = 0.05  # an average of about twenty updates
    max_versions_behind: VersionsBehind = 4
    correction: CorrectionParams = key(VtraceParams(), "Off-policy correction of experience by an older policy.")
    forced_lag: int = key(0, "Updates that experience waits before learning, to try out corrections.", ge=0, le=10_000)
