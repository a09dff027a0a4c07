"""What a cloned policy meets where it drives, and what the built-in driver would do there.

DAgger, Ross et al. 2011, arXiv:1011.0686: recordings do not show how to come back from where no driver went. Advice
depends on where the car is and on nothing that was done before, see `PurePursuitDriver.advice`.
Dimensions: N cars, T decisions of one, A actions, K ticks of a decision.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rulka.actions import TICK_MS, ActionTable
from rulka.agents.networks import Cloned
from rulka.datasets.frames import CapturedRace
from rulka.datasets.races import Race
from rulka.datasets.recovery import follower_of
from rulka.evaluation.closed_loop import ClosedLoop, greedy
from rulka.evaluation.race import EvaluationRaces, race
from rulka.simulator.driver import PurePursuitDriver, Skills, action_shares
from rulka.simulator.follower import NO_CORRECTION
from rulka.simulator.simulator import Simulator

SOURCE = "policy"
"""Who drove races like these."""
LOOK_AHEAD_S = 0.44
"""Of the driver that advises: the middle of those that demonstrate."""


class Adviser(Protocol):
    """Says what to do where a policy has driven a car to."""

    def advice(self, simulator: Simulator) -> NDArray[np.float32]:
        """Returns [N, A] for which share of the next decision each action should be held; rows sum to 1."""
        ...


class RecordingAdviser:
    """Advises to return to a recorded race, by a search in the simulator; see `rulka.simulator.follower`.

    Args:
        race: with inputs.
        races: on the track of its map.
    """

    def __init__(self, race: Race, races: EvaluationRaces) -> None:
        self._follower = follower_of(race, races.track, races.settings.simulator)
        self._corrections = [NO_CORRECTION] * len(races.seeds)

    def advice(self, simulator: Simulator) -> NDArray[np.float32]:
        """Returns [N, A], see `Adviser`; a car whose race is over is told to roll."""
        num_ticks, planned = simulator.table.ticks_per_action, np.zeros((simulator.num_cars, 3), np.float32)
        is_over = simulator.is_finished | simulator.is_off_track
        for car, state in enumerate(simulator.save()):
            if not is_over[car]:
                tick = int(simulator.time_ms[car]) // TICK_MS
                inputs, _, self._corrections[car] = self._follower.plan(state, tick, self._corrections[car])
                planned[car] = inputs[:num_ticks].mean(axis=0)
        steer, gas, brake = planned.astype(np.float64).T
        return action_shares(simulator.table, gas, brake, steer)


class Visit(NamedTuple):
    """How a policy drove, and all that it saw, labelled with advice."""

    driven: ClosedLoop
    races: list[CapturedRace]


class _Decision(NamedTuple):
    """What all cars saw before one decision, and what they were advised."""

    image: NDArray[np.uint8]
    floats: NDArray[np.float32]
    advice: NDArray[np.float32]
    time_ms: NDArray[np.int64]
    along_m: NDArray[np.float64]


def visit(policy: Cloned, races: EvaluationRaces, adviser: Adviser, name: str) -> Visit:
    """Lets a policy take its most likely actions; call it without gradients, with the policy in evaluation mode.

    Args:
        policy: who drives.
        races: where and from where.
        adviser: of as many cars.
        name: of the round; the ids of the races begin with it.
    """
    decisions: list[_Decision] = []

    def look(simulator: Simulator, image: NDArray[np.uint8], floats: NDArray[np.float32]) -> None:
        where = simulator.time_ms.astype(np.int64), simulator.along_m.copy()
        decisions.append(_Decision(image[:, -1:].copy(), floats.copy(), adviser.advice(simulator), *where))

    table = races.settings.table
    results = race(greedy(policy, table), races, on_seen=look)
    columns = {column: np.stack([getattr(each, column) for each in decisions]) for column in _Decision._fields}
    captured = []
    for car, result in enumerate(results):
        num_decisions = len(result.sample_ms) - 1  # the last sample is what the last one led to
        seen = _Decision(**{field: column[:num_decisions, car] for field, column in columns.items()})
        captured.append(_captured(f"{name}-{result.seed}", races.track.uid, seen, table))
    return Visit(ClosedLoop.of(results), captured)


def line_adviser(races: EvaluationRaces, pace: float) -> PurePursuitDriver:
    """Returns the built-in driver, which drives at a share of the possible speed."""
    num_cars = len(races.seeds)
    skills = Skills(np.full(num_cars, pace), np.full(num_cars, LOOK_AHEAD_S), np.zeros(num_cars), np.zeros(num_cars))
    return PurePursuitDriver(races.track, races.settings.simulator.physics, skills, seed=0)


def _captured(race_id: str, map_uid: str, seen: _Decision, table: ActionTable) -> CapturedRace:
    return CapturedRace(
        race_id=race_id,
        source=SOURCE,
        map_uid=map_uid,
        image=seen.image,
        floats=seen.floats,
        action=seen.advice.argmax(axis=1).astype(np.uint8),
        action_share=seen.advice,
        tick_actions=by_tick(seen.advice, table.ticks_per_action * table.actions_per_decision),
        controls=seen.advice @ table.analog(),
        time_ms=seen.time_ms.astype(np.int32),
        along_m=seen.along_m.astype(np.float32),
    )


def by_tick(advice: NDArray[np.float32], num_ticks: int) -> NDArray[np.uint8]:
    """Returns [T, K] actions that are held for the shares [T, A] that were advised, the largest one first."""
    order = np.argsort(-advice, axis=1, kind="stable")
    ends = np.cumsum(np.take_along_axis(advice, order, axis=1), axis=1)
    middles = (np.arange(num_ticks) + 0.5) / num_ticks
    place = (middles[None, :, None] > ends[:, None, :]).sum(axis=2).clip(max=advice.shape[1] - 1)
    return np.take_along_axis(order, place, axis=1).astype(np.uint8)
