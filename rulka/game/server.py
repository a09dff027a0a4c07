"""A simulated game server: speaks the plugin's protocol and runs a race in the simulator.

It behaves like the plugin in the game: it sends a sync, then reads and handles messages until the echo, and reads
nothing at any other time. It draws frames between ticks, when no sync is open. It serves one program at a time; a new
connection replaces the old one, between syncs or when the old one has been silent in a sync for a moment. It differs
from the game in two ways: it drops a program that closes its connection at once, not after the timeout; and without a
program the race stands still. Options cover what is unknown about the game: the order of the messages of a tick, and
whether a rewind calls back inside itself.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time

from rulka.contracts.actions import TICK_MS
from rulka.game.connection import Connection
from rulka.game.errors import GameError
from rulka.game.frames import GameFrames
from rulka.game.protocol import COMMAND_PAYLOADS, INT, LOOPBACK, MOST_BYTES, CheckpointCount, MessageId, pack_sync
from rulka.game.simulated import SimulatedGame

logger = logging.getLogger(__name__)

UNPACED_SPEED = 50.0
"""From this factor on, the race runs unpaced, as fast as it can."""
SLICE_S = 0.05
"""Longest wait for a new program, so that `stop` takes effect, and shortest timeout for a message."""
LONGEST_S = 1_000_000.0
"""Cap on socket timeouts, which the protocol's numbers may exceed."""
BEHIND_S = 0.02
"""Largest lag behind its clock that a race catches up."""
SEND_TIMEOUT_S = 2.0
SILENCE_S = 0.1
"""After this much silence in a sync, another program may replace the one that holds the game."""


