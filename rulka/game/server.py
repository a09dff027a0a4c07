"""A game without the game: a server that speaks the plugin's protocol, with a race in the simulator behind it.

It behaves like the plugin in the game: it sends a sync and then reads and handles messages until the echo, and reads
nothing at any other time. Frames are drawn between ticks, when no sync is open. One program at a time; a new connection
takes the place of the old one, but is accepted only between syncs. Two things are kinder than the game: a program that
closes its connection is dropped at once, not after the timeout; and without a program the race stands still.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time

from rulka.actions import TICK_MS
from rulka.game.errors import GameError
from rulka.game.frames import GameFrames
from rulka.game.protocol import LOOPBACK, MessageId, pack_sync
from rulka.game.simulated import SimulatedGame
from rulka.game.stream import Lost, Message, Stream

logger = logging.getLogger(__name__)

UNPACED_SPEED = 50.0
"""From this factor on the race runs as fast as it can."""
SLICE_S = 0.05
"""No wait is longer, so that `stop` is heard."""
BEHIND_S = 0.02
"""A race that lags further behind its clock does not catch up."""
ACCEPT_S = 0.01
"""New connections are looked for this often while the race runs as fast as it can."""


class GameServer:
    """Serves one game on one port of this machine.

    Args:
        game: what is raced.
        frames: what it sends of them.
        port: where to listen; 0 takes a free one.

    Attributes:
        port: where it listens.

    Raises:
        GameError: if the port cannot be had.
    """

    def __init__(self, game: SimulatedGame, frames: GameFrames, port: int) -> None:
        self._game, self._frames = game, frames
        self._last_tick_s = self._next_accept_s = 0.0
        self._stream: Stream | None = None
        self._stopped = threading.Event()
        self._listener = _listen(port)
        # Not `select`, which refuses a process that has over 1,024 files open.
        self._waiting = selectors.DefaultSelector()
        self._waiting.register(self._listener, selectors.EVENT_READ)
        self.port: int = self._listener.getsockname()[1]

    def serve(self) -> None:
        """Serves until `stop`, then closes all sockets."""
        try:
            while not self._stopped.is_set():
                try:
                    self._go_on()
                except Lost as lost:
                    self._drop(str(lost))
        finally:
            self._drop("the server stops")
            self._waiting.close()
            self._listener.close()

    def stop(self) -> None:
        """Ends `serve` soon; may be called from another thread or a signal handler."""
        self._stopped.set()

    # The game's main loop ------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Accepts, moves the race by one tick where one is due, and draws."""
        self._accept(self._idle_s())
        if self._stream is None:
            return
        # A frame comes first: the tick that it was requested in is the one that it shows.
        if self._game.frame_size is not None:
            self._send_frame(*self._game.frame_size)
        if self._game.is_running and self._until_tick_s() <= 0:
            self._tick()

    def _idle_s(self) -> float:
        """Returns how long nothing is to be done but to accept."""
        if self._stream is not None and self._game.frame_size is not None:
            return 0.0
        if self._stream is None or not self._game.is_running:
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
        if passed is not None:
            self._sync(MessageId.CHECKPOINT_COUNT, pack_sync(MessageId.CHECKPOINT_COUNT, *passed))
            if race.is_finished:
                self._sync(MessageId.LAP_COUNT, pack_sync(MessageId.LAP_COUNT, 1, 1))
        # After a rewind in there, the next step is that of the tick after: a program takes the rewind for its step.
        if race.tick_time_ms == tick_ms and game.is_step_due():
            self._sync(MessageId.RUN_STEP, pack_sync(MessageId.RUN_STEP, race.race_time_ms))

    def _send_frame(self, width: int, height: int) -> None:
        """Draws and sends; the request is forgotten only after the wait, and one made in between with it."""
        self._sync(MessageId.FRAME, self._frames.draw(self._game.race.simulator, width, height))
        self._game.forget_frame()

    def _accept(self, wait_s: float) -> None:
        now_s = time.monotonic()
        if wait_s <= 0 and now_s < self._next_accept_s:
            return
        self._next_accept_s = now_s + ACCEPT_S
        if not self._waiting.select(wait_s):
            return
        connection, _ = self._listener.accept()
        self._drop("another program connected")
        self._stream = Stream(connection)
        logger.info("a program connected")
        self._last_tick_s = now_s
        self._sync(MessageId.ON_CONNECT, pack_sync(MessageId.ON_CONNECT))

    def _drop(self, reason: str) -> None:
        if self._stream is None:
            return
        logger.info("the program is dropped: %s", reason)
        self._stream.close()
        self._stream = None
        self._game.disconnect()

    # While a sync is open ------------------------------------------------------------------------------------------

    def _sync(self, message_id: MessageId, message: bytes | memoryview) -> None:
        """Sends a sync and handles messages until its echo; without a program it does nothing."""
        stream = self._stream
        if stream is None:
            return
        started_s = time.monotonic()
        stream.send(message)
        echoed = False
        while not echoed:
            command = stream.next_message()
            if command is None:
                self._wait(stream, started_s)
            else:
                self._answer(stream, command)
                echoed = command.number == message_id
        # The game stood still, so the race clock has nothing to make up for.
        self._last_tick_s += time.monotonic() - started_s

    def _answer(self, stream: Stream, command: Message) -> None:
        if command.number == MessageId.SHUTDOWN:
            reason = "it said so"
            raise Lost(reason)
        answer = self._game.handle(*command)
        if answer:
            stream.send(answer)

    def _wait(self, stream: Stream, started_s: float) -> None:
        """Waits for more bytes; the timeout counts from the start of the sync, and only while nothing comes."""
        timeout_ms = self._game.timeout_ms
        if self._stopped.is_set():
            reason = "the server stops"
            raise Lost(reason)
        if stream.receive(SLICE_S):
            return
        if (time.monotonic() - started_s) * 1000.0 > timeout_ms:
            reason = f"no echo within {timeout_ms} ms"
            raise Lost(reason)


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # elsewhere the option would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen()
    except OSError as error:
        listener.close()
        message = f"port {port} of this machine cannot be listened on: {error.strerror or error}"
        raise GameError(message, hint="another server may run there: choose another --port") from error
    return listener
