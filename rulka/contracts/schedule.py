"""Schedules: values that change during training, given at environment steps or at shares of the budget.

A plain number is a constant. A schedule over the budget ends with the budget, however fast the machine is.
"""

from __future__ import annotations

import bisect
import math
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

Step = Annotated[int, Field(le=10**12)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Point = Annotated[tuple[Step, float], Field(strict=False)]
"""A list in YAML, hence `strict=False`; its items are still checked strictly."""
SharePoint = Annotated[tuple[Share, float], Field(strict=False)]


class Moment(NamedTuple):
    """Training progress of a run.

    Attributes:
        env_steps: decisions of all collectors; those permitted so far in actors, those inserted so far in learners.
        share: used share of the budget, 0 to 1; the largest share if there are several limits.
    """

    env_steps: int
    share: float = 0.0


class Schedule(BaseModel):
    """A value as a function of training progress, constant before the first and after the last point."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    interpolation: Literal["linear", "exponential", "staircase"] = Field(
        description="Interpolation of points: linear, exponential (linear in the logarithm) or the earlier value."
    )
    points: tuple[Point, ...] | None = Field(
        default=None,
        min_length=1,
        strict=False,
        description="Points [environment step, value] with rising steps; null if `shares` is given.",
    )
    shares: tuple[SharePoint, ...] | None = Field(
        default=None,
        min_length=1,
        strict=False,
        description="Points [share of the budget from 0 to 1, value] with rising shares; null if `points` is given.",
    )

    @classmethod
    def constant(cls, value: float) -> Schedule:
        """Returns a constant schedule."""
        return cls(interpolation="linear", points=((0, value),))

    @classmethod
    def over_budget(
        cls, interpolation: Literal["linear", "exponential", "staircase"], *shares: tuple[float, float]
    ) -> Schedule:
        """Returns a schedule through points [share of the budget, value]."""
        return cls(interpolation=interpolation, shares=shares)

    @model_validator(mode="before")
    @classmethod
    def _take_number(cls, given: Any) -> Any:
        if isinstance(given, int | float) and not isinstance(given, bool):
            return {"interpolation": "linear", "points": [[0, given]]}
        if isinstance(given, dict | Schedule):
            return given
        raise ValueError(f"must be a number, or a schedule with interpolation and points or shares, got {given!r:.80}")

    @model_validator(mode="after")
    def _check(self) -> Schedule:
        if (self.points is None) == (self.shares is None):
            raise ValueError("a schedule has either points in environment steps or shares of the budget")
        places = [place for place, _ in self._places]
        if places != sorted(set(places)) or places[0] < 0:
            message = f"the {'steps' if self.points else 'shares'} of a schedule must rise from 0 or more, got {places}"
            raise ValueError(message)
        if self.interpolation == "exponential" and any(value <= 0 for value in self.values):
            raise ValueError("an exponential schedule needs positive values")
        return self

    @model_serializer(mode="wrap")
    def _as_written(self, dump: SerializerFunctionWrapHandler) -> Any:
        """Serialises as in `params.yaml`: a number if constant, otherwise without the unset list."""
        if self.interpolation == "linear" and self.points is not None and len(self.points) == 1:
            place, value = self.points[0]
            if place == 0:
                return value
        return {name: value for name, value in dump(self).items() if value is not None}

    @property
    def values(self) -> tuple[float, ...]:
        """The values at all points."""
        return tuple(value for _, value in self._places)

    @property
    def _places(self) -> tuple[tuple[float, float], ...]:
        return self.points or self.shares or ()

    def at(self, moment: Moment) -> float:
        """Returns the value at a moment of the run."""
        here, places = moment.env_steps if self.points else moment.share, self._places
        after = bisect.bisect_right([place for place, _ in places], here)
        if after == 0:
            return places[0][1]
        if after == len(places) or self.interpolation == "staircase":
            return places[after - 1][1]
        (left_place, left), (right_place, right) = places[after - 1], places[after]
        share = (here - left_place) / (right_place - left_place)
        if self.interpolation == "exponential":
            return math.exp((1 - share) * math.log(left) + share * math.log(right))
        return (1 - share) * left + share * right
