"""The protocol of the socket plugin for TMInterface 2: message ids, payloads, packing and unpacking.

The game listens, a program connects. Everything is little-endian and packed: an int32 id, then a payload whose size
follows from the id. Messages 1 to 5 come from the game ("syncs"). Each stops the game until the program echoes its id
as a bare int32, and the game reads the socket only during such a stop. All other messages go from the program to the
game; four of them are answered. Source: Linesight's plugin and client (github.com/Linesight-RL/linesight).

Rulka adds only the version handshake, which is invisible to a plain plugin or client; see `VERSION_COMMAND`.
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
"""Port of the first game instance; further ones use consecutive ports."""
DEFAULT_TIMEOUT_MS = 2000
"""The game drops a program that holds one sync for longer; message 15 changes it."""
DEFAULT_PERIOD_MS = 10
"""The game sends run steps at race times that are multiples of this; message 19 changes it."""
COUNTDOWN_MS = 2600
"""Length of the countdown: a race begins at minus this time."""
NUM_CHANNELS = 4
"""Bytes of a pixel: blue, green, red, unused."""
MAX_FRAME_SIDE = 4096
"""Largest width and height of a frame, to bound the memory of a request."""
MAX_TEXT_BYTES = 16 * 2**20
"""Longest accepted text: the inputs of a race of many hours."""


class MessageId(IntEnum):
    """Message ids."""

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
    """A tick of the race at a multiple of the period."""

    time_ms: int
    """Race time, negative in the countdown."""


class CheckpointCount(NamedTuple):
    """The car passed a checkpoint; at the finish, `current` equals `target`."""

    current: int
    target: int


class LapCount(NamedTuple):
    """The car completed a lap."""

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
"""Syncs with payloads of 32-bit integers. A frame is a sync too, with a payload of pixels."""
SYNC_IDS = frozenset((*SYNCS, MessageId.FRAME))
NUMBERED_IDS = SYNC_IDS - {MessageId.FRAME, MessageId.ON_CONNECT}
"""Syncs caused by the race itself, also during a rewind."""

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
"""Fixed-size payload of each message to the game. A sync's id sent to the game is its echo."""

MOST_BYTES: dict[int, int] = {MessageId.REWIND_TO_STATE: 2 * MAX_BYTES, MessageId.EXECUTE_COMMAND: 65536}
"""Largest accepted content in bytes of the length-prefixed messages."""

VERSION = 1
"""Version of Rulka's addition to the protocol."""
VERSION_COMMAND = "rulka_version"
"""Console command of the handshake. A game with Rulka's plugin prefixes its next answer to `GET_INPUTS` with one line,
a comment in the input script language. Any other game treats it as an unknown command and answers with the plain
script. So the handshake uses only existing messages and is harmless to other games."""
VERSION_MARK = "# rulka link "
VERSION_LINE = f"{VERSION_MARK}{VERSION}\n"
"""The comment line before the inputs in the answer after `VERSION_COMMAND`."""


def pack(message_id: MessageId, *values: float) -> bytes:
    """Packs a message to the game with a payload of numbers only.

    Raises:
        struct.error: if the values do not match the message, or are out of range.
    """
    return INT.pack(message_id) + COMMAND_PAYLOADS[message_id].pack(*values)


def pack_sized(message_id: MessageId, content: bytes) -> bytes:
    """Packs a message to the game with length-prefixed content."""
    return pack(message_id, len(content)) + content


def pack_sync(message_id: MessageId, *values: int) -> bytes:
    """Packs a sync; for a frame, only the part before the pixels."""
    return struct.pack(f"<{1 + len(values)}i", message_id, *values)


def sync_id(data: bytes | bytearray | memoryview) -> MessageId:
    """Unpacks the id of a message from the game.

    Raises:
        GameProtocolError: if the game may not send this id.
    """
    (number,) = INT.unpack(data)
    if number not in SYNC_IDS:
        expected = f"one of the ids {sorted(int(known) for known in SYNC_IDS)}"
        raise GameProtocolError(expected, f"{number} (bytes {bytes(data).hex(' ')})")
    return MessageId(number)


def read_version(inputs: str) -> int | None:
    """Returns the version at the start of an answer to `GET_INPUTS`, or None."""
    found = re.match(rf"{VERSION_MARK}(\d+)\n", inputs, re.ASCII)
    return int(found[1]) if found else None
