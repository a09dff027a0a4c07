"""The ratios of parallel Q-learning as permissions: who may go on follows from counts alone, never from a clock.

The cars, the critics and the policy each do a number of things; of each of two neighbours the one may do the next thing
only where the other has done enough. So a ratio is exact however slow anybody is: it is off by what one side may be
ahead, and never by more. The paper's learners sleep for a time that is measured and corrected instead.
"""

from __future__ import annotations

from typing import NamedTuple

from rulka.params import PqlParams


class Ratios(NamedTuple):
    """How many of one thing belong to one of another.

    Attributes:
        steps: decisions for one update of the critics, beta_a:v.
        critic_updates: of these for one update of the policy, beta_p:v.
        warmup: first updates of the critics, for which no update of the policy is due.
    """

    steps: int
    critic_updates: int
    warmup: int

    @classmethod
    def of(cls, params: PqlParams) -> Ratios:
        """Returns those that the parameters say."""
        steps, updates = params.steps_per_critic_update, params.critic_updates_per_policy_update
        return cls(steps, updates, params.critic_warmup_updates)

    def critic_updates_due(self, num_steps: int) -> int:
        """Returns how many updates of the critics belong to so many decisions."""
        return num_steps // self.steps

    def steps_of(self, num_critic_updates: int) -> int:
        """Returns how many decisions belong to so many updates of the critics."""
        return num_critic_updates * self.steps

    def policy_updates_due(self, num_critic_updates: int) -> int:
        """Returns how many updates of the policy belong to so many of the critics."""
        return max(0, num_critic_updates - self.warmup) // self.critic_updates
