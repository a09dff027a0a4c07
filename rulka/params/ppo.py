"""Section `ppo`."""

from __future__ import annotations

from rulka.params.algorithm import ActionRepeat
from rulka.params.base import PositiveSchedule, ShareSchedule, key
from rulka.params.policy_gradient import CriticParams, EpochsParams, Gamma, StepsPerUpdate
from rulka.schedule import Schedule


class PpoParams(CriticParams, EpochsParams):
    """Proximal policy optimisation, Schulman et al. 2017, arXiv:1707.06347."""

    action_repeat: ActionRepeat = 2
    steps_per_update: StepsPerUpdate = 4096
    gamma: Gamma = Schedule.constant(0.970225)  # 3.3 s
    gae_lambda: ShareSchedule = key(
        Schedule.constant(0.96), "weight of longer returns in advantages: 0 is one step, 1 the whole race"
    )
    clip: PositiveSchedule = key(
        Schedule.constant(0.2), "how far the probability ratio of an action may leave 1 and still gain"
    )
    value_clip: PositiveSchedule | None = key(
        Schedule.constant(0.2),
        "how far a value may move and still gain, in units of the root mean square return; null: any way",
    )
    max_kl: PositiveSchedule = key(
        Schedule.constant(0.05), "an update ends when it has moved the policy this far, in nats"
    )
