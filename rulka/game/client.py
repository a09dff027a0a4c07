"""A client of the game's socket plugin: waits for syncs and returns each as an object that takes commands.

This enforces the protocol by construction. Only an open sync takes commands and requests, since the game reads nothing
otherwise. The sync sends them before its echo and takes none after it. The client waits for the next sync only after
the echo of the last one.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rulka.game import protocol
from rulka.game.connection import Connection, connect
from rulka.game.errors import GameOrderError, GameProtocolError
from rulka.game.protocol import CheckpointCount, LapCount, MessageId, OnConnect, RunStep
from rulka.game.sync import Sync


class Frame(NamedTuple):
    """A frame of the game.

    Attributes:
        pixels: [H, W, 4] uint8 blue, green, red and an unused byte; a view that the next frame overwrites.
    """

    pixels: NDArray[np.uint8]


Message = RunStep | CheckpointCount | LapCount | Frame | OnConnect


class GameClient:
    """A connection to one game; use it as a context manager, or call `close`.

    Args:
        host: host of the game.
        port: port on which its plugin listens.
        timeout_s: timeout of every wait.
        patience_s: how long to retry the connection; 0 tries once.

    Attributes:
        counts: messages received so far, by id; a reconnect does not reset them.

    Raises:
        GameClosedError: if no game listens.
        GameTimeoutError: if the machine does not answer.
    """

    def __init__(self, host: str, port: int, timeout_s: float, patience_s: float = 0.0) -> None:
        self._address = host, port
        self._timeout_s, self._patience_s = timeout_s, patience_s
        self.counts: dict[MessageId, int] = dict.fromkeys(sorted(protocol.SYNC_IDS), 0)
        self._head = memoryview(bytearray(protocol.INT.size))
        self._pixels = np.empty((0, 0, protocol.NUM_CHANNELS), np.uint8)
        self._sync: Sync | None = None
        self._connection: Connection = self._open()

    def _open(self) -> Connection:
        return connect(*self._address, self._timeout_s, self._patience_s)

    @property
    def sync(self) -> Sync | None:
        """The open sync, not yet echoed, or None; an echo may stay pending as long as the game waits."""
        return self._sync if self._sync is not None and self._sync.is_open else None

    def set_timeout(self, timeout_s: float) -> None:
        """Changes the timeout, also for later connections."""
        self._timeout_s = timeout_s
        self._connection.set_timeout(timeout_s)

    def receive(self) -> Sync:
        """Waits for the next sync.

        Raises:
            GameOrderError: if the last sync has not been echoed: the game would never send another.
            GameTimeoutError: if none comes in time.
            GameClosedError: if the game closes the connection.
            GameProtocolError: if something else comes.
        """
        if self.sync is not None:
            raise GameOrderError("the last sync has not been echoed, so that no other can come")
        self._connection.fill(self._head, "the next message")
        message_id = protocol.sync_id(self._head)
        self.counts[message_id] += 1
        message = self._frame() if message_id == MessageId.FRAME else self._numbered(message_id)
        self._sync = Sync(self._connection, message_id, message)
        return self._sync

    def is_quiet(self, wait_s: float) -> bool:
        """Returns True if the game sends nothing for `wait_s`; consumes nothing.

        Raises:
            GameClosedError: if the game closes the connection.
        """
        return self._connection.is_quiet(wait_s)

    def reconnect(self) -> None:
        """Closes the connection and opens a new one; the game forgets what was pending.

        Raises:
            GameClosedError: if no game listens any more.
            GameTimeoutError: if the machine does not answer.
        """
        self.close()
        self._connection = self._open()

    def close(self) -> None:
        """Closes the connection without telling the game; idempotent."""
        self._connection.close()
        if self._sync is not None:
            self._sync.is_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _numbered(self, message_id: MessageId) -> Message:
        kind = protocol.SYNCS[message_id]
        numbers = self._connection.take(protocol.INT.size * len(kind._fields), f"message {message_id}")
        return kind(*(number for (number,) in protocol.INT.iter_unpack(numbers)))

    def _frame(self) -> Frame:
        if self._connection.frame_size is None:
            expected = "no frame, since none was requested"
            raise GameProtocolError(expected, f"message {MessageId.FRAME.value}")
        width, height = self._connection.frame_size
        self._connection.frame_size = None
        if self._pixels.shape[:2] != (height, width):
            self._pixels = np.empty((height, width, protocol.NUM_CHANNELS), np.uint8)
        self._connection.fill(self._pixels.data.cast("B"), f"a frame of {width} x {height}")
        return Frame(self._pixels)
