"""Experience that nobody learns from: it is counted, and sets the pace of learning from pairs that were given."""

from __future__ import annotations

from rulka.agents.spec import Experience
from rulka.buffers.experience import ExperienceBlock


class PassedDecisions:
    """Counts decisions until an update uses them up; see `rulka.agents.policy_gradient.learner.Waiting`.

    Attributes:
        num_decisions: since the last update, resets included.
    """

    def __init__(self) -> None:
        self.num_decisions = 0
        self._version = 0

    def insert(self, block: ExperienceBlock, collector: int, version: int) -> None:
        """Counts the decisions of a block."""
        del collector
        self.num_decisions += block.is_reset.size
        self._version = version

    def versions_behind(self, version: int) -> float:
        """Returns how much older than a version the weights were that acted last."""
        return float(version - self._version)

    def drop(self) -> None:
        """Counts anew."""
        self.num_decisions = 0

    forget = drop

    def experience(self) -> Experience:
        """Returns the counters."""
        return Experience({"num_decisions": self.num_decisions, "version": self._version}, {})

    def load_experience(self, experience: Experience) -> None:
        """Goes on counting."""
        self.num_decisions, self._version = int(experience.state["num_decisions"]), int(experience.state["version"])
