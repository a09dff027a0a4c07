"""Schedules by environment steps and by shares of the budget."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from rulka.contracts.schedule import Moment, Schedule


def schedule(**fields: Any) -> Schedule:
    return Schedule.model_validate(fields)


@pytest.mark.parametrize(("interpolation", "middle"), [("linear", 0.55), ("exponential", 10**-0.5), ("staircase", 1.0)])
@pytest.mark.parametrize(("over", "last"), [("points", 200), ("shares", 0.5)])
def test_values_between_beside_and_at_the_points(interpolation: str, middle: float, over: str, last: float) -> None:
    found = schedule(**{"interpolation": interpolation, over: [[0, 1.0], [last, 0.1]]})

    def moment(part: float) -> Moment:
        return Moment(int(part * last), 0.9) if over == "points" else Moment(10**9, part * last)

    assert found.at(moment(0.0)) == 1.0
    assert found.at(moment(0.5)) == pytest.approx(middle)
    assert found.at(moment(1.0)) == found.at(moment(2.0)) == pytest.approx(0.1)


@pytest.mark.parametrize("number", [0.25, 0, -3])
def test_a_number_is_a_schedule_that_does_not_change(number: float) -> None:
    found = Schedule.model_validate(number)
    assert found.at(Moment(0)) == found.at(Moment(10**9, 1.0)) == number
    assert Schedule.model_validate(found.model_dump()) == found


@pytest.mark.parametrize("other", [True, None, "0.25", [[0, 1.0]]])
def test_what_is_neither_number_nor_mapping_is_refused(other: object) -> None:
    with pytest.raises(ValidationError, match="must be a number, or a schedule with interpolation"):
        Schedule.model_validate(other)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"points": [[0, 1.0], [0.5, 2.0]]}, "valid integer"),
        ({"shares": [[0, 1.0], [2, 2.0]]}, "less than or equal to 1"),
        ({"shares": [[0.5, 1.0], [0.2, 2.0]]}, "shares of a schedule must rise"),
        ({"points": [[-1, 1.0]]}, "steps of a schedule must rise from 0"),
        ({"points": [[0, 1.0]], "shares": [[0, 1.0]]}, "either points in environment steps or shares"),
        ({}, "either points in environment steps or shares"),
        ({"interpolation": "exponential", "shares": [[0, 0.0]]}, "positive values"),
    ],
)
def test_what_cannot_be_a_schedule_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        schedule(**{"interpolation": "linear"} | fields)
