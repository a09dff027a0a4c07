"""Recovery demonstrations: recorded races driven again in the simulator with disturbances.

Recordings show only states that good drivers reach, so a policy cloned from them cannot correct its first error. Here
the planner follows the recording. Every second or two its speed changes by a few percent and wrong inputs are held for
a moment, which displaces and turns the car as a policy's own errors would. Labels are the planner's inputs, also during
disturbances (noise injection: Laskey et al. 2017, arXiv:1703.09327).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.actions import TICK_MS, action_table
from rulka.datasets.formats.races import Race
from rulka.machine.errors import UserError
from rulka.planner.planner import FOLLOW, FOLLOWING, Line, Planner, line_of
from rulka.recordings.car_rows import interpolate_rows
from rulka.simulator import car as columns
from rulka.simulator.params import SimulatorParams
from rulka.simulator.simulator import Simulator
from rulka.tracks.track import Track

DISTURBED_TICKS = (10, 40)
"""Range of a disturbance's length: 0.1 to 0.4 s."""
PAUSE_TICKS = (60, 200)
"""Range of the pause between disturbances: 0.6 to 2 s."""
DISTURBED_STEER = 0.6
"""Standard deviation of the steering disturbance; full lock is 1."""
PEDALS = np.array([(1.0, 0.0), (0.0, 0.0), (0.0, 1.0)], np.float32)
"""Gas and brake that a disturbance may hold."""
OTHER_PEDALS = 0.3
"""Probability that a disturbance also replaces the pedals."""
SPEED_ERROR = 0.05
"""Standard deviation of the relative speed change at the start of a disturbance. A policy that takes a bend too fast or
too slowly has the wrong speed for seconds."""
MOST_LOST = 40
"""Maximum number of disturbances after which the car left the track; each is undone."""
DECISIONS_PER_S = 200
"""Decisions driven per second by one process on a slow core, roughly: half of what a hard road takes, where many
disturbances are undone and tried again."""
MOST_TIME = 1.3
"""Time limit of a drive, relative to the recorded time."""


class RecoveryError(UserError):
    """The planner lost the car; the message says after how many metres."""


class _Moment(NamedTuple):
    """State before a disturbance, restored if the car leaves the track."""

    car: NDArray[np.float64]
    num_decisions: int


def recovery_id(race: Race, number: int) -> str:
    """Returns the id of a race's recovery drive."""
    return f"{race.race_id}-recovery-{number}"


def line_of_race(race: Race, track: Track) -> Line:
    """Returns the line of a recorded race on the track of its map."""
    cars = interpolate_rows(race.state_time_ms, race.state, np.arange(race.num_ticks) * TICK_MS)
    return line_of(track, cars.astype(np.float64))


def drive_again(race: Race, track: Track, simulator: SimulatorParams, decision_ticks: int, number: int) -> Race:
    """Drives a recorded race with disturbances.

    Args:
        race: a race with inputs.
        track: track of its map.
        simulator: simulator parameters.
        decision_ticks: ticks between stored states, and between plans.
        number: seeds the disturbances, with the race's id.

    Returns:
        An unfinished race. Its controls are labels, the planner's inputs in each state; during a disturbance they
        are not the inputs that led to the next state.

    Raises:
        RecoveryError: if the car leaves the track without a disturbance or after too many, or exceeds the time limit.
    """
    line, table = line_of_race(race, track), action_table(decision_ticks)
    planner = Planner(track, simulator.physics, table, 1, FOLLOWING, seed=number, aim=FOLLOW, line=line)
    cars = Simulator(track, 1, simulator, table)
    cars.reset(np.ones(1, np.bool_), lateral_m=line.left_m[0])
    rng = np.random.default_rng((crc32(race.race_id.encode()), number))
    moments: list[_Moment] = []
    added, pedals, ends, begins = 0.0, None, 0, int(rng.integers(*PAUSE_TICKS))
    rows, planned, num_lost = [], [], 0
    while not cars.is_finished[0]:
        tick, state = len(rows) * decision_ticks, cars.save()
        if tick > MOST_TIME * race.num_ticks:
            raise _stopped(race, cars, f"took longer than {MOST_TIME} times the recorded time")
        if num_lost > MOST_LOST:
            raise _stopped(race, cars, f"left the track after more than {MOST_LOST} disturbances")
        if tick >= begins:
            moments.append(_Moment(state.copy(), len(rows)))
            ends = tick + int(rng.integers(*DISTURBED_TICKS))
            begins = ends + int(rng.integers(*PAUSE_TICKS))
            added = DISTURBED_STEER * rng.standard_normal()
            pedals = PEDALS[rng.integers(len(PEDALS))] if rng.random() < OTHER_PEDALS else None
            state[0, columns.VX : columns.VZ + 1] *= 1.0 + SPEED_ERROR * rng.standard_normal()
            cars.restore(state)
        controls = planner.controls(state)[0].astype(np.float32)
        held = controls.copy()
        if tick < ends:
            held[:, 0] = np.clip(held[:, 0] + added, -1.0, 1.0)
            if pedals is not None:
                held[:, 1:] = pedals
        rows.append(cars.cars[0].copy())
        planned.append(np.repeat(controls, decision_ticks, axis=0))
        cars.step_controls(held)
        if cars.is_off_track[0]:
            if not moments:
                raise _stopped(race, cars, "left the track")
            state, num_kept = moments.pop()  # a second loss goes back one moment further
            cars.restore(state)
            del rows[num_kept:], planned[num_kept:]
            ends, num_lost = 0, num_lost + 1
            begins = len(rows) * decision_ticks + int(rng.integers(*PAUSE_TICKS))
    return replace(
        race,
        race_id=recovery_id(race, number),
        source="recovery",
        race_time_ms=None,
        is_finished=False,
        checkpoint_times_ms=(),
        controls=np.concatenate(planned),
        state_time_ms=np.arange(len(rows)) * decision_ticks * TICK_MS,
        state=np.array(rows),
    )


def _stopped(race: Race, cars: Simulator, why: str) -> RecoveryError:
    message = (
        f"{race.file or race.race_id} cannot be driven again: the simulated car {why}, at "
        f"{cars.along_m[0]:.0f} m of {cars.track.length_m:.0f} m"
    )
    return RecoveryError(message, hint="The drive is left out; `rulka calibrate` shows how far races can be followed.")
