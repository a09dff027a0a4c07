"""The decision loop in a game, race after race: the basis of environments and captures.

For each decision, the session stops the clock in the run step and requests a frame, so that frame and state belong to
the same tick. The caller's keys are then held until the next run step. A race ends at the finish or when the caller
gives it up; the session then leaves the last echo pending, so the game stands still until the next race. The order of
messages is that of Linesight's client (github.com/Linesight-RL/linesight).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.actions import Controls
from rulka.game.client import Frame, GameClient
from rulka.game.errors import GameOrderError, GameProtocolError
from rulka.game.protocol import CheckpointCount, MessageId, OnConnect, RunStep
from rulka.game.state import GameState, car_row, next_gearbox_counter, read_state
from rulka.game.sync import Sync

CONNECT_COMMANDS = (
    "set countdown_speed 1",
    "set unfocused_fps_limit false",
    "set skip_map_load_screens true",
    "set disable_forced_camera true",
    "set autorewind false",
    "set auto_reload_plugins false",
)
"""TMInterface settings for a race; unknown ones are harmless."""
CAMERA_COMMAND = "cam 2"
RACE_TIMEOUT_MS, IDLE_TIMEOUT_MS = 600_000, 600_000_000
"""The game's timeout for an echo: in a race, where a collector may wait for a whole update, and between races.

