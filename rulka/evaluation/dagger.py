"""Collects frames that a cloned policy visits, labelled with an adviser's actions.

DAgger, Ross et al. 2011, arXiv:1011.0686: recordings do not show how to recover from states that no driver visited.
The adviser is the built-in driver (`PurePursuitDriver.advice`) or a follower of a recorded race.
Dimensions: N cars, T decisions per car, A actions, K ticks of a decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rulka.agents.shared.networks import Cloned
from rulka.contracts.actions import TICK_MS, ActionTable
from rulka.datasets.formats.frames import CapturedRace
from rulka.datasets.formats.races import Race
from rulka.datasets.recovery import follower_of
from rulka.evaluation.closed_loop import ClosedLoop, greedy
from rulka.evaluation.race import EvaluationRaces, race
from rulka.evaluation.results import RaceResult
from rulka.simulator.driver import PurePursuitDriver, Skills, action_shares
from rulka.simulator.follower import NO_CORRECTION
from rulka.simulator.simulator import Simulator

SOURCE = "policy"
"""`source` of these races."""
LOOK_AHEAD_S = 0.44
"""Look-ahead of the advising driver: the middle of the demonstrating drivers'."""


class Adviser(Protocol):
    """Labels states that a policy visits."""

    def advice(self, simulator: Simulator) -> NDArray[np.float32]:
        """Returns [N, A] the share of the next decision for which to hold each action; rows sum to 1."""
        ...


class RecordingAdviser:
    """Advises inputs that return to a recorded race and follow it; see `rulka.simulator.follower`.

    Args:
        race: a race with inputs.
        races: races on the track of its map.
    """

    def __init__(self, race: Race, races: EvaluationRaces) -> None:
        self._follower = follower_of(race, races.track, races.settings.simulator.physics)
        self._corrections = [NO_CORRECTION] * len(races.seeds)

    def advice(self, simulator: Simulator) -> NDArray[np.float32]:
        """Returns [N, A] action shares; a car whose race is over releases all keys."""
        num_ticks = simulator.table.duration_ms // TICK_MS
        planned = np.zeros((simulator.num_cars, 3), np.float32)
        is_over = simulator.is_finished | simulator.is_off_track
        for car, state in enumerate(simulator.save()):
            if not is_over[car]:
                inputs, _, self._corrections[car] = self._follower.plan(state, self._corrections[car])
                planned[car] = inputs[:num_ticks].mean(axis=0)
        steer, gas, brake = planned.astype(np.float64).T
        return action_shares(simulator.table, gas, brake, steer)


class Visit(NamedTuple):
    """Statistics of a policy's races, and all its observations labelled with advice."""

    driven: ClosedLoop
    races: list[CapturedRace]


class _Decision(NamedTuple):
    """Observations and advice of all cars before one decision."""

    image: NDArray[np.uint8]
    floats: NDArray[np.float32]
    advice: NDArray[np.float32]
    time_ms: NDArray[np.int64]
    along_m: NDArray[np.float64]


def collect_dagger_races(policy: Cloned, advised: Iterable[tuple[EvaluationRaces, Adviser]], name: str) -> Visit:
    """Runs greedy races of a policy and labels them; call it without gradients, with the policy in evaluation mode.

    Args:
        policy: the policy that drives.
        advised: tracks, starts and settings, each with the adviser made for these races, which labels the decisions.
        name: name of the round, a prefix of the race ids.
    """
    results, captured = list[RaceResult](), list[CapturedRace]()
    for races, adviser in advised:
        driven, decisions = _advised_races(policy, races, adviser)
        columns = {column: np.stack([getattr(each, column) for each in decisions]) for column in _Decision._fields}
        for car, result in enumerate(driven):
            num_decisions = len(result.sample_ms) - 1  # the last sample follows the last decision
            seen = _Decision(**{field: column[:num_decisions, car] for field, column in columns.items()})
            uid = races.track.uid
            captured.append(_captured(f"{name}-{uid}-{result.seed}", uid, seen, races.settings.table))
        results += driven
    return Visit(ClosedLoop.of(results), captured)


def _advised_races(
    policy: Cloned, races: EvaluationRaces, adviser: Adviser
) -> tuple[list[RaceResult], list[_Decision]]:
    """Runs the races; returns their results, and all decisions of all cars with advice."""
    decisions: list[_Decision] = []

    def look(simulator: Simulator, image: NDArray[np.uint8], floats: NDArray[np.float32]) -> None:
        where = simulator.time_ms.astype(np.int64), simulator.along_m.copy()
        decisions.append(_Decision(image[:, -1:].copy(), floats.copy(), adviser.advice(simulator), *where))

    return race(greedy(policy, races.settings.table), races, on_seen=look), decisions


def line_adviser(races: EvaluationRaces, pace: float) -> PurePursuitDriver:
    """Returns the built-in driver at `pace`, a fraction of the possible speed."""
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
    """Converts advised shares [T, A] to actions per tick [T, K], largest share first."""
    order = np.argsort(-advice, axis=1, kind="stable")
    ends = np.cumsum(np.take_along_axis(advice, order, axis=1), axis=1)
    middles = (np.arange(num_ticks) + 0.5) / num_ticks
    place = (middles[None, :, None] > ends[:, None, :]).sum(axis=2).clip(max=advice.shape[1] - 1)
    return np.take_along_axis(order, place, axis=1).astype(np.uint8)
