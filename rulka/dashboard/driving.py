"""Races of a person, or of an agent of whom a person takes over, as a state machine of ticks.

There is no wall clock, no connection and no file here.

`restart` begins a countdown, which ends in a race. The race ends at the finish, when the car leaves the track, or after
ten minutes. `TickClock` says how many ticks are due.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.actions import TICK_MS
from rulka.contracts.observation import CAR
from rulka.dashboard.autopilot import Autopilot
from rulka.datasets.drives import MAX_TICKS, Recorder, recorded_controls
from rulka.evaluation.dataset import demonstration_results
from rulka.evaluation.results import FINISHED, MPS_TO_KMH, OFF_TRACK, TOO_LONG, RaceResult
from rulka.reference.medals import Medals, medal_won
from rulka.simulator.params import SimulatorParams
from rulka.simulator.render import POSE_SIZE
from rulka.tracks.track import Track
from rulka.video.motion import POSE, Motion

TICKS_PER_S = 1000 // TICK_MS
COUNTDOWN_TICKS = 3 * TICKS_PER_S
MOST_LATE_TICKS = 5
"""The clock catches up with wall time by at most this many ticks at once."""
OWN_BEST = "your best race"


class Phase(StrEnum):
    """Phase of a race; all from `FINISHED` on are ends."""

    READY = "ready"
    COUNTDOWN = "countdown"
    RACING = "racing"
    FINISHED = FINISHED
    OFF_TRACK = OFF_TRACK
    TOO_LONG = TOO_LONG


class TickClock:
    """Wall time in ticks, 100 a second. On a machine that is too slow the clock slows down; it leaves out no tick.

    Attributes:
        pace: ticks over wall time in the last second; 1 if the machine is fast enough.
    """

    def __init__(self, now_s: float) -> None:
        """Starts at a wall time in seconds."""
        self._zero_s, self._num_ticks = now_s, 0
        self._since_s, self._ticks_since = now_s, 0
        self.pace = 1.0

    def due(self, now_s: float) -> int:
        """Returns the number of ticks to run now, 0 to `MOST_LATE_TICKS`."""
        num = math.floor((now_s - self._zero_s) * TICKS_PER_S + 1e-6) - self._num_ticks
        if num > MOST_LATE_TICKS:
            self._zero_s += (num - MOST_LATE_TICKS) / TICKS_PER_S
            num = MOST_LATE_TICKS
        self._num_ticks += num
        self._ticks_since += num
        if now_s - self._since_s >= 1.0:
            self.pace = self._ticks_since / TICKS_PER_S / (now_s - self._since_s)
            self._since_s, self._ticks_since = now_s, 0
        return num

    def wait_s(self, now_s: float) -> float:
        """Returns the seconds until the next tick, 0 to one tick."""
        next_s = self._zero_s + (self._num_ticks + 1) / TICKS_PER_S
        return min(max(next_s - now_s, 0.0), 1.0 / TICKS_PER_S)


class Ghost(NamedTuple):
    """A race to compare with, and its name."""

    race: RaceResult
    label: str


Shot = tuple[NDArray[np.float32], int, NDArray[np.float32]]
"""What a picture shows: pose [12] and zone of the car, and poses [M, 12] of its ghosts."""


class Driving:
    """The races of one person on one track.

    Attributes:
        recorder: the car, and the record of the present race.
        phase: of the present race.
        finished: the race that finished last; None before.
        is_paused: True while ticks change nothing.
        held: [3] float32 controls of the next ticks.
        ghost: what the present race is compared with: the given ghost, or the best race so far; None without either.
        medals: medal times of the track; None if it has none.
        num_applied: number of calls of `set_controls` that a tick has followed.
        agent: drives while the person does not; None: the person drives all the time.
    """

    def __init__(
        self,
        track: Track,
        simulator: SimulatorParams,
        ghost: Ghost | None = None,
        medals: Medals | None = None,
        agent: Callable[[Recorder], Autopilot] | None = None,
    ) -> None:
        self.recorder = Recorder(track, simulator)
        self.agent = agent and agent(self.recorder)
        self.phase, self.is_paused = Phase.READY, False
        self.ghost, self.medals = ghost, medals
        self.finished: RaceResult | None = None
        self._best: RaceResult | None = None
        self._keeps_ghost = ghost is not None
        self._motion: Motion | None = None
        self._countdown = 0
        self.held, self._takes_over = recorded_controls(0.0, 0.0, 0.0), False
        self._num_inputs = self.num_applied = 0

    @property
    def is_by_person(self) -> bool:
        """True while the person drives."""
        return self.agent is None or self._takes_over

    def set_controls(self, steer: float, gas: float, brake: float, *, takes_over: bool = False) -> None:
        """Holds these controls from the next tick on; anything pressed ends a pause.

        Args:
            steer: -1 to 1, positive right.
            gas: 0 to 1; see `recorded_controls`.
            brake: 0 to 1.
            takes_over: the person drives, not the agent.
        """
        self.held, self._takes_over = recorded_controls(steer, gas, brake), takes_over
        self._num_inputs += 1
        self.is_paused &= not (self.held.any() or takes_over)

    def restart(self) -> None:
        """Puts the car back on the start line and begins the countdown."""
        if not self._keeps_ghost and self._best is not None:
            self.ghost = Ghost(self._best, OWN_BEST)
        self._motion = Motion(self.ghost.race) if self.ghost else None
        self.recorder.begin()
        self.phase, self.is_paused, self._countdown = Phase.COUNTDOWN, False, COUNTDOWN_TICKS

    def pause(self) -> None:
        """Releases all controls and pauses until something is pressed."""
        self.set_controls(0.0, 0.0, 0.0)
        self.is_paused = self.phase in (Phase.COUNTDOWN, Phase.RACING)

    def tick(self) -> bool:
        """Runs 10 ms; returns True if the race ended with it."""
        if self.is_paused:
            return False
        self.num_applied = self._num_inputs
        if self.phase is Phase.COUNTDOWN:
            self._countdown -= 1
            if self._countdown == 0:
                self.phase = Phase.RACING
        elif self.phase is Phase.RACING:
            theirs = self.agent.controls() if self.agent else self.held
            self.recorder.tick(self.held if self.is_by_person else theirs, by_person=self.is_by_person)
            self.phase = self._phase_now()
            return self.phase is not Phase.RACING
        return False

    def _phase_now(self) -> Phase:
        car = self.recorder.car
        if car.is_finished[0]:
            (self.finished,) = demonstration_results([self.recorder.race("")], self.recorder.track)
            self._best = min(filter(None, (self._best, self.finished)), key=lambda race: race.duration_ms)
            return Phase.FINISHED
        if car.is_off_track[0]:
            return Phase.OFF_TRACK
        return Phase.TOO_LONG if self.recorder.num_ticks >= MAX_TICKS else Phase.RACING

    def shot(self) -> Shot:
        """Returns what there is to see now."""
        car, time_ms = self.recorder.car, TICK_MS * self.recorder.num_ticks
        ghosts = [self._motion.at(time_ms).pose] if self._motion else []
        return car.cars[0, POSE].copy(), int(car.zone_index[0]), np.array(ghosts, np.float32).reshape(-1, POSE_SIZE)

    def splits(self) -> list[tuple[int, int | None]]:
        """Returns the time at each gate passed, and how far behind the ghost that is, both in ms; None without one."""
        car = self.recorder.car
        times_ms = car.gate_time_ms[0, : car.gate_index[0]].tolist()
        theirs_ms = self.ghost.race.gate_times_ms.tolist() if self.ghost else []
        theirs_ms += [0] * (len(times_ms) - len(theirs_ms))
        return [(own, own - other if other else None) for own, other in zip(times_ms, theirs_ms, strict=False)]

    def state(self) -> dict[str, Any]:
        """Returns the state as plain JSON.

        Returns:
            `phase`, `is_paused`, `countdown` in whole seconds, `time_ms` of the race, `speed_kmh`, `splits`, `medal`
            (won; None without), `best_ms` (None without), `ghost` and `ghost_ms` (None without), `agent` (None
            without), `is_by_person`, and `inputs`: `num_applied`.
        """
        splits, is_finished = self.splits(), self.phase is Phase.FINISHED
        time_ms = splits[-1][0] if is_finished else TICK_MS * self.recorder.num_ticks
        speed_mps = float(np.linalg.norm(self.recorder.car.cars[0, CAR["velocity"]]))
        return {
            "phase": self.phase,
            "is_paused": self.is_paused,
            "countdown": math.ceil(self._countdown / TICKS_PER_S),
            "time_ms": time_ms,
            "speed_kmh": round(speed_mps * MPS_TO_KMH),
            "splits": splits,
            "medal": medal_won(time_ms, self.medals) if is_finished and self.medals else None,
            "best_ms": self._best.time_ms if self._best else None,
            "ghost": self.ghost.label if self.ghost else None,
            "ghost_ms": self.ghost.race.time_ms if self.ghost else None,
            "agent": self.agent.label if self.agent else None,
            "is_by_person": self.is_by_person,
            "inputs": self.num_applied,
        }
