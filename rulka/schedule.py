"""Values that change while training: one type, points in environment steps or in shares of the budget."""

from __future__ import annotations

import bisect
import math
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

Place = Annotated[int, Field(le=10**12)] | float
Point = Annotated[tuple[Place, float], Field(strict=False)]
"""A list in YAML; what is in it is checked strictly all the same."""


class Moment(NamedTuple):
    """How far a run has come.

    Attributes:
        env_steps: decisions that all collectors have taken together.
        share: of the budget that is used, 0 to 1; of several limits that of which most is used.
    """

    env_steps: int
    share: float = 0.0


class Schedule(BaseModel):
    """A value as a function of how far a run has come, constant before the first and after the last point."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    interpolation: Literal["linear", "exponential", "staircase"] = Field(
        description="between two points: straight, straight in the logarithm, or the earlier value"
    )
    over: Literal["env_steps", "budget"] = Field(
        default="env_steps", description="what points are given in: environment steps, or shares of the budget, 0 to 1"
    )
    points: tuple[Point, ...] = Field(
        min_length=1, strict=False, description="[environment step or share, value], rising, values finite"
    )

    @model_validator(mode="after")
    def _check(self) -> Schedule:
        places = [place for place, _ in self.points]
        if places != sorted(set(places)) or places[0] < 0:
            message = f"the points of a schedule must rise from 0 or more, got {places}"
            raise ValueError(message)
        if self.over == "budget" and places[-1] > 1:
            message = f"over the budget, points lie from 0 to 1, got {places}"
            raise ValueError(message)
        if self.over == "env_steps" and any(isinstance(place, float) for place in places):
            message = f"environment steps are whole numbers, got {places}; `over: budget` takes shares"
            raise ValueError(message)
        if self.interpolation == "exponential" and any(value <= 0 for _, value in self.points):
            message = "an exponential schedule needs positive values"
            raise ValueError(message)
        return self

    def at(self, moment: Moment) -> float:
        """Returns the value when a run has come so far."""
        here = moment.share if self.over == "budget" else moment.env_steps
        after = bisect.bisect_right([point[0] for point in self.points], here)
        if after == 0:
            return self.points[0][1]
        if after == len(self.points) or self.interpolation == "staircase":
            return self.points[after - 1][1]
        (left_place, left), (right_place, right) = self.points[after - 1], self.points[after]
        share = (here - left_place) / (right_place - left_place)
        if self.interpolation == "exponential":
            return math.exp((1 - share) * math.log(left) + share * math.log(right))
        return (1 - share) * left + share * right
