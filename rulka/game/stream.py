"""The server's end of a connection: bytes come in when asked for, and are cut into messages."""

from __future__ import annotations

import logging
import socket
from typing import NamedTuple

from rulka.game import protocol, state
from rulka.game.protocol import MessageId

logger = logging.getLogger(__name__)

RECEIVE_BYTES = 65536
MAX_COMMAND_BYTES = 65536
"""Longest console command that is believed."""
SEND_TIMEOUT_S = 2.0
_MAX_CONTENT = {MessageId.REWIND_TO_STATE: 2 * state.MAX_BYTES, MessageId.EXECUTE_COMMAND: MAX_COMMAND_BYTES}


class Lost(Exception):  # noqa: N818
    """The program is gone, or what it sends can no longer be followed; the text says why."""


class Message(NamedTuple):
    """A message of a program.

    Attributes:
        number: its id, perhaps an unknown one.
        values: the numbers of its payload, or the bytes of a sized one.
    """

    number: int
    values: tuple


class Stream:
    """A connection to a program."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._wait_s = 0.0
        self._unread = bytearray()
        self._chunk = memoryview(bytearray(RECEIVE_BYTES))

    def send(self, message: bytes | memoryview) -> None:
        """Sends all of a message.

        Raises:
            Lost: if the program is gone or does not take it in.
        """
        self._set_wait(SEND_TIMEOUT_S)
        try:
            self._socket.sendall(message)
        except OSError as error:
            reason = f"it cannot be sent to ({error})"
            raise Lost(reason) from error

    def receive(self, wait_s: float) -> bool:
        """Takes in what has come; False where nothing came within the wait.

        Raises:
            Lost: if the program closed the connection.
        """
        self._set_wait(wait_s)
        try:
            size = self._socket.recv_into(self._chunk)
        except TimeoutError:
            return False
        except OSError as error:
            reason = f"it is gone ({error})"
            raise Lost(reason) from error
        if size == 0:
            reason = "it closed the connection"
            raise Lost(reason)
        self._unread += self._chunk[:size]
        return True

    def next_message(self) -> Message | None:
        """Returns the next message that has come whole; None where more bytes are needed.

        An unknown id is a message of four bytes.

        Raises:
            Lost: if a length is out of range, so that nothing after it can be trusted.
        """
        size = protocol.INT.size
        if len(self._unread) < size:
            return None
        (number,) = protocol.INT.unpack_from(self._unread)
        try:
            message_id = MessageId(number)
        except ValueError:
            logger.warning("message %d is unknown; its four bytes are skipped", number)
            del self._unread[:size]
            return Message(number, ())
        payload = protocol.COMMAND_PAYLOADS[message_id]
        end = size + payload.size
        if len(self._unread) < end:
            return None
        values = payload.unpack_from(self._unread, size)
        if message_id in protocol.SIZED_COMMANDS:
            return self._sized(message_id, end, int(values[0]))
        del self._unread[:end]
        return Message(number, values)

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def _sized(self, message_id: MessageId, start: int, num_bytes: int) -> Message | None:
        if not 0 <= num_bytes <= _MAX_CONTENT[message_id]:
            reason = f"message {message_id.value} claims {num_bytes} bytes"
            raise Lost(reason)
        if len(self._unread) < start + num_bytes:
            return None
        content = bytes(self._unread[start : start + num_bytes])
        del self._unread[: start + num_bytes]
        return Message(message_id.value, (content,))

    def _set_wait(self, wait_s: float) -> None:
        if wait_s != self._wait_s:
            self._socket.settimeout(wait_s)
            self._wait_s = wait_s
