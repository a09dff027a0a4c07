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
from typing import NamedTuple

from rulka.game.errors import GameProtocolError
from rulka.game.state import MAX_BYTES

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


INT = struct.Struct("<i")
"""An id, a length, or an answer of 0 or 1."""
SYNCS = {
    MessageId.RUN_STEP: RunStep,
    MessageId.CHECKPOINT_COUNT: CheckpointCount,
    MessageId.LAP_COUNT: LapCount,
    MessageId.ON_CONNECT: OnConnect,
}
"""Messages that stop the game until they are echoed, all of 32-bit integers. A frame is one, too: of pixels alone."""
SYNC_IDS = frozenset((*SYNCS, MessageId.FRAME))
NUMBERED_IDS = SYNC_IDS - {MessageId.FRAME, MessageId.ON_CONNECT}
"""Syncs that a race causes, wherever it is moved."""

_COMMAND_FORMATS = {
    MessageId.SET_SPEED: "f",  # factor, 0 stops the clock
    MessageId.REWIND_TO_STATE: "i",  # length, then the state
    MessageId.SET_INPUTS: "4B",  # left, right, accelerate, brake
    MessageId.EXECUTE_COMMAND: "i",  # length in bytes, then the text
    MessageId.SET_TIMEOUT: "I",  # ms
    MessageId.REQUEST_FRAME: "ii",  # width, height
    MessageId.SET_STEP_PERIOD: "i",  # ms
    MessageId.SHOW_INTERFACE: "i",  # above 0 shows it
}
COMMAND_PAYLOADS = {number: struct.Struct("<" + _COMMAND_FORMATS.get(number, "")) for number in MessageId}
"""Fixed part of what follows the id of a message to the game; the id of a sync is its echo."""

MOST_BYTES: dict[int, int] = {MessageId.REWIND_TO_STATE: 2 * MAX_BYTES, MessageId.EXECUTE_COMMAND: 65536}
"""Longest contents that are believed, bytes, of the messages that end in bytes of their own length."""

VERSION = 1
"""Version of what Rulka adds to the protocol."""
VERSION_COMMAND = "rulka_version"
"""Console command of the handshake. A game that speaks Rulka's version puts one line in front of its next answer to
`GET_INPUTS`, a comment in the language of input scripts; any other game takes it for an unknown command, and answers
with the plain script. So both sides learn it from messages that exist anyway, and nobody else is disturbed."""
VERSION_MARK = "# rulka link "
VERSION_LINE = f"{VERSION_MARK}{VERSION}\n"
"""The comment that stands before the inputs after `VERSION_COMMAND`."""


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
    return struct.pack(f"<{1 + len(values)}i", message_id, *values)


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


def read_version(inputs: str) -> int | None:
    """Returns the version that an answer to `GET_INPUTS` begins with, None without one."""
    found = re.match(rf"{VERSION_MARK}(\d+)\n", inputs, re.ASCII)
    return int(found[1]) if found else None
