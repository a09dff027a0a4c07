"""Recorded races driven again in the simulator, disturbed on the way: demonstrations of how to come back.

Recordings show only where good drivers go, so a policy that learns from them cannot correct its first error. Here the
simulated car follows the recording (`rulka.simulator.follower`). Every second or two something else is held for a
moment, a wrong turn of the wheel or another pedal, which displaces and turns the car and changes its speed by what a
policy's own errors could. Labels are the inputs that the follower plans, also during the disturbance (noise injected
into the supervisor: Laskey et al. 2017, arXiv:1703.09327).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from rulka.actions import TICK_MS, action_table
from rulka.datasets.races import Race, RaceDataError
from rulka.recordings.car_rows import interpolate_rows
from rulka.simulator import car as columns
from rulka.simulator.follower import NO_CORRECTION, PEDALS, Correction, Follower
from rulka.simulator.params import SimulatorParams
from rulka.simulator.simulator import Simulator
from rulka.tracks.track import Track

DISTURBED_TICKS = (10, 40)
"""A disturbance lasts from 0.1 to 0.4 s,"""
PAUSE_TICKS = (60, 200)
"""and after 0.6 to 2 s the next begins."""
DISTURBED_STEER = 0.6
"""Standard deviation of what is added to the steering, full lock is 1."""
OTHER_PEDALS = 0.3
"""Share of the disturbances in which other pedals are held, too."""
MOST_LOST = 40
"""A race is left out after so many disturbances from which the follower did not come back."""
MOST_TIME = 1.3
"""Or after so many times its recorded time."""


class RecoveryError(RaceDataError):
    """The simulator cannot follow a recording; the message says how far it came."""


class _Moment(NamedTuple):
    """Where to go on from after a disturbance that was too much."""

    car: NDArray[np.float64]
    correction: Correction
    num_decisions: int


def recovery_id(race: Race, number: int) -> str:
    """Returns the id of a race that was driven again."""
    return f"{race.race_id}-recovery-{number}"


def follower_of(race: Race, track: Track, simulator: SimulatorParams) -> Follower:
    """Returns what follows a recorded race, which has inputs, on the track of its map."""
    cars = interpolate_rows(race.state_time_ms, race.state, np.arange(race.num_ticks) * TICK_MS)
    return Follower(track, simulator.physics, cars.astype(np.float64), race.controls)


def drive_again(race: Race, track: Track, simulator: SimulatorParams, decision_ticks: int, number: int) -> Race:
    """Follows a recorded race with disturbances.

    Args:
        race: with inputs.
        track: of its map.
        simulator: its parameters.
        decision_ticks: a state is stored, and planned from, once in so many ticks.
        number: of the drive; each has other disturbances, and always the same.

    Returns:
        A race whose controls are the planned ones, the best to do in its states, not those that led to the next state.

    Raises:
        RecoveryError: if the car is lost where nothing disturbs it, or too often where something does.
    """
    follower = follower_of(race, track, simulator)
    described = Simulator(track, 1, simulator, action_table(decision_ticks))
    keys = described.save()[:, follower.start.shape[1] :]
    rng = np.random.default_rng((crc32(race.race_id.encode()), number))
    state, correction = follower.start, NO_CORRECTION
    moments: list[_Moment] = []
    added, pedals, ends, begins = 0.0, 0, 0, int(rng.integers(*PAUSE_TICKS))
    rows, planned, num_lost = [], [], 0
    while not state[0, columns.FINISHED]:
        tick = len(rows) * decision_ticks
        if tick > MOST_TIME * race.num_ticks or num_lost > MOST_LOST:
            raise _lost(race, state, track)
        if tick >= begins:
            moments.append(_Moment(state.copy(), correction, len(rows)))
            ends = tick + int(rng.integers(*DISTURBED_TICKS))
            begins = ends + int(rng.integers(*PAUSE_TICKS))
            added = DISTURBED_STEER * rng.standard_normal()
            pedals = int(rng.integers(len(PEDALS))) if rng.random() < OTHER_PEDALS else -1
        inputs, _, correction = follower.plan(state[0], tick, correction)
        held = inputs[:decision_ticks].copy()
        if tick < ends:
            held[:, 0] = np.clip(held[:, 0] + added, -1.0, 1.0)
            if pedals >= 0:
                held[:, 1:] = PEDALS[pedals]
        described.put(np.zeros(1, np.int64), np.concatenate([state, keys], axis=1))
        rows.append(described.cars[0].copy())
        planned.append(inputs[:decision_ticks])
        follower.drive(state, held)
        if state[0, columns.OFF_TRACK]:
            if not moments:
                raise _lost(race, state, track)
            state, correction, num_kept = moments.pop()  # one that is lost again goes back to the moment before
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


def _lost(race: Race, state: NDArray[np.float64], track: Track) -> RecoveryError:
    message = (
        f"the simulator follows race {race.race_id} for {state[0, columns.ALONG]:.0f} m of {track.length_m:.0f} m alone"
    )
    return RecoveryError(message, hint="Its disturbed drives are left out; `rulka calibrate` says how far it is off.")
