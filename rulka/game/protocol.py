"""The protocol of the socket plugin for TMInterface 2: message ids, their payloads, packing and unpacking.

The game listens, a program connects. Everything is little-endian and packed: an int32 id, then a payload whose size
follows from the id. Messages 1 to 5 come from the game ("syncs"); each stops the game until the program has sent the
same id back as a bare int32. The game reads the socket only while it is stopped like that. All other messages go from
the program to the game; four of them are answered. Source: Linesight's plugin and
client (github.com/Linesight-RL/linesight).

One thing is added, in a way that a plain plugin or client never notices: the version handshake, see `VERSION_COMMAND`.
"""

from __future__ import annotations

import re
import struct
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from rulka.game.errors import GameProtocolError

LOOPBACK = "127.0.0.1"
BASE_PORT = 8478
"""Port of the first game instance; the next one listens on the next port."""
DEFAULT_TIMEOUT_MS = 2000
"""The game drops a program that holds it in one sync for longer; it can be changed by message 15."""
DEFAULT_PERIOD_MS = 10
"""Run steps are sent when the race time is a multiple of this; it can be changed by message 19."""
COUNTDOWN_MS = 2600
"""A race begins at minus this time."""
NUM_CHANNELS = 4
"""Bytes of a pixel: blue, green, red, unused."""
MAX_FRAME_SIDE = 4096
"""Frames are at most this wide and high, so that no request asks for an absurd amount of memory."""
MAX_TEXT_BYTES = 16 * 2**20
"""Longest text that is believed: the inputs of a race of many hours."""


class MessageId(IntEnum):
    """What a message is."""

    RUN_STEP = 1
    CHECKPOINT_COUNT = 2
    LAP_COUNT = 3
    FRAME = 4
    ON_CONNECT = 5
    SET_SPEED = 6
    REWIND_TO_STATE = 7
    REWIND_TO_CURRENT = 8
    GET_STATE = 9
    SET_INPUTS = 10
    GIVE_UP = 11
    PREVENT_FINISH = 12
    SHUTDOWN = 13
    EXECUTE_COMMAND = 14
    SET_TIMEOUT = 15
    IS_FINISHED = 16
    REQUEST_FRAME = 17
    RESET_CAMERA = 18
    SET_STEP_PERIOD = 19
    CANCEL_FRAME = 20
    SHOW_INTERFACE = 21
    IS_IN_MENUS = 22
    GET_INPUTS = 23


SYNC_IDS: frozenset[MessageId] = frozenset(
    (MessageId.RUN_STEP, MessageId.CHECKPOINT_COUNT, MessageId.LAP_COUNT, MessageId.FRAME, MessageId.ON_CONNECT)
)
"""Messages that stop the game until they are echoed."""

INT = struct.Struct("<i")
"""An id, a length, or an answer of 0 or 1."""

_NOTHING = struct.Struct("<")
SYNC_PAYLOADS = MappingProxyType(
    {
        MessageId.RUN_STEP: INT,  # race time, ms
        MessageId.CHECKPOINT_COUNT: struct.Struct("<ii"),  # passed, in all
        MessageId.LAP_COUNT: struct.Struct("<ii"),  # driven, in all
        MessageId.FRAME: _NOTHING,  # then the pixels, as many as were asked for
        MessageId.ON_CONNECT: _NOTHING,
    }
)
"""Fixed part of what follows the id of a sync."""

COMMAND_PAYLOADS = MappingProxyType(
    {
        **dict.fromkeys(SYNC_IDS, _NOTHING),  # an echo
        MessageId.SET_SPEED: struct.Struct("<f"),  # factor, 0 stops the clock
        MessageId.REWIND_TO_STATE: INT,  # length, then the state
        MessageId.REWIND_TO_CURRENT: _NOTHING,
        MessageId.GET_STATE: _NOTHING,
        MessageId.SET_INPUTS: struct.Struct("<4B"),  # left, right, accelerate, brake
        MessageId.GIVE_UP: _NOTHING,
        MessageId.PREVENT_FINISH: _NOTHING,
        MessageId.SHUTDOWN: _NOTHING,
        MessageId.EXECUTE_COMMAND: INT,  # length in bytes, then the text
        MessageId.SET_TIMEOUT: struct.Struct("<I"),  # ms
        MessageId.IS_FINISHED: _NOTHING,
        MessageId.REQUEST_FRAME: struct.Struct("<ii"),  # width, height
        MessageId.RESET_CAMERA: _NOTHING,
        MessageId.SET_STEP_PERIOD: INT,  # ms
        MessageId.CANCEL_FRAME: _NOTHING,
        MessageId.SHOW_INTERFACE: INT,  # above 0 shows it
        MessageId.IS_IN_MENUS: _NOTHING,
        MessageId.GET_INPUTS: _NOTHING,
    }
)
"""Fixed part of what follows the id of a message to the game."""

VERSION = 1
"""Version of what Rulka adds to the protocol."""
VERSION_COMMAND = "rulka_version"
"""Console command of the handshake. A game that speaks Rulka's version puts one line in front of its next answer to
`GET_INPUTS`, a comment in the language of input scripts; any other game takes it for an unknown command, and answers
with the plain script. So both sides learn it from messages that exist anyway, and nobody else is disturbed."""
VERSION_MARK = "# rulka link "


class RunStep(NamedTuple):
    """A tick of the race that is a multiple of the period."""

    time_ms: int
    """Race time, negative in the countdown."""


class CheckpointCount(NamedTuple):
    """A checkpoint was passed; `current` equal to `target` is the finish."""

    current: int
    target: int


class LapCount(NamedTuple):
    """A lap was driven."""

    current: int
    target: int


class OnConnect(NamedTuple):
    """The first message of a connection."""


def pack(message_id: MessageId, *values: float) -> bytes:
    """Returns the bytes of a message to the game that holds nothing but numbers.

    Raises:
        struct.error: if the values are not those of the message, or out of range.
    """
    return INT.pack(message_id) + COMMAND_PAYLOADS[message_id].pack(*values)


def pack_sized(message_id: MessageId, content: bytes) -> bytes:
    """Returns the bytes of a message to the game that ends in bytes of its own length."""
    return pack(message_id, len(content)) + content


def pack_sync(message_id: MessageId, *values: int) -> bytes:
    """Returns the bytes of a sync; of a frame, those before the pixels."""
    return INT.pack(message_id) + SYNC_PAYLOADS[message_id].pack(*values)


def sync_id(data: bytes | bytearray | memoryview) -> MessageId:
    """Reads the id with which the game begins.

    Raises:
        GameProtocolError: if it is no id that the game may send.
    """
    (number,) = INT.unpack(data)
    if number not in SYNC_IDS:
        expected = f"one of the ids {sorted(int(known) for known in SYNC_IDS)}"
        raise GameProtocolError(expected, f"{number} (bytes {bytes(data).hex(' ')})")
    return MessageId(number)


def version_line() -> str:
    """Returns the comment that stands before the inputs after `VERSION_COMMAND`."""
    return f"{VERSION_MARK}{VERSION}\n"


def read_version(inputs: str) -> int | None:
    """Returns the version that an answer to `GET_INPUTS` begins with, None without one."""
    found = re.match(rf"{VERSION_MARK}(\d+)\n", inputs, re.ASCII)
    return int(found[1]) if found else None
