"""Implements `rulka game check`: drives a server of the plugin's protocol and reports deviations from it.

The check restarts the current race and drives it decision by decision, as in training. It also probes the server with a
wrong echo, an unknown message, silence and a rewind. It cannot hang: every wait and the whole check have time limits.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

import numpy as np

from rulka.contracts.actions import CONTROLS
from rulka.game.client import Frame, GameClient
from rulka.game.errors import GameClosedError, GameError, GameProtocolError, GameTimeoutError
from rulka.game.protocol import CheckpointCount, LapCount, MessageId, OnConnect, RunStep
from rulka.game.state import STATE, GameState, read_state
from rulka.game.sync import Sync
from rulka.machine.errors import UserError


@dataclass
class CheckReport:
    """Findings about one game.

    Attributes:
        address: host and port.
        deviations: protocol violations, as unique sentences in order.
        notes: other remarkable facts, likewise.
        messages: number of messages received, by id.
        num_decisions: decisions taken.
        decisions_per_s: throughput in wall time; None if all decisions were probed.
        version: Rulka's protocol version from the handshake; None from a plain game.
        state: summary of the last state; None if none was read.
    """

    address: str
    deviations: dict[str, None] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    messages: dict[int, int] = field(default_factory=dict)
    num_decisions: int = 0
    decisions_per_s: float | None = None
    version: int | None = None
    state: dict[str, Any] | None = None

    @property
    def conforms(self) -> bool:
        """True if there is no deviation."""
        return not self.deviations

    def to_json(self) -> dict[str, Any]:
        """Returns the report as plain JSON values."""
        facts = asdict(self) | {"deviations": list(self.deviations), "notes": list(self.notes)}
        return {"conforms": self.conforms, "num_frames": self.messages.get(MessageId.FRAME, 0), **facts}

    def to_text(self) -> str:
        """Returns the report as text for people."""
        rate = f", {self.decisions_per_s:,.0f} a second" if self.decisions_per_s else ""
        lines = [
            f"{self.address}: {'conforms' if self.conforms else f'{len(self.deviations)} deviations'}",
            f"handshake  {'a plain game' if self.version is None else f'Rulka, version {self.version}'}",
            f"decisions  {self.num_decisions}{rate}",
            *(f"message {number}  {count:6,} x {MessageId(number).name}" for number, count in self.messages.items()),
            *(f"state      {name}: {value}" for name, value in (self.state or {}).items()),
            *(f"note       {note}" for note in self.notes),
            *(f"DEVIATION  {deviation}" for deviation in self.deviations),
        ]
        return "\n".join(lines)


WAIT_S = 5.0
"""Timeout for one message."""
QUIET_S = 0.1
"""How long to listen to a server that should be silent."""
PERIOD_MS = 50
SIDE = 64
HELD_TIMEOUT_MS, PATIENT_TIMEOUT_MS = 300, 10_100
"""The server's echo timeout: in the test without an echo, and otherwise."""
UNKNOWN_ID = 1_000_000
NUM_PROBED = 3
"""Number of decisions with extra probes of silence and clock; more would slow the check."""
ACTIONS = (0, 0, 1, 0, 0, 2)
"""Weaves along the road."""
OVER_LIMIT = "the check took longer than its limit"


def check_game(
    port: int, host: str, num_decisions: int, speed: float, open_map: str | None, limit_s: float
) -> CheckReport:
    """Drives a game and reports.

    Args:
        port: port of the game.
        host: host of the game.
        num_decisions: decisions to take, at least 1.
        speed: factor of the race clock; positive.
        open_map: map to open with the console command `map`; None uses the current race.
        limit_s: time limit of the whole check.

    Raises:
        UserError: if a number is out of range, or the game stays in its menus.
        GameClosedError: if no game listens.
        GameTimeoutError: if the machine does not answer.
    """
    if num_decisions < 1 or not speed > 0 or not limit_s > 0:
        raise UserError("a check needs at least one decision, a speed above 0 and some time")
    report = CheckReport(f"{host}:{port}")
    with GameClient(host, port, min(WAIT_S, limit_s)) as client:
        end_s = time.monotonic() + limit_s
        check = _Check(client, report, speed, end_s)
        try:
            check.run(num_decisions, open_map)
        except GameError as error:
            report.deviations[str(error)] = None
            if isinstance(error, GameTimeoutError) and time.monotonic() >= end_s:  # the limit cut that wait short
                report.deviations[OVER_LIMIT] = None
        report.messages = {int(number): count for number, count in client.counts.items()}
    return report


