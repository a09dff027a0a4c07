"""Base class and types of all sections of `params.yaml`: strict types, and numbers with bounds on both sides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from rulka.contracts.schedule import Schedule

MOST = 1e9
"""Bound of numbers without a tighter one: larger values are typing errors, and overflow somewhere."""
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0, le=MOST)]
NotNegative = Annotated[float, Field(ge=0.0, le=MOST)]
Weight = Annotated[float, Field(ge=-MOST, le=MOST)]
"""A finite number of either sign."""
Count = Annotated[int, Field(ge=1, le=10**12)]
Whole = Annotated[int, Field(ge=0, le=10**12)]
Size = Annotated[int, Field(ge=1, le=65_536)]
"""Width of a layer."""
BatchSize = Annotated[int, Field(ge=1, le=1_000_000)]
Several = Annotated[int, Field(ge=1, le=10_000)]
"""Number of parallel things: cars, races, decisions of a block."""
GroupSize = Annotated[int, Field(ge=2, le=1000)]
"""Number of races that are compared with each other."""
Processes = Annotated[int, Field(ge=0, le=256)]
Slots = Annotated[int, Field(ge=1, le=64)]
"""Blocks of experience in memory for one process."""
Seed = Annotated[int, Field(ge=0, lt=2**32)]
RaceSeconds = Annotated[float, Field(gt=0.0, le=3600.0)]
LateralM = Annotated[float, Field(ge=0.0, le=100.0)]
MOST_START_MPS = 300.0
"""A little more than the game's own bound of 1000 km/h."""
StartSpeedMps = Annotated[float, Field(ge=0.0, le=MOST_START_MPS)]
AngleDeg = Annotated[float, Field(ge=0.0, le=180.0)]
LearningRate = Annotated[float, Field(gt=0.0, le=1.0)]
LearningPrecision = Annotated[
    Literal["auto", "float32", "bfloat16"],
    Field(
        description="Precision of learning; auto is bfloat16 if the processor has instructions for it, else float32."
    ),
]
NEEDS_FREE = "needs train.order free, as no run of it repeats, but it is exact: set it to free"
"""Rest of the error message for settings that `train.order: exact` does not support."""


@dataclass(frozen=True)
class _Values:
    """Constrains all values of a schedule to a closed range. The JSON schema bounds only a plain number."""

    least: float
    most: float
    are_positive: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        least = {"exclusiveMinimum": 0.0} if self.are_positive else {"minimum": self.least}
        return {**handler(schema), **least, "maximum": self.most}

    def _check(self, schedule: Schedule) -> Schedule:
        wrong = [value for value in schedule.values if not self.least <= value <= self.most]
        if wrong:
            raise ValueError(f"values must be from {self.least:g} to {self.most:g}, got {wrong}")
        wrong = [value for value in schedule.values if value <= 0.0]
        if self.are_positive and wrong:
            raise ValueError(f"values must be positive, got {wrong}")
        return schedule


ShareSchedule = Annotated[Schedule, _Values(0.0, 1.0)]
LearningRateSchedule = Annotated[Schedule, _Values(0.0, 1.0, are_positive=True)]
WeightSchedule = Annotated[Schedule, _Values(-MOST, MOST)]
NotNegativeSchedule = Annotated[Schedule, _Values(0.0, MOST)]
PositiveSchedule = Annotated[Schedule, _Values(0.0, MOST, are_positive=True)]


class Section(BaseModel):
    """Base of all sections: immutable; unknown keys, infinite numbers and values of another type are errors.

    Types are strict: neither `true` nor `"5"` is a number. An integer is accepted as a float. Tuples are lists in YAML,
    so that tuple fields set `strict=False`; this applies to the tuple itself, not to its items.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    RENAMED: ClassVar[Mapping[str, str]] = {}
    """Present names of keys by the name that they had, for the error message about that."""

    @model_validator(mode="after")
    def _refuse_impossible(self) -> Self:
        for problem in self._check_combinations():
            raise ValueError(problem)
        return self

    def _check_combinations(self) -> Iterator[str]:
        """Yields a sentence for each invalid combination of keys; the first becomes the error."""
        yield from ()


def key(default: Any, meaning: str, **bounds: Any) -> Any:
    """Returns a field of a section: its default, its description, and bounds in addition to those of its type."""
    # The JSON schema lists the keys of a section one by one. With several kinds it must name the default kind.
    if isinstance(default, Section) and "kind" not in type(default).model_fields:
        return Field(default_factory=lambda: default, description=meaning, **bounds)
    return Field(default, description=meaning, **bounds)


def wrong_order(section: Section, lower: str, upper: str) -> Iterator[str]:
    """Yields an error message unless the first of two fields is at most the second; None counts as no bound."""
    low, high = getattr(section, lower), getattr(section, upper)
    if low is not None and high is not None and low > high:
        yield f"{lower} needs to be at most {upper}, but {low} is greater than {high}: lower {lower}, or raise {upper}"
