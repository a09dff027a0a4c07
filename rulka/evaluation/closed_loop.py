"""Closed-loop evaluation during training: greedy races in the simulator, and a ranking of their results.

A loss on recorded frames does not replace it: a car that leaves the recorded path meets out-of-distribution frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rulka.agents.shared.distributions import distribution_of
from rulka.agents.shared.networks import Cloned
from rulka.contracts.actions import ActionTable
from rulka.evaluation.race import EvaluationRaces, Policy, racing, side_by_side
from rulka.evaluation.results import RaceResult
from rulka.machine.device import device_of, upload


@dataclass(frozen=True)
class ClosedLoop:
    """Statistics of a set of races.

    Attributes:
        num_races: number of races.
        finish_rate: share of finished races.
        mean_progress_m: furthest point on the track, mean of all races.
        mean_time_s: mean time of finished races; None if there are none.
        mean_pace_mps: mean pace of all races, see `RaceResult.pace_mps`.
        mean_duration_s: mean duration of all races, however they ended.
        median_unfinished_s: median duration of unfinished races; None if all finished.
    """

    num_races: int
    finish_rate: float
    mean_progress_m: float
    mean_time_s: float | None
    mean_pace_mps: float
    mean_duration_s: float
    median_unfinished_s: float | None

    @classmethod
    def of(cls, results: Sequence[RaceResult]) -> ClosedLoop:
        """Computes the statistics of at least one race."""
        times = [result.time_s for result in results if result.time_s is not None]
        ends_ms = [result.duration_ms for result in results if not result.is_finished]
        return cls(
            num_races=len(results),
            finish_rate=len(times) / len(results),
            mean_progress_m=float(np.mean([result.progress_m for result in results])),
            mean_time_s=float(np.mean(times)) if times else None,
            mean_pace_mps=float(np.mean([result.pace_mps for result in results])),
            mean_duration_s=float(np.mean([result.duration_ms for result in results])) / 1000.0,
            median_unfinished_s=float(np.median(ends_ms)) / 1000.0 if ends_ms else None,
        )

    @property
    def score(self) -> tuple[float, float]:
        """Sort key as of greedy checks, see `rulka.runtime.greedy_check.CheckResult.score`."""
        return self.mean_pace_mps, self.mean_progress_m

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON."""
        return asdict(self)


def drive(policy: Cloned, on_tracks: Sequence[EvaluationRaces]) -> ClosedLoop:
    """Runs greedy races of a policy, all with the same actions.

    Call it without gradients, with the policy in evaluation mode.
    """
    table = on_tracks[0].settings.table
    driven = side_by_side(greedy(policy, table), [racing(races, table) for races in on_tracks])
    return ClosedLoop.of([result for results in driven for result in results])


def greedy(policy: Cloned, table: ActionTable) -> Policy:
    """Returns a driver that takes a policy's most likely actions, which are those of a table."""
    device, distribution = device_of(policy), distribution_of(table.space)

    def decide(image: NDArray[np.uint8], floats: NDArray[np.float32]) -> NDArray:
        seen, known = upload((torch.from_numpy(image), torch.from_numpy(floats)), device)
        decided = distribution.greedy(policy.decide(policy.encode(seen), known))
        return decided.view(-1, *table.decision_shape).cpu().numpy()  # the simulator takes single actions as [N]

    return decide
