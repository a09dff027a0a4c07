"""A sync: a message of the game, which stands still and listens until the echo.

Commands are buffered and sent in one write, with the echo or with a request that has an answer: the game handles them
in order, and one write is cheaper than ten.
"""

from __future__ import annotations

import math

from rulka.contracts.actions import Controls
from rulka.game import protocol, state
from rulka.game.connection import Connection
from rulka.game.errors import GameOrderError, GameProtocolError, StateRefusedError
from rulka.game.protocol import MessageId, pack, pack_sized


class Sync:
    """A message of the game, with methods to answer it.

    Every command and request raises `GameOrderError` after the echo, and `GameClosedError`, `GameTimeoutError` or
    `GameProtocolError` if the game is gone, silent or violates the protocol.

    Attributes:
        message_id: id of the message.
        message: its content.
        is_open: True until the echo.
    """

    def __init__(self, connection: Connection, message_id: MessageId, message: tuple) -> None:
        self._connection = connection
        self.message_id, self.message = message_id, message
        self.is_open = True
        self._gathered = bytearray()
        self._is_rewound = False

    # Commands -----------------------------------------------------------------------------------------------------

    def set_speed(self, factor: float) -> None:
        """Sets the speed of the race clock relative to real time; 0 stops it."""
        if not (math.isfinite(factor) and factor >= 0):
            raise GameOrderError(f"a speed is a number from 0, got {factor}")
        self._gather(pack(MessageId.SET_SPEED, factor))

    def rewind(self, block: bytes) -> None:
        """Restores the simulation to a state from `state`."""
        state.read_state(block)
        self._gather(pack_sized(MessageId.REWIND_TO_STATE, block))
        self._is_rewound = True

    def rewind_to_current(self) -> None:
        """Restores the simulation to its current state, which discards a partly done tick."""
        self._gather(pack(MessageId.REWIND_TO_CURRENT))
        self._is_rewound = True

    def set_inputs(self, controls: Controls) -> None:
        """Holds keys from now on."""
        keys = (controls.left, controls.right, controls.accelerate, controls.brake)
        self._gather(pack(MessageId.SET_INPUTS, *map(int, keys)))

    def give_up(self) -> None:
        """Restarts the race, with its countdown."""
        self._gather(pack(MessageId.GIVE_UP))

    def prevent_finish(self) -> None:
        """Lets the race continue past its finish."""
        self._gather(pack(MessageId.PREVENT_FINISH))

    def execute(self, command: str) -> None:
        """Runs a command on the game's console. Its length is in bytes, since player names may be non-ASCII."""
        self._gather(pack_sized(MessageId.EXECUTE_COMMAND, command.encode()))

    def set_timeout(self, timeout_ms: int) -> None:
        """Changes the game's timeout for the echo of a sync."""
        self._gather(pack(MessageId.SET_TIMEOUT, timeout_ms))

    def request_frame(self, width: int, height: int) -> None:
        """Requests a frame; it is at the earliest the next message after this sync's echo.

        Raises:
            GameOrderError: if this sync is a frame itself, since the game would forget the request, or the size is out
                of range.
        """
        if self.message_id == MessageId.FRAME:
            raise GameOrderError("a frame cannot be requested while answering a frame: the game forgets such a request")
        if not (0 < width <= protocol.MAX_FRAME_SIDE and 0 < height <= protocol.MAX_FRAME_SIDE):
            raise GameOrderError(f"a frame has 1 to {protocol.MAX_FRAME_SIDE} pixels each way, got {width} x {height}")
        self._gather(pack(MessageId.REQUEST_FRAME, width, height))
        self._connection.frame_size = width, height

    def cancel_frame(self) -> None:
        """Cancels the frame request."""
        self._gather(pack(MessageId.CANCEL_FRAME))
        self._connection.frame_size = None

    def set_step_period(self, period_ms: int) -> None:
        """Sets the period of run steps: one at every race time that is a multiple of it."""
        if period_ms <= 0:
            raise GameOrderError(f"a period is a positive number of ms, got {period_ms}")
        self._gather(pack(MessageId.SET_STEP_PERIOD, period_ms))

    def show_interface(self, is_shown: bool) -> None:
        """Shows or hides the game's race interface (clock etc.), which would be in every frame."""
        self._gather(pack(MessageId.SHOW_INTERFACE, int(is_shown)))

    def send_unknown(self, number: int) -> None:
        """Sends an unknown id, of which the game consumes four bytes; only for `game check`."""
        self._gather(protocol.INT.pack(number))

    # Requests with an immediate answer -----------------------------------------------------------------------------

    def state(self) -> bytes:
        """Fetches the simulation state, for `read_state` and `rewind`."""
        self._gather(pack(MessageId.GET_STATE))
        self._flush()
        self._is_rewound = False
        return self._read_state()

    def is_finished(self) -> bool:
        """Returns True if the race is over."""
        return self._flag(MessageId.IS_FINISHED)

    def is_in_menus(self) -> bool:
        """Returns True if no map is open."""
        return self._flag(MessageId.IS_IN_MENUS)

    def version(self) -> int | None:
        """Returns the version of Rulka's protocol addition; None from a plain game.

        Call it in a run step: outside a race, a plain plugin has no inputs to answer with.
        """
        self._settle()
        self.execute(protocol.VERSION_COMMAND)
        self._gather(pack(MessageId.GET_INPUTS))
        self._flush()
        size = self._read_int(f"the length of the answer to {MessageId.GET_INPUTS.name}")
        text = self._read_content(MessageId.GET_INPUTS, size, 0, protocol.MAX_TEXT_BYTES)
        return protocol.read_version(text.decode(errors="replace"))

    # The end -------------------------------------------------------------------------------------------------------

    def echo(self) -> None:
        """Sends the buffered commands and the echo, which lets the game go on and closes this sync."""
        self._settle()
        self._gather(pack(self.message_id))
        self._flush()
        self.is_open = False

    def echo_for_state(self) -> bytes:
        """Requests the state and echoes in one write; returns the state. Saves one round trip.

        The game answers before it handles the echo, so the answer still comes before the next sync.
        """
        self._gather(pack(MessageId.GET_STATE))
        self._is_rewound = False
        self.echo()
        return self._read_state()

    def shut_down(self) -> None:
        """Ends the connection: the game closes it and goes on without a program."""
        self._gather(pack(MessageId.SHUTDOWN))
        self._flush()
        self.is_open = False

    def flush(self) -> None:
        """Sends the buffered commands without the echo; the sync stays open."""
        self._gather(b"")
        self._flush()

    def _gather(self, message: bytes) -> None:
        if not self.is_open:
            text = f"the sync {self.message_id.name} is over: commands go into the next one"
            raise GameOrderError(text)
        self._gathered += message

    def _flush(self) -> None:
        if self._gathered:
            self._connection.send(self._gathered)
            self._gathered.clear()

    def _settle(self) -> None:
        """After a rewind, fetches a state before any other answer, see `_read_state`."""
        if self._is_rewound:
            self.state()

    def _flag(self, message_id: MessageId) -> bool:
        self._settle()
        self._gather(pack(message_id))
        self._flush()
        answer = self._read_int(f"the answer to {message_id.name}")
        if answer not in (0, 1):
            expected = f"0 or 1 as the answer to {message_id.name}"
            raise GameProtocolError(expected, str(answer))
        return bool(answer)

    def _read_int(self, what: str) -> int:
        return protocol.INT.unpack(self._connection.take(protocol.INT.size, what))[0]

    def _read_content(self, message_id: MessageId, size: int, least: int, most: int) -> bytearray:
        what = f"the answer to {message_id.name}"
        if not least <= size <= most:
            expected = f"{least} to {most} bytes as {what}"
            raise GameProtocolError(expected, f"a length of {size}")
        return self._connection.take(size, what)

    def _read_state(self) -> bytes:
        """Reads the answer to the last state request.

        If the game calls back a plain plugin inside a rewind, the plugin sends a nested sync. Its id arrives in place
        of a state's length and is smaller than any. The plugin then handles our earlier messages inside the nested
        sync, including this sync's echo, which has no effect there and is sent again.
        """
        block, num_due, is_nested = b"", 1, False
        while num_due:
            size = self._read_int(f"the length of the answer to {MessageId.GET_STATE.name}")
            if size in protocol.NUMBERED_IDS:
                self._connection.take(
                    protocol.INT.size * len(protocol.SYNCS[MessageId(size)]._fields), f"message {size}"
                )
                self._connection.send(pack(MessageId(size)) + pack(MessageId.GET_STATE))
                num_due, is_nested = num_due + 1, True
            else:
                block = self._read_block(size)
                num_due -= 1
        if is_nested and not self.is_open:
            self._connection.send(pack(self.message_id))
        return block

    def _read_block(self, size: int) -> bytes:
        block = bytes(self._read_content(MessageId.GET_STATE, size, state.EMPTY_BYTES, state.MAX_BYTES))
        try:
            state.read_state(block)
        except StateRefusedError as error:
            expected = f"a length of {state.EMPTY_BYTES} + 4 a + 8 b that fits a and b"
            raise GameProtocolError(expected, str(error)) from error
        return block
