"""Section `grpo`."""

from __future__ import annotations

from rulka.params.base import GroupSize, PositiveSchedule, Weight, key
from rulka.params.policy_gradient import CloneWeight, EpochsParams, PolicyGradientParams
from rulka.schedule import Schedule


class GrpoParams(PolicyGradientParams, EpochsParams):
    """Group relative policy optimisation, Shao et al. 2024, arXiv:2402.03300."""

    # Of a race the beginning counts most; gamma 1 is for agents that finish.
    clone_weight: CloneWeight = Schedule.constant(0.01)
    group_size: GroupSize = key(8, "races that begin alike and are compared with each other")
    # As rewards.off_track: standing still must not be better than trying.
    cut_worth: Weight = key(-4.0, "counts as paid after a race that a limit has cut; there is no value to ask")
    clip: PositiveSchedule = key(
        Schedule.constant(0.2), "how far the probability ratio of an action may leave 1 and still gain"
    )
    max_kl: PositiveSchedule = key(
        Schedule.constant(0.05), "an update ends when it has moved the policy this far, in nats"
    )

    @property
    def races_per_start(self) -> int:
        """As many as are compared."""
        return self.group_size
