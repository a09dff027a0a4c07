"""Collects frames that a cloned policy visits, labelled with the built-in driver's actions.

DAgger, Ross et al. 2011, arXiv:1011.0686: recordings do not show how to recover from states that no driver visited.
Advice depends only on the current state, not on earlier actions, see `PurePursuitDriver.advice`.
Dimensions: N cars, T decisions per car, A actions, K ticks of a decision.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.actions import ActionTable
from rulka.agents.networks import Cloned
from rulka.datasets.frames import CapturedRace
from rulka.evaluation.closed_loop import ClosedLoop, greedy
from rulka.evaluation.race import EvaluationRaces, race
from rulka.simulator.driver import PurePursuitDriver, Skills
from rulka.simulator.simulator import Simulator

SOURCE = "policy"
"""`source` of these races."""
LOOK_AHEAD_S = 0.44
"""Look-ahead of the advising driver: the middle of the demonstrating drivers'."""


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


def collect_dagger_races(policy: Cloned, races: EvaluationRaces, pace: float, name: str) -> Visit:
    """Runs greedy races of a policy and labels them; call it without gradients, with the policy in evaluation mode.

    Args:
        policy: the policy that drives.
        races: track, starts and settings.
        pace: fraction of the possible speed at which the advising driver would drive.
        name: name of the round, a prefix of the race ids.
    """
    num_cars, track = len(races.seeds), races.track
    skills = Skills(np.full(num_cars, pace), np.full(num_cars, LOOK_AHEAD_S), np.zeros(num_cars), np.zeros(num_cars))
    adviser = PurePursuitDriver(track, races.settings.simulator.physics, skills, seed=0)
    decisions: list[_Decision] = []

    def look(simulator: Simulator, image: NDArray[np.uint8], floats: NDArray[np.float32]) -> None:
        where = simulator.time_ms.astype(np.int64), simulator.along_m.copy()
        decisions.append(_Decision(image[:, -1:].copy(), floats.copy(), adviser.advice(simulator), *where))

    table = races.settings.table
    results = race(greedy(policy, table), races, on_seen=look)
    columns = {column: np.stack([getattr(each, column) for each in decisions]) for column in _Decision._fields}
    captured = []
    for car, result in enumerate(results):
        num_decisions = len(result.sample_ms) - 1  # the last sample follows the last decision
        seen = _Decision(**{field: column[:num_decisions, car] for field, column in columns.items()})
        captured.append(_captured(f"{name}-{result.seed}", track.uid, seen, table))
    return Visit(ClosedLoop.of(results), captured)


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
