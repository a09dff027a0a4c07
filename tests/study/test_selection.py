"""Who is copied and what becomes of the parameters: golden values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from rulka.study.selection import Explore, Searched, explored, first_values, parents, ranking

RATE = Searched(start=(1e-5, 1e-4), range=(1e-6, 1e-1))
GAMMA = Searched(start=(0.95, 0.99), range=(0.9, 0.999), from_one=True)
CRASH = Searched(start=(-4.0, -4.0), range=(-10.0, -1.0))
SEARCHED = {"impala.learning_rate": RATE, "impala.gamma": GAMMA, "rewards.off_track": CRASH}
RACES = 20
DIVERGED = None


def scores(*means: float, spread: float = 0.0) -> list[NDArray[np.float64]]:
    """Returns scores around means; odd and even members differ the opposite way, so that differences spread too."""
    wave = np.where(np.arange(RACES) % 2, spread, -spread)
    return [mean + (wave if member % 2 else -wave) for member, mean in enumerate(means)]


# Values ---------------------------------------------------------------------------------------------------------------


def test_a_factor_multiplies_and_nothing_leaves_its_range() -> None:
    assert RATE.times(1e-4, 2.0) == pytest.approx(2e-4)
    assert GAMMA.times(0.98, 0.5) == pytest.approx(0.99)
    assert GAMMA.times(0.98, 1.25) == pytest.approx(0.975)
    assert CRASH.times(-4.0, 0.5) == pytest.approx(-2.0)
    assert RATE.times(0.09, 2.0) == 0.1
    assert RATE.times(1.5e-6, 0.5) == 1e-6
    assert GAMMA.times(0.998, 0.25) == 0.999
    assert GAMMA.times(0.91, 2.0) == 0.9
    assert CRASH.times(-6.0, 2.0) == -10.0
    assert CRASH.times(-1.5, 0.5) == -1.0


@pytest.mark.parametrize("searched", SEARCHED.values(), ids=list(SEARCHED))
def test_draws_are_even_in_the_logarithm_and_within_bounds(searched: Searched) -> None:
    rng = np.random.default_rng(3)
    drawn = np.array([searched.draw(searched.range, rng) for _ in range(2000)])
    low, high = searched.range
    assert low <= drawn.min() < drawn.max() <= high
    inside = np.log(np.abs(1.0 - drawn if searched.from_one else drawn))
    ends = [math.log(abs(1.0 - end if searched.from_one else end)) for end in searched.range]
    assert np.mean(inside) == pytest.approx(sum(ends) / 2, abs=0.05 * abs(ends[1] - ends[0]))


def test_first_and_explored_values() -> None:
    begun = [first_values(SEARCHED, 1, member) for member in range(4)]
    rates = [values["impala.learning_rate"] for values in begun]
    assert all(1e-5 <= rate <= 1e-4 for rate in rates)
    assert len(set(rates)) == 4
    assert {values["rewards.off_track"] for values in begun} == {-4.0}
    assert begun[2] == first_values(SEARCHED, 1, 2)
    assert begun[2] != first_values(SEARCHED, 2, 2)
    values = {"impala.learning_rate": 1e-3, "impala.gamma": 0.98, "rewards.off_track": -4.0}
    found = explored(values, SEARCHED, Explore(factors=(2.0,), resample=0.0), seed=1, turn=3, member=0)
    assert found == pytest.approx({"impala.learning_rate": 2e-3, "impala.gamma": 0.96, "rewards.off_track": -8.0})
    explore = Explore(factors=(0.5, 2.0), resample=0.25)
    many = [
        explored(values, SEARCHED, explore, seed=1, turn=turn, member=0)["impala.learning_rate"] / 1e-3
        for turn in range(2000)
    ]
    assert many[7] == explored(values, SEARCHED, explore, 1, 7, 0)["impala.learning_rate"] / 1e-3
    halved, doubled = (np.isclose(many, factor).mean() for factor in (0.5, 2.0))
    assert halved == pytest.approx(0.375, abs=0.04)
    assert doubled == pytest.approx(0.375, abs=0.04)
    assert min(many) < 0.02
    assert max(many) > 20.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"range": (0.1, 0.1)}, "range must rise"),
        ({"range": (0.0, 0.1)}, "holds 0"),
        ({"range": (-1.0, 0.1)}, "holds 0"),
        ({"range": (0.9, 1.0), "from_one": True}, "holds 1"),
        ({"start": (0.5, 0.6)}, "start must rise and lie in the range"),
        ({"start": (2e-4, 1e-4)}, "start must rise and lie in the range"),
    ],
)
def test_a_range_that_holds_nothing_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Searched.model_validate({"start": (1e-4, 1e-4), "range": (1e-5, 1e-3)} | values)


# Who goes on from whom ------------------------------------------------------------------------------------------------


def test_who_goes_on_from_whom() -> None:
    assert ranking([*scores(3.0, 5.0, 3.0), DIVERGED, *scores(9.0)]) == [4, 1, 0, 2, 3]
    assert parents(scores(3.0, 5.0, 1.0, 4.0), 0.3, seed=1, turn=1) == [0, 1, 1, 3]
    found = [parents(scores(*range(10)), 0.3, seed=seed, turn=1) for seed in range(10)]
    assert all(each[3:] == list(range(3, 10)) for each in found)
    assert {parent for each in found for parent in each[:3]} == {7, 8, 9}
    assert found[5] == parents(scores(*range(10)), 0.3, seed=5, turn=1)
    assert found[5] != found[6] or found[5] != found[7]
    close = scores(1.0, 1.2, spread=2.0)
    assert parents(close, 0.5, seed=1, turn=1) == [0, 1]
    far = scores(1.0, 6.0, spread=2.0)
    assert parents(far, 0.5, seed=1, turn=1) == [1, 1]
    ours = scores(2.0, 2.0)
    assert parents([DIVERGED, ours[0], DIVERGED, ours[1]], 0.3, seed=1, turn=1) == [1, 1, 1, 3]
    assert parents([DIVERGED, DIVERGED, DIVERGED, ours[1]], 0.5, seed=1, turn=1) == [3, 3, 3, 3]