If a program is killed in a race, the game stands still for this long, or until the next program connects."""


@dataclass(frozen=True)
class SessionSettings:
    """Settings of a session.

    Attributes:
        period_ms: length of a decision, a multiple of 10.
        width: width of the frames, in pixels.
        height: height of the frames, in pixels.
        speed: factor of the race clock while driving.
        map_name: map to open if the game is in its menus; empty leaves that to a person.
    """

    period_ms: int
    width: int
    height: int
    speed: float
    map_name: str = ""


class Decision(NamedTuple):
    """The observation before a decision, or at the end of a race.

    Attributes:
        time_ms: race time.
        state: the game's state.
        car: [NUM_CAR_FIELDS] a `CAR` row.
        pixels: [H, W, 4] the frame, overwritten by the next; None at the end of a race.
        is_finished: True if the car has passed the finish; `time_ms` is then the finish time.
        num_pressed: number of the last decision's keys that were held before the race ended.
    """

    time_ms: int
    state: GameState
    car: NDArray[np.float32]
    pixels: NDArray[np.uint8] | None
    is_finished: bool
    num_pressed: int


class GameSession:
    """Drives races in one game.

    Every method may raise the client's errors: `GameTimeoutError`, `GameClosedError` or `GameProtocolError`. After any
    of them call `recover`, then `begin`.

    Args:
        client: a newly connected client.
        settings: settings of the session.
    """

    def __init__(self, client: GameClient, settings: SessionSettings) -> None:
        self._client, self._settings = client, settings
        self._start: bytes | None = None
        self._counter = 0
        self._pending: Sync | None = None
        self._greet()

    def begin(self) -> Decision:
        """Begins a race and returns the observation at its start.

        The first call restarts the current race with a countdown; later calls rewind to its start.
        """
        self._counter = -1  # the first decision counts as 0, as in captured races
        sync = self._pending or self._next()
        if self._start is None or not _is_rewound(sync, self._start):
            sync = self._through_countdown(sync)
            self._start = sync.state()
        sync.set_timeout(RACE_TIMEOUT_MS)
        return self._look(sync, 0)

    def drive(self, controls: Sequence[Controls]) -> Decision:
        """Holds each of the given keys for one period; returns the observation after the last, or at the finish.

        Args:
            controls: at least one; the first is held from the last decision on.

        Raises:
            GameOrderError: if no race is running.
        """
        frame = self._pending
        if frame is None or frame.message_id != MessageId.FRAME:
            text = "no race is under way: begin one"
            raise GameOrderError(text)
        sync = frame
        for num_pressed, keys in enumerate(controls, start=1):
            sync.set_inputs(keys)
            if sync is frame:
                sync.set_speed(self._settings.speed)
            self._echo(sync)
            sync = self._until_step()
            if not isinstance(sync.message, RunStep):
                return self._finish(sync, num_pressed)
        return self._look(sync, len(controls))

    def give_up(self) -> None:
        """Ends the current race; the game stands still until the next one begins.

        First lets the game advance to its next message: inside a frame, the next race's first frame cannot be
        requested.
        """
        sync = self._pending
        if sync is not None and sync.message_id == MessageId.FRAME:
            sync.set_speed(self._settings.speed)
            self._echo(sync)
            sync = self._next()
        if sync is not None:
            self._hold(sync)

    def recover(self) -> None:
        """Reconnects after an error; the current race is lost, the saved start state is kept."""
        self._pending = None
        self._client.reconnect()
        self._greet()

    def close(self) -> None:
        """Releases the game: it runs on at normal speed without a program."""
        if self._pending is not None:
            self._pending.set_speed(1.0)
            self._pending.shut_down()
            self._pending = None
        self._client.close()

    def _greet(self) -> None:
        sync = self._client.receive()
        if not isinstance(sync.message, OnConnect):
            expected = "message 5 on connecting"
            raise GameProtocolError(expected, f"message {sync.message_id.value}")
        for command in CONNECT_COMMANDS:
            sync.execute(command)
        if self._settings.map_name and sync.is_in_menus():
            sync.execute(f"map {self._settings.map_name}")
        sync.set_timeout(RACE_TIMEOUT_MS)
        sync.set_step_period(self._settings.period_ms)
        sync.set_speed(self._settings.speed)
        sync.echo()

    def _through_countdown(self, sync: Sync) -> Sync:
        """Restarts the race; returns the open run step of the start."""
        sync.execute(CAMERA_COMMAND)
        sync.show_interface(False)
        sync.set_speed(self._settings.speed)
        sync.give_up()
        self._echo(sync)
        sync = self._next()
        while not (isinstance(sync.message, RunStep) and sync.message.time_ms == 0):
            self._echo(sync)
            sync = self._next()
        return sync

    def _look(self, sync: Sync, num_pressed: int) -> Decision:
        """Stops the clock, reads the state and fetches the matching frame."""
        sync.rewind_to_current()
        sync.set_speed(0.0)
        sync.request_frame(self._settings.width, self._settings.height)
        self._pending = None
        state = read_state(sync.echo_for_state())
        frame = self._next()
        while not isinstance(frame.message, Frame):
            if _is_finish(frame):  # of the tick whose run step came first
                return self._finish(frame, num_pressed)
            if isinstance(frame.message, RunStep) and frame.message.time_ms != state.race_time_ms:
                expected = f"the frame of {state.race_time_ms} ms, since the clock stands still"
                raise GameProtocolError(expected, f"the run step of {frame.message.time_ms} ms")
            self._echo(frame)  # a remaining message of the tick
            frame = self._next()
        car = self._car(state)
        return Decision(state.race_time_ms, state, car, frame.message.pixels, False, num_pressed)

    def _until_step(self) -> Sync:
        """Returns the next run step, or the checkpoint count of the finish."""
        while True:
            sync = self._next()
            if isinstance(sync.message, RunStep) or _is_finish(sync):
                return sync
            self._echo(sync)

    def _finish(self, sync: Sync, num_pressed: int) -> Decision:
        """Reads the finish, and prevents it in the game so that it does not show its medals."""
        state = read_state(sync.state())
        times = state.checkpoints["time_ms"]
        time_ms = int(times[-1]) if len(times) and times[-1] > 0 else state.race_time_ms
        sync.prevent_finish()
        self._hold(sync)
        return Decision(time_ms, state, self._car(state), None, True, num_pressed)

    def _hold(self, sync: Sync) -> None:
        """Leaves a sync open, with the idle timeout."""
        sync.set_timeout(IDLE_TIMEOUT_MS)
        sync.cancel_frame()
        sync.flush()

    def _car(self, state: GameState) -> NDArray[np.float32]:
        """Returns the `CAR` row [NUM_CAR_FIELDS] of the next decision's state."""
        self._counter = next_gearbox_counter(self._counter, state)
        return car_row(state, self._counter)

    def _next(self) -> Sync:
        self._pending = self._client.receive()
        return self._pending

    def _echo(self, sync: Sync) -> None:
        self._pending = None
        sync.echo()


def _is_finish(sync: Sync) -> bool:
    message = sync.message
    return isinstance(message, CheckpointCount) and message.current == message.target


def _is_rewound(sync: Sync, start: bytes) -> bool:
    """Rewinds to the start; returns False if the game rejects it because it was restarted on another map."""
    sync.rewind(start)
    return read_state(sync.state()).race_time_ms == read_state(start).race_time_ms
