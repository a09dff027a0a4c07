"""Drives whole recorded races in the simulator: the planner keeps to the recorded path and speed.

How far it gets, and how closely, measures the simulator's error over minutes; open-loop errors measure it over seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rulka.contracts.actions import TICK_MS, action_table
from rulka.contracts.observation import ZONE_SPACING_M
from rulka.datasets.formats.races import Race
from rulka.datasets.recovery import line_of_race
from rulka.planner.planner import FOLLOW, FOLLOWING, Planner
from rulka.simulator.params import PhysicsParams, SimulatorParams
from rulka.simulator.simulator import Simulator
from rulka.tracks.track import Track

DECISION_TICKS = 5
"""Ticks between decisions."""
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
        beside_m: median distance from the recorded line.
        most_beside_m: largest distance from it.
    """

    recorded_ms: int
    time_ms: int | None
    along_m: float
    length_m: float
    beside_m: float
    most_beside_m: float


def follow(track: Track, race: Race, physics: PhysicsParams) -> Followed:
    """Drives a recorded race in the simulator.

    Args:
        track: track made from recordings of the race's map.
        race: a finished race with inputs.
        physics: physics of the simulated car.
    """
    line, table = line_of_race(race, track), action_table(DECISION_TICKS)
    cars = Simulator(track, 1, SimulatorParams(physics=physics), table)
    cars.reset(np.ones(1, np.bool_), lateral_m=line.left_m[0])
    planner = Planner(track, physics, table, 1, FOLLOWING, seed=0, aim=FOLLOW, line=line)
    zone_m, beside_m = np.arange(len(line.left_m)) * ZONE_SPACING_M, []
    while not (cars.is_finished[0] or cars.is_off_track[0]):
        if cars.time_ms[0] > MOST_TIME * race.num_ticks * TICK_MS:
            break
        cars.step_controls(planner.controls(cars.save())[0].astype(np.float32))
        beside_m.append(abs(float(cars.lateral_m[0] - np.interp(cars.along_m[0], zone_m, line.left_m))))
    return Followed(
        recorded_ms=int(race.race_time_ms or 0),
        time_ms=int(cars.gate_time_ms[0, -1]) if cars.is_finished[0] else None,
        along_m=float(cars.along_m[0]),
        length_m=track.length_m,
        beside_m=float(np.median(beside_m)),
        most_beside_m=max(beside_m),
    )
