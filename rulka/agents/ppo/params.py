"""Parameters of PPO."""

from __future__ import annotations

from rulka.agents.shared.params import (
    ActionRepeat,
    ClippedParams,
    CriticParams,
    Gamma,
    PolicyLearningRate,
    StepsPerUpdate,
)
from rulka.contracts.schedule import Schedule
from rulka.contracts.section import NotNegativeSchedule, PositiveSchedule, ShareSchedule, key

constant, over_budget = Schedule.constant, Schedule.over_budget


class PpoParams(CriticParams, ClippedParams):
    """Proximal policy optimisation, Schulman et al. 2017, arXiv:1707.06347."""

    LABEL = "PPO"
    LEARNER = "rulka.agents.ppo.learner:PpoLearner"

    action_repeat: ActionRepeat = 2
    steps_per_update: StepsPerUpdate = 2048  # a block of one collector
    learning_rate: PolicyLearningRate = over_budget("linear", (0.0, 0.0002), (1.0, 0.00002))
    gamma: Gamma = constant(0.970225)  # 3.3 s
    entropy_weight: NotNegativeSchedule = key(constant(0.0), "Weight of the policy's entropy bonus.")
    gae_lambda: ShareSchedule = key(
        constant(0.96), "Weight of longer returns in advantages: 0 is one step, 1 the whole race."
    )
    value_clip: PositiveSchedule | None = key(
        constant(0.2),
        "Change of a value within which it still gains, in root mean square returns; null: any.",
    )
