"""Parameters of PPO."""

from __future__ import annotations

from rulka.agents.shared.params import (
    ClippedParams,
    CriticParams,
    StepsPerUpdate,
)
from rulka.contracts.schedule import Schedule
from rulka.contracts.section import NotNegativeSchedule, PositiveSchedule, ShareSchedule, key

constant = Schedule.constant


class PpoParams(CriticParams, ClippedParams):
    """Proximal policy optimisation, Schulman et al. 2017, arXiv:1707.06347."""

    LABEL = "PPO"
    LEARNER = "rulka.agents.ppo.learner:PpoLearner"

    steps_per_update: StepsPerUpdate = 4096  # two blocks of one collector
    entropy_weight: NotNegativeSchedule = key(constant(0.0), "Weight of the policy's entropy bonus.")
    gae_lambda: ShareSchedule = key(
        constant(0.98), "Weight of longer returns in advantages: 0 is one step, 1 the whole race."
    )
    value_clip: PositiveSchedule | None = key(
        constant(0.2),
        "Change of a value within which it still gains, in root mean square returns; null: any.",
    )
