"""Collects frames that a cloned policy visits, labelled with an adviser's actions.

DAgger, Ross et al. 2011, arXiv:1011.0686: recordings do not show how to recover from states that no driver visited.
The adviser is the planner, which races, or follows a recorded race.
Dimensions: N cars, T decisions per car, A actions, K ticks of a decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.agents.shared.networks import Cloned
from rulka.contracts.actions import ActionTable
from rulka.datasets.formats.frames import CapturedRace
from rulka.evaluation.closed_loop import ClosedLoop, greedy
from rulka.evaluation.race import EvaluationRaces, Racing, racing, side_by_side
from rulka.planner.planner import Planner
from rulka.simulator.simulator import Simulator

SOURCE = "policy"
"""`source` of these races."""


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


def collect_dagger_races(policy: Cloned, advised: Iterable[tuple[EvaluationRaces, Planner]], name: str) -> Visit:
    """Runs greedy races of a policy and labels them; call it without gradients, with the policy in evaluation mode.

    Args:
        policy: the policy that drives.
        advised: tracks, starts and settings, each with a planner for these races, which labels the decisions.
        name: name of the round, a prefix of the race ids.
    """
    tracks, by_track, runs = list[EvaluationRaces](), list[list[_Decision]](), list[Racing]()
    for races, adviser in advised:
        decisions = list[_Decision]()
        look = partial(_look, adviser=adviser, decisions=decisions)
        runs.append(racing(races, races.settings.table, on_seen=look))
        tracks.append(races)
        by_track.append(decisions)

    table = tracks[0].settings.table
    results, captured = side_by_side(greedy(policy, table), runs), list[CapturedRace]()
    for races, driven, decisions in zip(tracks, results, by_track, strict=True):
        columns = {column: np.stack([getattr(each, column) for each in decisions]) for column in _Decision._fields}
        for car, result in enumerate(driven):
            num_decisions = len(result.sample_ms) - 1  # the last sample follows the last decision
            seen = _Decision(**{field: column[:num_decisions, car] for field, column in columns.items()})
            uid = races.track.uid
            captured.append(_captured(f"{name}-{uid}-{result.seed}", uid, seen, table))
    return Visit(ClosedLoop.of([result for driven in results for result in driven]), captured)


def _look(
    simulator: Simulator,
    image: NDArray[np.uint8],
    floats: NDArray[np.float32],
    *,
    adviser: Planner,
    decisions: list[_Decision],
) -> None:
    """Keeps what the cars of a track see, and the advice on it."""
    where = simulator.time_ms.astype(np.int64), simulator.along_m.copy()
    decisions.append(_Decision(image[:, -1:].copy(), floats.copy(), adviser.advice(simulator.save()), *where))


def _captured(race_id: str, map_uid: str, seen: _Decision, table: ActionTable) -> CapturedRace:
    return CapturedRace(
        race_id=race_id,
        source=SOURCE,
        map_uid=map_uid,
        image=seen.image,
        floats=seen.floats,
        action=seen.advice.argmax(axis=1).astype(np.uint8),
        action_share=seen.advice,
        tick_actions=by_tick(seen.advice, table.decision_ticks),
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
