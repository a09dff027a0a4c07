"""Parameters of the planner, and of the built-in driver, which follows its plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from rulka.contracts.section import Section, key, wrong_order


class PlannerParams(Section):
    """Size and caution of the plans; see `rulka.planner`."""

    num_plans: int = key(32, "Plans simulated at each decision.", ge=8, le=4096)
    horizon_s: float = key(4.0, "Time for which a plan is simulated, in seconds.", ge=0.5, le=10.0)
    step_m: float = key(0.7, "Longest step of the simulated physics, in metres; the simulator's is 0.3.", ge=0.1, le=2)
    pace: float = key(
        2.0, "Top pace of plans, as a share of the line's speed; a centreline's is what bends allow.", gt=0, le=2
    )


class DriverParams(PlannerParams):
    """The field of built-in drivers; see `rulka.planner.demonstrations`."""

    pace: float = key(1.0, "Top pace of the boldest driver, as a share of the speed that bends allow.", gt=0, le=2)
    pace_low: float = key(0.7, "Top pace of the most careful driver.", gt=0, le=2)

    RENAMED: ClassVar[Mapping[str, str]] = {"pace_high": "pace"}

    def _check_combinations(self) -> Iterator[str]:
        yield from wrong_order(self, "pace_low", "pace")
