"""Section `grpo`."""

from __future__ import annotations

from pydantic import Field

from rulka.params.base import GroupSize, PositiveSchedule, Weight
from rulka.params.policy_gradient import EpochsParams, PolicyGradientParams


class GrpoParams(PolicyGradientParams, EpochsParams):
    """Group relative policy optimisation, Shao et al. 2024, arXiv:2402.03300."""

    group_size: GroupSize = Field(description="races that begin alike and are compared with each other")
    cut_worth: Weight = Field(description="counts as paid after a race that a limit has cut; there is no value to ask")
    clip: PositiveSchedule = Field(description="how far the probability ratio of an action may leave 1 and still gain")
    max_kl: PositiveSchedule = Field(description="an update ends when it has moved the policy this far, in nats")

    @property
    def races_per_start(self) -> int:
        """As many as are compared."""
        return self.group_size
