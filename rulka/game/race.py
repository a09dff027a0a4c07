"""A race in the simulator that behaves like one in the game: clock, countdown, keys, checkpoints, finish, rewinds.

What differs from the game, because the simulator does: a car that has finished, or left the track for good, stands
where it is; tracks have one lap; there is one map. The clock goes on in either case.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.actions import CONTROLS, TICK_MS, Controls, action_table
from rulka.game.errors import StateRefusedError
from rulka.game.protocol import COUNTDOWN_MS
from rulka.game.snapshot import Seal, Snapshot
from rulka.game.state import NOT_PASSED_MS
from rulka.params import SimulatorParams
from rulka.simulator.simulator import Simulator
from rulka.tracks.track import Track

NO_KEYS = Controls(accelerate=False, brake=False, left=False, right=False)
_KEY_NAMES = Controls(accelerate="up", brake="down", left="left", right="right")  # pyright: ignore[reportArgumentType]
_ACTION_OF = {controls: np.array([index]) for index, controls in enumerate(CONTROLS)}
_ONE_CAR = np.ones(1, np.bool_)


class Passed(NamedTuple):
    """What a tick led to: checkpoints passed so far and in all."""

    current: int
    target: int


class KeyEvent(NamedTuple):
    """A key that went down or up."""

    time_ms: int
    name: str
    is_down: bool


class SimulatedRace:
    """One car on one track, moved tick by tick.

    Attributes:
        simulator: the car.
        race_time_ms: milliseconds since the start, negative in the countdown; stands still after the finish.
        tick_time_ms: the same, but it goes on after the finish.
        is_finished: the finish was passed, and nobody prevented that.
        keys: what is pressed.
    """

    def __init__(self, track: Track, params: SimulatorParams) -> None:
        self.simulator = Simulator(track, 1, params, action_table(1))
        self._seal = Seal(track, self.simulator.save().shape[1])
        self.keys = NO_KEYS
        self._events: list[KeyEvent] = []
        self.simulator.step(_ACTION_OF[NO_KEYS])  # compiles now, not while a program waits
        self.restart()

    @property
    def num_checkpoints(self) -> int:
        """Checkpoints in all, the finish included."""
        return len(self.simulator.track.gate_m)

    @property
    def checkpoint_count(self) -> int:
        """Checkpoints passed; a finish that was prevented does not count."""
        prevented = bool(self.simulator.is_finished[0]) and not self.is_finished
        return int(self.simulator.gate_index[0]) - prevented

    @property
    def checkpoint_ms(self) -> NDArray[np.int32]:
        """[G] race time at each checkpoint, `NOT_PASSED_MS` where there is none yet."""
        times = self.simulator.gate_time_ms[0].astype(np.int32)
        times[self.checkpoint_count :] = NOT_PASSED_MS
        return times

    def restart(self) -> None:
        """Puts the car at the start and begins the countdown; keys stay as they are pressed."""
        self.simulator.reset(_ONE_CAR)
        self.race_time_ms = self.tick_time_ms = -COUNTDOWN_MS - TICK_MS  # the first tick is that of -2600
        self.is_finished = False
        self._events = [KeyEvent(self.race_time_ms, name, True) for name in _pressed(self.keys)]

    def tick(self) -> Passed | None:
        """Goes on by 10 ms; returns the count where a checkpoint was passed, None where none was."""
        before = int(self.simulator.gate_index[0])
        if self.tick_time_ms >= 0 and not self.is_finished:
            self.simulator.step(_ACTION_OF[_possible(self.keys)])
        self.tick_time_ms += TICK_MS
        if self.is_finished:
            return None
        self.race_time_ms = self.tick_time_ms
        count = int(self.simulator.gate_index[0])
        if count == before:
            return None
        self.is_finished = bool(self.simulator.is_finished[0])
        return Passed(count, self.num_checkpoints)

    def prevent_finish(self) -> None:
        """Takes the finish back; the clock goes on from where it stood."""
        self.is_finished = False
        self.tick_time_ms = self.race_time_ms

    def press(self, keys: Controls) -> None:
        """Holds keys from now on."""
        for name, was_down, is_down in zip(_KEY_NAMES, self.keys, keys, strict=True):
            if was_down != is_down:
                self._events.append(KeyEvent(self.race_time_ms, str(name), is_down))
        self.keys = keys

    def script(self) -> str:
        """Returns the inputs so far as a TMInterface script: a time in ms, press or rel, and a key."""
        lines = (f"{max(e.time_ms, 0)} {'press' if e.is_down else 'rel'} {e.name}\n" for e in self._events)
        return "".join(lines)

    def state(self) -> bytes:
        """Returns the simulation as a block of the game's form, from which `rewind` restores it to the bit."""
        now = Snapshot(
            saved=self.simulator.save(),
            race_time_ms=self.race_time_ms,
            tick_time_ms=self.tick_time_ms,
            is_finished=self.is_finished,
            keys=self.keys,
            checkpoint_ms=self.checkpoint_ms,
        )
        return self._seal.close(now, self.simulator.cars[0])

    def rewind(self, block: bytes | memoryview) -> None:
        """Puts the race back to a block that `state` of a race on this track returned.

        Like the game, it takes a block in which the time of a passed finish was erased; the race then goes on.

        Raises:
            StateRefusedError: if the block is garbled, or of another game or track; nothing is changed.
        """
        opened = self._seal.open(block)
        if len(opened.checkpoint_ms) != self.num_checkpoints:
            message = f"the state has {len(opened.checkpoint_ms)} checkpoint entries, the track {self.num_checkpoints}"
            raise StateRefusedError(message)
        self.simulator.restore(opened.saved)
        self.race_time_ms, self.tick_time_ms = opened.race_time_ms, opened.tick_time_ms
        self.is_finished = opened.is_finished and opened.checkpoint_ms[-1] != NOT_PASSED_MS
        self.keys = opened.keys
        self._events = [event for event in self._events if event.time_ms <= self.race_time_ms]


def _pressed(keys: Controls) -> list[str]:
    return [str(name) for name, is_down in zip(_KEY_NAMES, keys, strict=True) if is_down]


def _possible(keys: Controls) -> Controls:
    """Left and right together steer nowhere."""
    return keys._replace(left=False, right=False) if keys.left and keys.right else keys