class _Check:
    """One check; every method continues from the game's state after the last one."""

    def __init__(self, client: GameClient, report: CheckReport, speed: float, end_s: float) -> None:
        self._client, self._report, self._speed, self._end_s = client, report, speed, end_s
        self._wait_s = WAIT_S
        self._in_menus = False
        self._last_ms: int | None = None
        self._echoed_s = 0.0
        self._start = b""

    def run(self, num_decisions: int, open_map: str | None) -> None:
        """Runs the whole check; an error of the link ends it."""
        self._greet(open_map)
        self._wait_s = self._end_s if open_map is not None else WAIT_S  # a map may take long to load
        first = self._first_step()
        self._wait_s = WAIT_S
        self._try_sync(first)
        sync = self._go_to_start()
        self._start = sync.state()
        for number in range(min(num_decisions, NUM_PROBED)):
            sync = self._decide(sync, number)
        started_s = time.monotonic()
        for number in range(NUM_PROBED, num_decisions):
            sync = self._decide(sync, number)
        if num_decisions > NUM_PROBED:
            self._report.decisions_per_s = round((num_decisions - NUM_PROBED) / (time.monotonic() - started_s), 1)
        self._report.state = read_state(sync.state()).summary()
        self._try_rewind(sync)
        self._try_timeout(sync)

    def _greet(self, open_map: str | None) -> None:
        sync = self._receive()
        if not isinstance(sync.message, OnConnect):
            self._unexpected("message 5 on connecting", sync)
        self._in_menus = sync.is_in_menus()
        if open_map is not None:
            sync.execute(f"map {open_map}")
        sync.set_speed(self._speed)
        sync.set_step_period(PERIOD_MS)
        sync.set_timeout(PATIENT_TIMEOUT_MS)
        sync.echo()

    def _first_step(self) -> Sync:
        try:
            return self._run_step()
        except GameTimeoutError as error:
            if not self._in_menus:
                raise
            message = "the game is in its menus, and no race begins"
            raise UserError(message, hint="open a map in the game, or name one with --map") from error

    def _try_sync(self, sync: Sync) -> None:
        """Tests the messages allowed inside a run step, then gives up the race."""
        sync.send_unknown(UNKNOWN_ID)
        self._expect_silence(sync, "an unknown message")
        sync.send_unknown(MessageId.CHECKPOINT_COUNT)
        self._expect_silence(sync, "the echo of another message")
        sync.request_frame(SIDE, SIDE)
        self._expect_silence(sync, "a request of a frame before the echo")
        sync.cancel_frame()
        if sync.is_in_menus():
            self._deviate("the answer to message 22 is 1 in a race")
        self._report.version = sync.version()
        sync.give_up()
        sync.echo()
        self._last_ms = None

    def _go_to_start(self) -> Sync:
        """Waits for the end of the countdown; returns the open run step of time 0."""
        sync = self._run_step()
        if sync.message.time_ms >= 0:  # pyright: ignore[reportAttributeAccessIssue]
            self._note("the race did not begin with a countdown after message 11")
        while sync.message.time_ms < 0:  # pyright: ignore[reportAttributeAccessIssue]
            sync.echo()
            sync = self._run_step()
        if sync.is_finished():
            self._deviate("message 16 says that the race is finished at its start")
        return sync

    def _decide(self, sync: Sync, number: int) -> Sync:
        """Takes a decision in an open run step; returns the next open run step."""
        state = read_state(sync.state())
        time_ms = sync.message.time_ms  # pyright: ignore[reportAttributeAccessIssue]
        if state.race_time_ms != time_ms:
            self._deviate(f"the state in the run step of {time_ms} ms has a race time of {state.race_time_ms} ms")
        sync.rewind_to_current()
        sync.set_speed(0.0)
        sync.request_frame(SIDE, SIDE)
        sync.echo()
        frame = self._receive()
        while not isinstance(frame.message, Frame):
            if isinstance(frame.message, CheckpointCount | LapCount):  # of the tick whose run step came first
                self._count(frame)
            else:
                self._deviate(f"message {frame.message_id.value} {_text(frame)} came at speed 0, before the frame")
                frame.echo()
            frame = self._receive()
        if number < NUM_PROBED:
            self._expect_silence(frame, "a frame")
            seen_ms = read_state(frame.state()).race_time_ms
            if seen_ms != time_ms:
                self._deviate(f"the clock moved from {time_ms} to {seen_ms} ms at speed 0")
        frame.set_inputs(CONTROLS[ACTIONS[number % len(ACTIONS)]])
        frame.set_speed(self._speed)
        self._echoed_s = time.monotonic()
        frame.echo()
        self._report.num_decisions += 1
        return self._run_step()

    def _run_step(self) -> Sync:
        """Waits for the next run step; answers checkpoints, laps and the finish before it."""
        while True:
            sync = self._receive()
            if isinstance(sync.message, RunStep):
                self._check_time(sync.message.time_ms, sync)
                return sync
            if isinstance(sync.message, CheckpointCount | LapCount):
                self._count(sync)
            else:
                self._unexpected("a run step", sync)

    def _count(self, sync: Sync) -> None:
        current, target = sync.message
        if not 0 <= current <= target:
            self._deviate(f"message {sync.message_id.value} counts {current} of {target}")
        if sync.message_id == MessageId.CHECKPOINT_COUNT and current == target and self._start:
            if not sync.is_finished():
                self._deviate("message 16 denies the finish that message 2 told")
            self._note("the finish was reached, and the race rewound to its start")
            sync.rewind(self._start)
            self._last_ms = None
        sync.echo()

    def _check_time(self, time_ms: int, sync: Sync) -> None:
        if time_ms % PERIOD_MS != 0 and not sync.is_finished():
            self._deviate(f"a run step came at {time_ms} ms, which is no multiple of {PERIOD_MS} ms")
        elif self._last_ms is not None and time_ms != self._last_ms + PERIOD_MS:
            self._deviate(f"after the run step of {self._last_ms} ms came that of {time_ms} ms")
        self._last_ms = time_ms

    def _try_rewind(self, sync: Sync) -> None:
        """Rewinds to the start and compares the state."""
        sync.rewind(self._start)
        different = _differences(read_state(self._start), read_state(sync.state()))
        if different:
            self._deviate(f"a rewind did not restore {', '.join(different)}")

    def _try_timeout(self, sync: Sync) -> None:
        """Withholds the echo: the server must drop the connection and accept the next one."""
        sync.set_timeout(HELD_TIMEOUT_MS)
        sync.set_speed(1.0)
        try:
            sync.flush()
            self._limit()
            is_quiet = self._client.is_quiet(WAIT_S)
        except GameClosedError:
            waited_ms = 1000.0 * (time.monotonic() - self._echoed_s)  # the timeout counts from the start of the sync
            if waited_ms < HELD_TIMEOUT_MS / 2:
                self._deviate(f"the connection was closed {waited_ms:.0f} ms after a timeout of {HELD_TIMEOUT_MS} ms")
        else:
            what = "nothing happened" if is_quiet else "something was sent"
            self._deviate(f"without an echo {what}, instead of a close after {HELD_TIMEOUT_MS} ms")
        self._client.reconnect()
        again = self._receive()
        if not isinstance(again.message, OnConnect):
            self._unexpected("message 5 on connecting again", again)
        again.shut_down()

    def _expect_silence(self, sync: Sync, what: str) -> None:
        sync.flush()
        if not self._client.is_quiet(QUIET_S):
            expected = f"silence after {what} while message {sync.message_id.value} is not echoed"
            raise GameProtocolError(expected, "more bytes")

    def _receive(self) -> Sync:
        self._limit()
        return self._client.receive()

    def _limit(self) -> None:
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise GameTimeoutError(OVER_LIMIT)
        self._client.set_timeout(min(self._wait_s, left_s))

    def _unexpected(self, expected: str, sync: Sync) -> NoReturn:
        raise GameProtocolError(expected, f"message {sync.message_id.value} {_text(sync)}")

    def _deviate(self, text: str) -> None:
        self._report.deviations[text] = None

    def _note(self, text: str) -> None:
        self._report.notes[text] = None


def _text(sync: Sync) -> str:
    return "" if isinstance(sync.message, Frame) else str(tuple(sync.message))


def _differences(before: GameState, after: GameState) -> list[str]:
    """Returns the names of the known fields that differ."""
    names = [name for name in STATE.names or () if before.fixed[name].tobytes() != after.fixed[name].tobytes()]
    if not np.array_equal(before.checkpoints, after.checkpoints):
        names.append("checkpoints")
    return names
