"""Values that change while training: one type, points in environment steps, named interpolation."""

from __future__ import annotations

import bisect
import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Step = Annotated[int, Field(le=10**12)]
Point = Annotated[tuple[Step, float], Field(strict=False)]
"""A list in YAML; what is in it is checked strictly all the same."""


class Schedule(BaseModel):
    """A value as a function of environment steps, constant before the first and after the last point."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    interpolation: Literal["linear", "exponential", "staircase"] = Field(
        description="between two points: straight, straight in the logarithm, or the earlier value"
    )
    points: tuple[Point, ...] = Field(
        min_length=1, strict=False, description="[environment step, value], steps rising, values finite"
    )

    @model_validator(mode="after")
    def _check(self) -> Schedule:
        steps = [step for step, _ in self.points]
        if steps != sorted(set(steps)) or steps[0] < 0:
            message = f"schedule steps must rise from 0 or more, got {steps}"
            raise ValueError(message)
        if self.interpolation == "exponential" and any(value <= 0 for _, value in self.points):
            message = "an exponential schedule needs positive values"
            raise ValueError(message)
        return self

    def at(self, step: int) -> float:
        """Returns the value at an environment step."""
        after = bisect.bisect_right([point[0] for point in self.points], step)
        if after == 0:
            return self.points[0][1]
        if after == len(self.points) or self.interpolation == "staircase":
            return self.points[after - 1][1]
        (left_step, left), (right_step, right) = self.points[after - 1], self.points[after]
        share = (step - left_step) / (right_step - left_step)
        if self.interpolation == "exponential":
            return math.exp((1 - share) * math.log(left) + share * math.log(right))
        return (1 - share) * left + share * right
