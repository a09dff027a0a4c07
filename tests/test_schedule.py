"""Schedules by environment steps and by shares of the budget."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from rulka.schedule import Moment, Schedule


def schedule(**fields: Any) -> Schedule:
    return Schedule.model_validate(fields)


@pytest.mark.parametrize(("interpolation", "middle"), [("linear", 0.55), ("exponential", 10**-0.5), ("staircase", 1.0)])
@pytest.mark.parametrize(("over", "last"), [("env_steps", 200), ("budget", 0.5)])
def test_values_between_beside_and_at_the_points(interpolation: str, middle: float, over: str, last: float) -> None:
    points = [[0, 1.0], [last, 0.1]]
    found = schedule(interpolation=interpolation, over=over, points=points)

    def moment(share_of_last: float) -> Moment:
        place = share_of_last * last
        return Moment(int(place), 0.9) if over == "env_steps" else Moment(10**9, place)

    assert found.at(moment(0.0)) == 1.0
    assert found.at(moment(0.5)) == pytest.approx(middle)
    assert found.at(moment(1.0)) == found.at(moment(2.0)) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"points": [[0, 1.0], [0.5, 2.0]]}, "environment steps are whole numbers.*`over: budget` takes shares"),
        ({"over": "budget", "points": [[0, 1.0], [2, 2.0]]}, "from 0 to 1"),
        ({"over": "budget", "points": [[0.5, 1.0], [0.2, 2.0]]}, "must rise"),
        ({"points": [[-1, 1.0]]}, "must rise from 0"),
        ({"interpolation": "exponential", "points": [[0, 0.0]]}, "positive values"),
        ({"over": "races", "points": [[0, 0.0]]}, "over"),
    ],
)
def test_what_cannot_be_a_schedule_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        schedule(**{"interpolation": "linear"} | fields)
