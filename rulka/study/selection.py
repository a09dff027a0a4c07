"""Who goes on from whom, and with which values: population based training, Jaderberg et al. 2017, arXiv:1711.09846.

Pure functions of the races of a whole turn, the turn's number and the population's seed. So whoever works on a folder
decides the same, and nobody has to be asked.

Exploit: a member among the worst goes on from one of the best, drawn at random, if that is really ahead of it
(truncation, but for the last condition). Explore: it takes over the values of its parameters, each multiplied by a
factor or drawn anew. All others go on as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rulka.section import Positive, Section, Share, Weight
from rulka.statistics import stratified_interval

Scores = NDArray[np.float64]
"""[R] what each greedy race of a member is worth, more is better; race k of all members begins alike. None stands for
those of a member that has diverged: its weights are no numbers any more."""
Values = Mapping[str, float]
"""Values of the parameters that a population searches, by dotted name."""
_START, _EXPLOIT, _EXPLORE = 0, 1, 2
"""What chance is needed for: draws for one purpose change nothing about another."""


class Searched(Section):
    """A parameter that a population searches, in the logarithm of its magnitude.

    Attributes:
        start: least and greatest value that members begin with.
        range: the same that they may ever have; of one sign, without 0.
        from_one: whether it is the distance from 1 that is searched, as of a discount.
    """

    start: tuple[Weight, Weight] = Field(strict=False, description="what members begin with lies between these")
    range: tuple[Weight, Weight] = Field(strict=False, description="what they may ever have lies between these")
    from_one: bool = Field(False, description="whether 1 less the value is multiplied and drawn, as of a discount")

    @model_validator(mode="after")
    def _check(self) -> Searched:
        (low, high), (first, last) = self.range, self.start
        if low >= high:
            message = f"range must rise, got {low:g} and {high:g}"
            raise ValueError(message)
        if self._inside(low) * self._inside(high) <= 0.0:
            message = f"range {low:g} to {high:g} holds {1 if self.from_one else 0}, which no factor leads to or over"
            raise ValueError(message)
        if not low <= first <= last <= high:
            message = f"start must rise and lie in the range {low:g} to {high:g}, got {first:g} and {last:g}"
            raise ValueError(message)
        return self

    def draw(self, bounds: tuple[float, float], rng: np.random.Generator) -> float:
        """Draws a value between two others of the range, evenly in the logarithm of its magnitude."""
        near, far = (math.log(abs(self._inside(bound))) for bound in bounds)
        return self._outside(math.exp(rng.uniform(min(near, far), max(near, far))))

    def times(self, value: float, factor: float) -> float:
        """Returns a value whose magnitude is multiplied, or the end of the range that it would be beyond."""
        return self._outside(abs(self._inside(value)) * factor)

    def _inside(self, value: float) -> float:
        return 1.0 - value if self.from_one else value

    def _outside(self, magnitude: float) -> float:
        signed = math.copysign(magnitude, self._inside(self.range[0]))
        # Rounding must not lead out of the range.
        return min(max(1.0 - signed if self.from_one else signed, self.range[0]), self.range[1])


class Explore(Section):
    """How the values of a member that was copied differ from those of the one it was copied from."""

    factors: tuple[Positive, ...] = Field(min_length=1, strict=False, description="one is drawn for each parameter")
    resample: Share = Field(description="the chance that a parameter is drawn anew from its range instead")


def first_values(searched: Mapping[str, Searched], seed: int, member: int) -> dict[str, float]:
    """Returns what a member begins with."""
    rng = _rng(seed, _START, 0, member)
    return {name: each.draw(each.start, rng) for name, each in searched.items()}


def explored(
    values: Values, searched: Mapping[str, Searched], explore: Explore, seed: int, turn: int, member: int
) -> dict[str, float]:
    """Returns the values of a member that was copied.

    Args:
        values: of the one that it was copied from.
        searched: the parameters.
        explore: how they change.
        seed: of the population.
        turn: that it is about to begin.
        member: its number.
    """
    rng = _rng(seed, _EXPLORE, turn, member)
    found = {}
    for name, each in searched.items():
        is_drawn, factor = rng.random() < explore.resample, explore.factors[rng.integers(len(explore.factors))]
        found[name] = each.draw(each.range, rng) if is_drawn else each.times(values[name], factor)
    return found


def ranking(scores: Sequence[Scores | None]) -> list[int]:
    """Returns the members from best to worst: by their mean score, diverged ones last, equal ones by number."""
    means = [-math.inf if each is None else float(each.mean()) for each in scores]
    return sorted(range(len(scores)), key=lambda member: (-means[member], member))


def parents(scores: Sequence[Scores | None], share: float, seed: int, turn: int) -> list[int]:
    """Returns for each member whom it goes on from; most go on from themselves.

    Args:
        scores: of every member in the turn before, of as many races each; one of them at least has not diverged.
        share: of the members that is worst, at least one; as many are best.
        seed: of the population.
        turn: that is about to begin.
    """
    order = ranking(scores)
    count = max(1, int(share * len(scores)))
    best = [member for member in order[:count] if scores[member] is not None]
    worst = {*order[-count:], *(member for member in order if scores[member] is None)}
    found = list(range(len(scores)))
    for member in sorted(worst):
        parent = best[_rng(seed, _EXPLOIT, turn, member).integers(len(best))]
        ours, theirs = scores[member], scores[parent]
        assert theirs is not None
        if ours is None or stratified_interval((theirs - ours)[:, None]).low > 0.0:
            found[member] = parent
    return found


def _rng(seed: int, purpose: int, turn: int, member: int) -> np.random.Generator:
    return np.random.default_rng([seed, purpose, turn, member])
