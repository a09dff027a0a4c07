"""Interpolates a race between its samples: pose, speed and controls at any time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation, Slerp

from rulka.contracts.observation import CAR
from rulka.evaluation.results import RaceResult
from rulka.tracks.progress import progress_along

POSE = slice(CAR["position"].start, CAR["rotation"].stop)
"""Position and rotation, which are adjacent in a `CAR` row."""


@dataclass(frozen=True)
class Moment:
    """State of a race at one time.

    Attributes:
        time_ms: race time, at most the race's duration.
        pose: [12] float32 position and rotation, interpolated between the adjacent samples.
        zone_index: zone of the car.
        seen: index of the last sample; the driver acted on its image.
        speed_mps: speed over ground.
        controls: steering, gas and brake.
    """

    time_ms: int
    pose: NDArray[np.float32]
    zone_index: int
    seen: int
    speed_mps: float
    controls: tuple[float, float, float]


class Motion:
    """A race as a function of time.

    Args:
        race: with at least one sample.
    """

    def __init__(self, race: RaceResult) -> None:
        self.race = race
        self.zone_index: NDArray[np.int64] = progress_along(race.track, race.position_m)[0]

    def at(self, time_ms: float) -> Moment:
        """Returns the state at a race time; outside the samples the car stands at the first or last one."""
        race = self.race
        now_ms = float(np.clip(time_ms, race.sample_ms[0], race.sample_ms[-1]))
        after = min(max(1, int(np.searchsorted(race.sample_ms, now_ms, side="right"))), len(race.sample_ms) - 1)
        before = max(0, after - 1)
        span_ms = max(1, int(race.sample_ms[after] - race.sample_ms[before]))
        share = (now_ms - int(race.sample_ms[before])) / span_ms if after > before else 0.0
        seen = after if share >= 1.0 else before
        steer, gas, brake = (float(value) for value in race.controls[seen])
        speed = race.speed_mps
        return Moment(
            time_ms=round(min(time_ms, race.duration_ms)),
            pose=_between(race.cars[before, POSE], race.cars[after, POSE], share),
            zone_index=int(self.zone_index[seen]),
            seen=seen,
            speed_mps=float((1.0 - share) * speed[before] + share * speed[after]),
            controls=(steer, gas, brake),
        )


def _between(first: NDArray[np.float32], second: NDArray[np.float32], share: float) -> NDArray[np.float32]:
    """Interpolates poses [12]: position linearly, rotation by slerp."""
    turned = Slerp([0.0, 1.0], Rotation.from_matrix(np.stack([first[3:], second[3:]]).reshape(2, 3, 3)))(share)
    place = (1.0 - share) * first[:3].astype(np.float64) + share * second[:3]
    return np.concatenate([place, turned.as_matrix().ravel()]).astype(np.float32)
