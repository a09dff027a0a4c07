"""Exploit and explore of population-based training, Jaderberg et al. 2017, arXiv:1711.09846.

Pure functions of the races of a whole turn, the turn's number and the population's seed, so that all processes on a
folder decide the same without coordination.

Exploit: a member among the worst continues from a random one of the best if that is significantly ahead of it
(truncation selection plus this condition). Explore: it inherits the other's parameter values, each multiplied by a
factor or resampled. All others continue unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rulka.contracts.section import Positive, Section, Share, Weight
from rulka.evaluation.statistics import stratified_interval

Scores = NDArray[np.float64]
"""[R] score of each greedy race of a member, higher is better; race k has the same start for all members. None stands
for a diverged member, whose weights are NaN or infinite."""
Values = Mapping[str, float]
"""Values of the parameters that a population searches, by dotted name."""
_START, _EXPLOIT, _EXPLORE = 0, 1, 2
"""RNG purposes: draws for one do not affect another."""


class Searched(Section):
    """A parameter that a population searches, in the logarithm of its magnitude.

    Attributes:
        start: range of the initial values.
        range: range of all values; of one sign, without 0.
        from_one: True if the distance from 1 is searched, as for a discount.
    """

    start: tuple[Weight, Weight] = Field(strict=False, description="Interval of the members' first values.")
    range: tuple[Weight, Weight] = Field(strict=False, description="Interval of all allowed values.")
    from_one: bool = Field(False, description="Vary 1 minus the value instead of the value, as for a discount.")

    def _check_combinations(self) -> Iterator[str]:
        (low, high), (first, last) = self.range, self.start
        if low >= high:
            yield f"range must rise, got {low:g} and {high:g}"
        if self._inside(low) * self._inside(high) <= 0.0:
            yield f"range {low:g} to {high:g} holds {1 if self.from_one else 0}, which no factor leads to or over"
        if not low <= first <= last <= high:
            yield f"start must rise and lie in the range {low:g} to {high:g}, got {first:g} and {last:g}"

    def draw(self, bounds: tuple[float, float], rng: np.random.Generator) -> float:
        """Draws a value between two bounds in the range, log-uniform in its magnitude."""
        near, far = (math.log(abs(self._inside(bound))) for bound in bounds)
        return self._outside(math.exp(rng.uniform(min(near, far), max(near, far))))

    def times(self, value: float, factor: float) -> float:
        """Multiplies the magnitude of a value by a factor, clipped to the range."""
        return self._outside(abs(self._inside(value)) * factor)

    def _inside(self, value: float) -> float:
        return 1.0 - value if self.from_one else value

    def _outside(self, magnitude: float) -> float:
        signed = math.copysign(magnitude, self._inside(self.range[0]))
        # Rounding must not lead out of the range.
        return min(max(1.0 - signed if self.from_one else signed, self.range[0]), self.range[1])


class Explore(Section):
    """Perturbation of the values of a copied member."""

    factors: tuple[Positive, ...] = Field(min_length=1, strict=False, description="Factors; each parameter draws one.")
    resample: Share = Field(description="Probability that a parameter is instead drawn anew from its range.")


def first_values(searched: Mapping[str, Searched], seed: int, member: int) -> dict[str, float]:
    """Draws a member's initial values."""
    rng = _rng(seed, _START, 0, member)
    return {name: each.draw(each.start, rng) for name, each in searched.items()}


def explored(
    values: Values, searched: Mapping[str, Searched], explore: Explore, seed: int, turn: int, member: int
) -> dict[str, float]:
    """Perturbs the values of a copied member.

    Args:
        values: values of the member that it was copied from.
        searched: the searched parameters.
        explore: the perturbation.
        seed: seed of the population.
        turn: the turn about to start.
        member: number of the copied member.
    """
    rng = _rng(seed, _EXPLORE, turn, member)
    found = {}
    for name, each in searched.items():
        is_drawn, factor = rng.random() < explore.resample, explore.factors[rng.integers(len(explore.factors))]
        found[name] = each.draw(each.range, rng) if is_drawn else each.times(values[name], factor)
    return found


def ranking(scores: Sequence[Scores | None]) -> list[int]:
    """Returns the members from best to worst: by mean score, diverged ones last, ties by number."""
    means = [-math.inf if each is None else float(each.mean()) for each in scores]
    return sorted(range(len(scores)), key=lambda member: (-means[member], member))


def parents(scores: Sequence[Scores | None], share: float, seed: int, turn: int) -> list[int]:
    """Returns the parent that each member continues from, mostly itself.

    Args:
        scores: scores of every member in the previous turn, of as many races each; at least one has not diverged.
        share: fraction of the members that count as worst, at least one member; as many count as best.
        seed: seed of the population.
        turn: the turn about to start.
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
