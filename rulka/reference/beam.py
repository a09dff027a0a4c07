"""A beam search over decisions: the first good lap on any track, found without knowing anything about driving.

All cars of the beam have driven equally long. Every decision each tries every action; of the children that end up alike
(in one cell of progress, place on the road, heading and velocity) the one furthest along stays. Slower cars are kept
beside faster ones that lead for now: those may be too fast for the next bend, and drop out there.

Dimensions: F cars of the beam, C children, A actions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rulka.actions import ActionTable
from rulka.observation import CAR
from rulka.params import SimulatorParams
from rulka.simulator.simulator import Simulator
from rulka.tracks.progress import zone_frames
from rulka.tracks.track import Track

BATCH_CARS = 1024
"""Cars stepped in one call; large enough that the kernel, not Python, takes the time."""
CELL = np.array([3.0, 1.0, 2.0, 2.0, 0.12])
"""Size of a cell: metres along and beside the line, m/s along and across it, sine of the heading."""
MAX_LAG_M = 45.0
"""Cars further behind the leader are given up. Braking from top speed for a hairpin costs less than this."""
SPEED_GROUP_MPS = 3.0
"""The beam is shared fairly among groups of cars this alike in speed."""

Floats = NDArray[np.float64]
OnSpent = Callable[[int, float], None]


@dataclass(frozen=True)
class Beam:
    """Cars that have driven equally long.

    Attributes:
        states: [F, K] rows of `Simulator.save`.
        parents: [F] which car of the beam before each comes from.
        actions: [F] its last action.
    """

    states: Floats
    parents: NDArray[np.int64]
    actions: NDArray[np.int64]


@dataclass(frozen=True)
class Children:
    """What the cars of a beam may become.

    Attributes:
        states: [C, K] rows of `Simulator.save`.
        features: [C, 5] metres along and beside the line, m/s along and across it, sine of the heading.
        finish_ms: [C] time at the finish, 0 where it is not reached.
        is_alive: [C] still on the road and not finished.
    """

    states: Floats
    features: Floats
    finish_ms: NDArray[np.int64]
    is_alive: NDArray[np.bool_]


class Expander:
    """Steps rows of saved states, however many, in batches of a fixed size.

    Attributes:
        spent: decisions simulated so far.
    """

    def __init__(self, track: Track, simulator: SimulatorParams, table: ActionTable) -> None:
        self._cars = Simulator(track, BATCH_CARS, simulator, table)
        frames = zone_frames(track)
        self._tangent, self._left = frames[:, 0:3], frames[:, 3:6]
        self.spent = 0

    def expand(self, states: Floats, actions: NDArray[np.int64]) -> Children:
        """Drives each saved car [C, K] for one decision with its action [C]."""
        parts = [
            self._expand_batch(states[first : first + BATCH_CARS], actions[first : first + BATCH_CARS])
            for first in range(0, len(states), BATCH_CARS)
        ]
        self.spent += len(states)
        return Children(*(np.concatenate([getattr(p, name) for p in parts]) for name in Children.__dataclass_fields__))

    def _expand_batch(self, states: Floats, actions: NDArray[np.int64]) -> Children:
        cars, count = self._cars, len(states)
        padding = np.zeros(BATCH_CARS - count, np.int64)
        cars.restore(np.concatenate([states, states[padding]]))
        cars.step(np.concatenate([actions, actions[padding]]))
        velocity = cars.cars[:, CAR["velocity"]].astype(np.float64)
        forward = cars.cars[:, CAR["rotation"]].reshape(-1, 3, 3)[:, :, 2]
        tangent, left = self._tangent[cars.zone_index], self._left[cars.zone_index]
        parts = (
            cars.along_m,
            cars.lateral_m,
            (velocity * tangent).sum(axis=1),
            (velocity * left).sum(axis=1),
            (forward * left).sum(axis=1),
        )
        return Children(
            states=cars.save()[:count],
            features=np.stack(parts, axis=1)[:count],
            finish_ms=np.where(cars.is_finished, cars.gate_time_ms[:, -1], 0)[:count],
            is_alive=~(cars.is_finished | cars.is_off_track)[:count],
        )


def search_lap(
    expander: Expander,
    start: Floats,
    num_actions: int,
    width: int,
    seed: int,
    max_decisions: int,
    on_spent: OnSpent = lambda _decisions, _metres: None,
) -> NDArray[np.int64] | None:
    """Searches a lap from the start to the finish.

    Args:
        expander: steps the cars.
        start: [K] saved state at the start.
        num_actions: A.
        width: cars in the beam, at most.
        seed: shifts the borders of the cells.
        max_decisions: gives up after this many.
        on_spent: called after each decision with those simulated for it and the metres that the leader has reached.

    Returns:
        [T] the actions of the fastest lap found, None where no car reaches the finish.
    """
    offset = np.random.default_rng(seed).uniform(size=len(CELL))
    beam = Beam(start[None], np.zeros(1, np.int64), np.zeros(1, np.int64))
    beams: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for _ in range(max_decisions):
        parents = np.repeat(np.arange(len(beam.states)), num_actions)
        actions = np.tile(np.arange(num_actions), len(beam.states))
        children = expander.expand(beam.states[parents], actions)
        finished = np.flatnonzero(children.finish_ms)
        if len(finished):
            best = finished[children.finish_ms[finished].argmin()]
            return _trace(beams, int(parents[best]), int(actions[best]))
        kept = select(children, width, offset)
        if not len(kept):
            return None
        beam = Beam(children.states[kept], parents[kept], actions[kept])
        beams.append((beam.parents, beam.actions))
        on_spent(len(actions), float(children.features[kept, 0].max()))
    return None


def select(children: Children, width: int, offset: Floats) -> NDArray[np.int64]:
    """Chooses who goes on: the furthest of each cell, then fairly among groups of speed.

    Args:
        children: the candidates.
        width: how many go on, at most.
        offset: [5] in [0, 1) shift of the cells.

    Returns:
        Indices of children, at most `width`.
    """
    along = children.features[:, 0]
    alive = np.flatnonzero(children.is_alive)
    if not len(alive):
        return alive
    alive = alive[along[alive] > along[alive].max() - MAX_LAG_M]
    cells = np.floor(children.features[alive] / CELL + offset).astype(np.int64)
    cells -= cells.min(axis=0)
    keys = np.ravel_multi_index(tuple(cells.T), tuple(cells.max(axis=0) + 1))
    order = np.lexsort((-along[alive], keys))
    is_first = np.diff(keys[order], prepend=-1) != 0
    firsts = alive[order[is_first]]
    if len(firsts) <= width:
        return firsts
    group = np.floor(children.features[firsts, 2] / SPEED_GROUP_MPS)
    order = np.lexsort((-along[firsts], group))
    starts = np.flatnonzero(np.diff(group[order], prepend=-np.inf))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    return firsts[order[np.argsort(rank, kind="stable")[:width]]]


def _trace(beams: list[tuple[NDArray[np.int64], NDArray[np.int64]]], car: int, last: int) -> NDArray[np.int64]:
    actions = [last]
    for parents, taken in reversed(beams):
        actions.append(int(taken[car]))
        car = int(parents[car])
    return np.array(actions[::-1], np.int64)
