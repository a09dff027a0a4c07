"""A simulated race that behaves like one in the game: clock, countdown, keys, checkpoints, finish, rewinds.

It differs from the game as the simulator does: a car that has finished or left the track stops, while the clock goes
on; tracks have one lap; there is one map.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.actions import CONTROLS, TICK_MS, Controls, action_table
from rulka.game.errors import StateRefusedError
from rulka.game.protocol import COUNTDOWN_MS, CheckpointCount
from rulka.game.snapshot import MAX_NUMBERS, describe, embed, extract
from rulka.game.state import EVENT_NAMES, NOT_PASSED_MS, SIMULATION_TIMER, STATE, read_state, write_state
from rulka.machine.errors import UserError
from rulka.simulator.params import SimulatorParams
from rulka.simulator.simulator import Simulator
from rulka.tracks.track import Track

NO_KEYS = Controls(accelerate=False, brake=False, left=False, right=False)
_ACTION_OF = {controls: np.array([index]) for index, controls in enumerate(CONTROLS)}
_ONE_CAR = np.ones(1, np.bool_)
CONSTANTS = {"version": 2, "context_mode": 1, "flags": 0xFF}
"""Constant fields of every block: version, run mode, and all flags."""
FIRST_TICK_MS = 10
"""Simulation time of the first tick of the countdown."""
_VALUE_BITS = 0xFFFFFF
_KEY_EVENTS = [EVENT_NAMES.index(name) for name in Controls._fields]


class SimulatedRace:
    """One car on one track, moved tick by tick.

    Attributes:
        simulator: the car.
        race_time_ms: milliseconds since the start, negative in the countdown; stops at the finish.
        tick_time_ms: the same, but it goes on after the finish.
        is_finished: True once the car has passed the finish, unless a program prevented that.
        keys: pressed keys; may be changed.

    Raises:
        UserError: if the track has too many gates for a block of the game.
    """

    def __init__(self, track: Track, params: SimulatorParams) -> None:
        self.simulator = Simulator(track, 1, params, action_table(1))
        self._num_saved = self.simulator.save().shape[1]
        if self._num_saved > MAX_NUMBERS:
            message = f"track {track.name!r} has too many gates: a block of the game has room for {MAX_NUMBERS} numbers"
            raise UserError(message)
        self._track_sum = zlib.crc32(track.centre_m.tobytes(), zlib.crc32(track.gate_m.tobytes()))
        self._fixed = np.zeros(1, STATE)
        for name, value in CONSTANTS.items():
            self._fixed[name] = value
        self.keys = NO_KEYS
        self.simulator.step(_ACTION_OF[NO_KEYS])  # compiles kernels now, not while a program waits
        self.restart()

    @property
    def num_checkpoints(self) -> int:
        """Number of checkpoints, including the finish."""
        return len(self.simulator.track.gate_m)

    @property
    def checkpoint_count(self) -> int:
        """Number of checkpoints passed; a prevented finish does not count."""
        prevented = bool(self.simulator.is_finished[0]) and not self.is_finished
        return int(self.simulator.gate_index[0]) - prevented

    @property
    def checkpoint_ms(self) -> NDArray[np.int32]:
        """[G] race time at each checkpoint, `NOT_PASSED_MS` if not passed yet."""
        times = self.simulator.gate_time_ms[0].astype(np.int32)
        times[self.checkpoint_count :] = NOT_PASSED_MS
        return times

    def restart(self) -> None:
        """Resets the car to the start and begins the countdown; pressed keys stay pressed."""
        self.simulator.reset(_ONE_CAR)
        self.race_time_ms = self.tick_time_ms = -COUNTDOWN_MS - TICK_MS  # the first tick is that of -2600
        self.is_finished = False

    def tick(self) -> CheckpointCount | None:
        """Advances by 10 ms; returns the count if the car passed a checkpoint, else None."""
        before = int(self.simulator.gate_index[0])
        if self.tick_time_ms >= 0 and not self.is_finished:
            keys = self.keys
            if keys.left and keys.right:  # both cancel each other
                keys = keys._replace(left=False, right=False)
            self.simulator.step(_ACTION_OF[keys])
        self.tick_time_ms += TICK_MS
        if self.is_finished:
            return None
        self.race_time_ms = self.tick_time_ms
        count = int(self.simulator.gate_index[0])
        if count == before:
            return None
        self.is_finished = bool(self.simulator.is_finished[0])
        return CheckpointCount(count, self.num_checkpoints)

    def prevent_finish(self) -> None:
        """Revokes the finish; the clock continues from the time at which it stopped."""
        self.is_finished = False
        self.tick_time_ms = self.race_time_ms

    def state(self) -> bytes:
        """Returns the simulation as a block of the game's format; `rewind` restores it bit for bit."""
        record, checkpoint_ms = self._fixed[0], self.checkpoint_ms
        describe(record, self.simulator.cars[0])
        record["race_time_ms"], record["is_finished"] = self.race_time_ms, self.is_finished
        record["timers"][SIMULATION_TIMER] = self.tick_time_ms + COUNTDOWN_MS + FIRST_TICK_MS
        record["checkpoint_count"] = np.count_nonzero(checkpoint_ms != NOT_PASSED_MS)
        record["events"]["value"][_KEY_EVENTS] = self.keys
        embed(self._fixed.view(np.uint8), self._track_sum, self.simulator.save())
        return write_state(self._fixed, checkpoint_ms[:-1] != NOT_PASSED_MS, checkpoint_ms)

    def rewind(self, block: bytes | memoryview) -> None:
        """Restores the race to a block from `state` of a race on this track.

        Like the game, it accepts a block with an erased finish time; the race then goes on.

        Raises:
            StateRefusedError: if the block is corrupt or from another game or track; nothing is changed.
        """
        state = read_state(block)
        numbers = extract(bytes(block[: STATE.itemsize]), self._track_sum, self._num_saved)
        if len(state.checkpoints) != self.num_checkpoints:
            message = f"the state has {len(state.checkpoints)} checkpoint entries, the track {self.num_checkpoints}"
            raise StateRefusedError(message)
        self.simulator.restore(numbers)
        self.race_time_ms = state.race_time_ms
        self.tick_time_ms = state.simulation_time_ms - COUNTDOWN_MS - FIRST_TICK_MS
        self.is_finished = state.is_finished and bool(state.checkpoints["time_ms"][-1] != NOT_PASSED_MS)
        self.keys = Controls(*map(bool, state.fixed["events"]["value"][_KEY_EVENTS] & _VALUE_BITS))
