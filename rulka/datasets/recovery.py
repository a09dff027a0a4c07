"""Recovery demonstrations: recorded races driven again in the simulator with disturbances.

Recordings show only states that good drivers reach, so a policy cloned from them cannot correct its first error. Here a
simulated car follows the recording (`rulka.simulator.follower`). Every second or two its speed changes by a few percent
and wrong inputs are held for a moment, which displaces and turns the car as a policy's own errors would. Labels are the
follower's inputs, also during disturbances (noise injection: Laskey et al. 2017, arXiv:1703.09327).
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
from rulka.recordings.car_rows import interpolate_rows
from rulka.simulator import car as columns
from rulka.simulator.follower import NO_CORRECTION, PEDALS, Correction, Follower
from rulka.simulator.params import PhysicsParams, SimulatorParams
from rulka.simulator.simulator import Simulator
from rulka.tracks.track import Track

DISTURBED_TICKS = (10, 40)
"""Range of a disturbance's length: 0.1 to 0.4 s."""
PAUSE_TICKS = (60, 200)
"""Range of the pause between disturbances: 0.6 to 2 s."""
DISTURBED_STEER = 0.6
"""Standard deviation of the steering disturbance; full lock is 1."""
OTHER_PEDALS = 0.3
"""Probability that a disturbance also replaces the pedals."""
SPEED_ERROR = 0.05
"""Standard deviation of the relative speed change at the start of a disturbance. A policy that takes a bend too fast or
too slowly has the wrong speed for seconds."""
MOST_LOST = 40
"""Maximum number of disturbances after which the car left the track; each is undone."""
DECISIONS_PER_S = 40
"""Decisions driven per second by one process on a slow core, roughly: half of what an easy road takes, since on a hard
one many disturbances are undone and tried again."""
MOST_TIME = 1.3
"""Time limit of a drive, relative to the recorded time."""


class RecoveryError(UserError):
    """The follower lost the car; the message says after how many metres."""


class _Moment(NamedTuple):
    """State before a disturbance, restored if the car leaves the track."""

    car: NDArray[np.float64]
    correction: Correction
    num_decisions: int


def recovery_id(race: Race, number: int) -> str:
    """Returns the id of a race's recovery drive."""
    return f"{race.race_id}-recovery-{number}"


def follower_of(race: Race, track: Track, physics: PhysicsParams) -> Follower:
    """Returns the follower of a recorded race with inputs on the track of its map."""
    cars = interpolate_rows(race.state_time_ms, race.state, np.arange(race.num_ticks) * TICK_MS)
    return Follower(track, physics, cars.astype(np.float64), race.controls)


def drive_again(race: Race, track: Track, simulator: SimulatorParams, decision_ticks: int, number: int) -> Race:
    """Drives a recorded race with disturbances.

    Args:
        race: a race with inputs.
        track: track of its map.
        simulator: simulator parameters.
        decision_ticks: ticks between stored states, and between plans.
        number: seeds the disturbances, with the race's id.

    Returns:
        An unfinished race. Its controls are labels, the follower's inputs in each state; during a disturbance they
        are not the inputs that led to the next state.

    Raises:
        RecoveryError: if the car leaves the track without a disturbance or after too many, or exceeds the time limit.
    """
    follower = follower_of(race, track, simulator.physics)
    described = Simulator(track, 1, simulator, action_table(decision_ticks))
    keys = described.save()[:, follower.start.shape[1] :]
    rng = np.random.default_rng((crc32(race.race_id.encode()), number))
    state, correction = follower.start.copy(), NO_CORRECTION
    moments: list[_Moment] = []
    added, pedals, ends, begins = 0.0, None, 0, int(rng.integers(*PAUSE_TICKS))
    rows, planned, num_lost = [], [], 0
    while not state[0, columns.FINISHED]:
        tick = len(rows) * decision_ticks
        if tick > MOST_TIME * race.num_ticks:
            raise _stopped(race, state, track, f"took longer than {MOST_TIME} times the recorded time")
        if num_lost > MOST_LOST:
            raise _stopped(race, state, track, f"left the track after more than {MOST_LOST} disturbances")
        if tick >= begins:
            moments.append(_Moment(state.copy(), correction, len(rows)))
            ends = tick + int(rng.integers(*DISTURBED_TICKS))
            begins = ends + int(rng.integers(*PAUSE_TICKS))
            added = DISTURBED_STEER * rng.standard_normal()
            pedals = PEDALS[rng.integers(len(PEDALS))] if rng.random() < OTHER_PEDALS else None
            state[0, columns.VX : columns.VZ + 1] *= 1.0 + SPEED_ERROR * rng.standard_normal()
        # Do not catch up: the policy cannot see that it is late, and would learn to drive too fast everywhere.
        inputs, _, correction = follower.plan(state[0], correction)
        held = inputs[:decision_ticks].copy()
        if tick < ends:
            held[:, 0] = np.clip(held[:, 0] + added, -1.0, 1.0)
            if pedals is not None:
                held[:, 1:] = pedals
        described.set_states(np.zeros(1, np.int64), np.concatenate([state, keys], axis=1))
        rows.append(described.cars[0].copy())
        planned.append(inputs[:decision_ticks])
        follower.drive(state, held)
        if state[0, columns.OFF_TRACK]:
            if not moments:
                raise _stopped(race, state, track, "left the track")
            state, correction, num_kept = moments.pop()  # a second loss goes back one moment further
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


def _stopped(race: Race, state: NDArray[np.float64], track: Track, why: str) -> RecoveryError:
    message = (
        f"{race.file or race.race_id} cannot be driven again: the simulated car {why}, at "
        f"{state[0, columns.ALONG]:.0f} m of {track.length_m:.0f} m"
    )
    return RecoveryError(message, hint="The drive is left out; `rulka calibrate` shows how far races can be followed.")