class GameServer:
    """Serves one game on one port of this machine.

    Args:
        game: the game.
        frames: source of its frames.
        port: port to listen on; 0 takes a free one.
        is_step_first: True if a tick sends its run step before its checkpoint, not after.
        calls_back: True if a rewind that changes the checkpoint count sends it at once, before any later answer.

    Attributes:
        port: port on which it listens.

    Raises:
        GameError: if the port is not available.
    """

    def __init__(
        self,
        game: SimulatedGame,
        frames: GameFrames,
        port: int,
        *,
        is_step_first: bool = False,
        calls_back: bool = False,
    ) -> None:
        self._game, self._frames = game, frames
        self._is_step_first, self._calls_back = is_step_first, calls_back
        self._last_tick_s = 0.0
        self._program: Connection | None = None
        self._stopped = threading.Event()
        try:
            self._listener = socket.create_server((LOOPBACK, port))
        except OSError as error:
            message = f"port {port} of this machine cannot be listened on: {error.strerror or error}"
            raise GameError(message, hint="another server may run there: choose another --port") from error
        self.port: int = self._listener.getsockname()[1]

    def serve(self) -> None:
        """Serves until `stop`, then closes all sockets."""
        try:
            while not self._stopped.is_set():
                try:
                    self._go_on()
                except GameError as lost:
                    self._drop(str(lost))
        finally:
            self._drop("the server stops")
            self._listener.close()

    def stop(self) -> None:
        """Makes `serve` return soon; may be called from another thread or a signal handler."""
        self._stopped.set()
        if self._program is not None:
            self._program.interrupt()

    # The game's main loop ------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Runs one iteration: accepts a program, sends a requested frame, and runs a tick if one is due."""
        self._accept(self._idle_s())
        if self._program is None:
            return
        # The frame comes first, so that it shows the tick in which it was requested.
        if self._game.frame_size is not None:
            self._send_frame(*self._game.frame_size)
        if self._game.is_running and self._until_tick_s() <= 0:
            self._tick()

    def _idle_s(self) -> float:
        """Returns how long to wait for new programs before the next work is due."""
        if self._program is not None and self._game.frame_size is not None:
            return 0.0
        if self._program is None or not self._game.is_running:
            return SLICE_S
        return min(max(self._until_tick_s(), 0.0), SLICE_S)

    def _tick_s(self) -> float:
        speed = self._game.speed
        return TICK_MS / 1000.0 / speed if speed < UNPACED_SPEED else 0.0

    def _until_tick_s(self) -> float:
        return self._last_tick_s + self._tick_s() - time.monotonic()

    def _tick(self) -> None:
        game, race = self._game, self._game.race
        self._last_tick_s = max(self._last_tick_s + self._tick_s(), time.monotonic() - BEHIND_S)
        passed = race.tick()
        tick_ms = race.tick_time_ms
        parts = [lambda: self._send_step(game.is_step_due()), lambda: self._send_counts(passed)]
        for part in parts if self._is_step_first else reversed(parts):
            # After a rewind in the first part, skip the second: a program takes the rewind itself as that tick's step.
            if race.tick_time_ms == tick_ms:
                part()

    def _send_step(self, is_due: bool) -> None:
        if is_due:
            self._sync(MessageId.RUN_STEP, pack_sync(MessageId.RUN_STEP, self._game.race.race_time_ms))

    def _send_counts(self, passed: CheckpointCount | None) -> None:
        if passed is not None:
            self._sync(MessageId.CHECKPOINT_COUNT, pack_sync(MessageId.CHECKPOINT_COUNT, *passed))
            if self._game.race.is_finished:
                self._sync(MessageId.LAP_COUNT, pack_sync(MessageId.LAP_COUNT, 1, 1))

    def _send_frame(self, width: int, height: int) -> None:
        """Draws and sends a frame; forgets the request only after the echo, along with any made meanwhile."""
        self._sync(MessageId.FRAME, self._frames.draw(self._game.race.simulator, width, height))
        self._game.forget_frame()

    def _accept(self, wait_s: float) -> None:
        self._listener.settimeout(wait_s)
        try:
            connection, _ = self._listener.accept()
        except (TimeoutError, BlockingIOError):
            return
        self._drop("another program connected")
        self._program = Connection(connection, "the program")
        logger.info("a program connected")
        self._last_tick_s = time.monotonic()
        self._sync(MessageId.ON_CONNECT, pack_sync(MessageId.ON_CONNECT))

    def _drop(self, reason: str) -> None:
        if self._program is None:
            return
        logger.info("the program is dropped: %s", reason)
        self._program.close()
        self._program = None
        self._game.disconnect()

    # While a sync is open ------------------------------------------------------------------------------------------

    def _sync(self, message_id: MessageId, message: bytes | memoryview) -> None:
        """Sends a sync and handles messages until its echo; does nothing without a program.

        The timeout counts from the start of the sync, and is checked only while nothing comes.
        """
        program, game = self._program, self._game
        if program is None:
            return
        started_s = time.monotonic()
        _send(program, message)
        number = None
        while number != message_id:
            number, values = _receive(program, self._wait_left_s(program, started_s))
            if number == MessageId.SHUTDOWN:
                reason = "it said so"
                raise GameError(reason)
            count = game.race.checkpoint_count
            answer = game.handle(number, values)
            if answer:
                _send(program, answer)
            if self._calls_back and number == MessageId.REWIND_TO_STATE and game.race.checkpoint_count != count:
                self._send_counts(CheckpointCount(game.race.checkpoint_count, game.race.num_checkpoints))
        # The game stood still, so the race clock has nothing to catch up.
        self._last_tick_s += time.monotonic() - started_s

    def _wait_left_s(self, program: Connection, started_s: float) -> float:
        """Waits until the program sends something or its time is up; returns the time left.

        Raises:
            GameError: if the program is silent while another one connects.
            GameClosedError: if the program is gone.
        """
        while True:
            left_s = self._game.timeout_ms / 1000.0 - (time.monotonic() - started_s)
            if left_s <= 0 or not program.is_quiet(min(SILENCE_S, left_s)):
                return left_s
            if select.select([self._listener], (), (), 0.0)[0]:
                reason = "another program connected while it was silent"
                raise GameError(reason)


def _send(program: Connection, message: bytes | memoryview) -> None:
    program.set_timeout(SEND_TIMEOUT_S)
    program.send(message)


def _receive(program: Connection, wait_s: float) -> tuple[int, tuple]:
    """Receives the next message: its id, and the numbers of its payload or its length-prefixed bytes.

    An unknown id counts as a message of four bytes.
    """
    program.set_timeout(min(max(wait_s, SLICE_S), LONGEST_S))
    (number,) = INT.unpack(program.take(INT.size, "a message"))
    payload = COMMAND_PAYLOADS.get(number)
    if payload is None:
        logger.warning("message %d is unknown; its four bytes are skipped", number)
    if not payload or not payload.size:
        return number, ()
    values = payload.unpack(program.take(payload.size, f"message {number}"))
    if number not in MOST_BYTES:
        return number, values
    if not 0 <= values[0] <= MOST_BYTES[number]:
        reason = f"message {number} claims {values[0]} bytes"
        raise GameError(reason)
    return number, (bytes(program.take(values[0], f"message {number}")),)
