"""Replays whole recorded races in the simulator: recorded inputs, with bounded corrections towards the recorded path.

The amount of correction that a race needs measures the simulator's error over minutes; open-loop errors measure it over
seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rulka.datasets.formats.races import Race
from rulka.datasets.recovery import follower_of
from rulka.simulator import car as columns
from rulka.simulator.follower import NO_CORRECTION
from rulka.simulator.params import PhysicsParams
from rulka.tracks.track import Track

DECISION = 10
"""Ticks between replans."""
NOTICED = 0.02
"""Corrections smaller than this do not count."""
MOST_TIME = 1.2
"""Time limit of a race, relative to the recorded time."""


@dataclass(frozen=True)
class Followed:
    """Result of a recorded race in the simulator.

    Attributes:
        recorded_ms: time of the recorded race.
        time_ms: time of the simulated race; None if it did not finish.
        along_m: distance reached along the track.
        length_m: length of the track.
        steered: share of ticks with a steering correction.
        steer: mean size of these corrections, full lock is 1.
        pedals: share of ticks with a gas or brake correction.
    """

    recorded_ms: int
    time_ms: int | None
    along_m: float
    length_m: float
    steered: float
    steer: float
    pedals: float


def follow(track: Track, race: Race, physics: PhysicsParams) -> Followed:
    """Drives a recorded race in the simulator.

    Args:
        track: track made from recordings of the race's map.
        race: a finished race with inputs.
        physics: physics of the simulated car.
    """
    follower = follower_of(race, track, physics)
    state, correction, corrections = follower.start.copy(), NO_CORRECTION, []
    car = state[0]
    for tick in range(0, int(MOST_TIME * race.num_ticks), DECISION):
        inputs, recorded, correction = follower.plan(car, correction, tick)
        corrections.append(np.abs(inputs[:DECISION] - recorded[:DECISION]))
        follower.drive(state, inputs[:DECISION])
        if car[columns.FINISHED] or car[columns.OFF_TRACK]:
            break
    corrected = np.concatenate(corrections)
    is_steered = corrected[:, 0] > NOTICED
    return Followed(
        recorded_ms=int(race.race_time_ms or 0),
        time_ms=int(car[-1]) if car[columns.FINISHED] else None,
        along_m=float(car[columns.ALONG]),
        length_m=track.length_m,
        steered=float(is_steered.mean()),
        steer=float(corrected[is_steered, 0].mean()) if is_steered.any() else 0.0,
        pedals=float((corrected[:, 1:] > NOTICED).any(axis=1).mean()),
    )
