"""Message handlers of a simulated game, without sockets.

Race messages are ignored in the menus, as in the game.
"""

from __future__ import annotations

import logging
import math

from rulka.contracts.actions import Controls
from rulka.game import protocol
from rulka.game.errors import StateRefusedError
from rulka.game.protocol import INT, MessageId
from rulka.game.race import SimulatedRace

logger = logging.getLogger(__name__)

OPEN_MAP = "map"
"""Console command that opens a map; here it restarts the only one. Other commands are accepted without effect."""
_IN_RACE_ONLY = frozenset(
    (
        MessageId.REWIND_TO_STATE,
        MessageId.REWIND_TO_CURRENT,
        MessageId.SET_INPUTS,
        MessageId.GIVE_UP,
        MessageId.PREVENT_FINISH,
    )
)


class SimulatedGame:
    """A race, and the settings that a program may change.

    Args:
        race: the race.
        speed: factor of the race clock.
        is_in_menus: True if no map is open.

    Attributes:
        timeout_ms: timeout for an echo.
        period_ms: period of run steps.
        frame_size: width and height of the requested frame, None without a request.
    """

    def __init__(self, race: SimulatedRace, *, speed: float = 1.0, is_in_menus: bool = False) -> None:
        self.race, self.speed, self.is_in_menus = race, speed, is_in_menus
        self.timeout_ms, self.period_ms = protocol.DEFAULT_TIMEOUT_MS, protocol.DEFAULT_PERIOD_MS
        self.frame_size: tuple[int, int] | None = None
        self._says_version = False
        self._handlers = {
            MessageId.SET_SPEED: self._set_speed,
            MessageId.REWIND_TO_STATE: self._rewind,
            MessageId.SET_INPUTS: self._set_inputs,
            MessageId.GIVE_UP: race.restart,
            MessageId.PREVENT_FINISH: race.prevent_finish,
            MessageId.EXECUTE_COMMAND: self._execute,
            MessageId.SET_TIMEOUT: self._set_timeout,
            MessageId.REQUEST_FRAME: self._request_frame,
            MessageId.SET_STEP_PERIOD: self._set_period,
            MessageId.CANCEL_FRAME: self.forget_frame,
            MessageId.GET_STATE: self._state,
            MessageId.IS_FINISHED: lambda: INT.pack(race.is_finished or race.tick_time_ms > race.race_time_ms),
            MessageId.IS_IN_MENUS: lambda: INT.pack(self.is_in_menus),
            MessageId.GET_INPUTS: self._inputs,
        }

    @property
    def is_running(self) -> bool:
        """True if the race clock runs."""
        return self.speed > 0 and not self.is_in_menus

    def is_step_due(self) -> bool:
        """Returns True if this tick has a run step."""
        race = self.race
        return race.race_time_ms % self.period_ms == 0 or race.tick_time_ms > race.race_time_ms

    def disconnect(self) -> None:
        """Resets the state of a program's connection; speed, period, keys and race stay unchanged."""
        self.forget_frame()
        self.timeout_ms, self._says_version = protocol.DEFAULT_TIMEOUT_MS, False

    def forget_frame(self) -> None:
        """Forgets the frame request."""
        self.frame_size = None

    def handle(self, number: int, values: tuple) -> bytes:
        """Handles a message.

        Args:
            number: its id; ids without a handler are ignored.
            values: the numbers of its payload, or its length-prefixed bytes.

        Returns:
            The answer, empty if the message has none.
        """
        handler = self._handlers.get(number)  # pyright: ignore[reportArgumentType, reportCallIssue]
        if handler is None or (self.is_in_menus and number in _IN_RACE_ONLY):
            return b""
        return handler(*values) or b""

    def _set_speed(self, factor: float) -> None:
        if math.isfinite(factor) and factor >= 0:
            self.speed = factor
        else:
            logger.warning("a speed of %s is ignored", factor)

    def _rewind(self, block: bytes) -> None:
        try:
            self.race.rewind(block)
        except StateRefusedError as error:
            logger.warning("a rewind is ignored: %s", error)

    def _set_inputs(self, left: int, right: int, accelerate: int, brake: int) -> None:
        self.race.keys = Controls(accelerate > 0, brake > 0, left > 0, right > 0)

    def _execute(self, command: bytes) -> None:
        name, _, _ = command.decode(errors="replace").strip().partition(" ")
        if name == protocol.VERSION_COMMAND:
            self._says_version = True
        elif name == OPEN_MAP:
            self.is_in_menus = False
            self.race.restart()
        else:
            logger.debug("console command without effect: %r", command)

    def _set_timeout(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms

    def _request_frame(self, width: int, height: int) -> None:
        if 0 < width <= protocol.MAX_FRAME_SIDE and 0 < height <= protocol.MAX_FRAME_SIDE:
            self.frame_size = width, height
        else:
            logger.warning("a frame of %d x %d is ignored", width, height)

    def _set_period(self, period_ms: int) -> None:
        if period_ms > 0:
            self.period_ms = period_ms
        else:
            logger.warning("a period of %d ms is ignored", period_ms)

    def _state(self) -> bytes:
        block = b"" if self.is_in_menus else self.race.state()
        return INT.pack(len(block)) + block

    def _inputs(self) -> bytes:
        """Returns the answer to the handshake, with an empty input script after it."""
        text = protocol.VERSION_LINE.encode() if self._says_version else b""
        self._says_version = False
        return INT.pack(len(text)) + text
