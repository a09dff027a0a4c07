"""The plugin runs in AngelScript's engine with real sockets, in a game whose unknown habits are options."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import psutil
import pytest

from rulka.contracts.actions import Controls
from rulka.game.check import CheckReport, check_game
from rulka.game.client import GameClient
from rulka.game.errors import GameClosedError, GameProtocolError
from rulka.game.session import GameSession, SessionSettings
from tests.game.engine import Host, hosted, metres_after
from tests.game.processes import free_ports
from tests.game.scripted import Wire, f32, i32
from tests.waiting import PATIENCE_S

HABITS = {
    "checkpoint first, silent rewinds": {},
    "checkpoint first, a step after a rewind": {"step_after_rewind": "yes"},
    "checkpoint first, callbacks inside a rewind": {"rewind": "inside"},
    "checkpoint first, callbacks after a rewind": {"rewind": "after", "step_after_rewind": "yes"},
    "step first, silent rewinds": {"order": "step-first"},
    "step first, callbacks inside a rewind": {"order": "step-first", "rewind": "inside"},
    "step first, callbacks after a rewind": {"order": "step-first", "rewind": "after"},
}
SETTINGS = SessionSettings(50, 64, 48, speed=100.0)
GAS = Controls(accelerate=True, brake=False, left=False, right=False)
FINISH_MS = 2650
GATES = f"20,{metres_after(FINISH_MS // 10) - 1e-6}"
"""The finish falls on a decision, which is where it is easiest to lose."""


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {
        "WAIT_S": PATIENCE_S,
        "PATIENT_TIMEOUT_MS": round(1000 * PATIENCE_S),
        "QUIET_S": 0.03,
        "HELD_TIMEOUT_MS": 100,
    }
    for name, value in changes.items():
        monkeypatch.setattr(f"rulka.game.check.{name}", value)


@pytest.fixture
def game() -> Iterator[Host]:
    with hosted(gates=GATES) as host:
        yield host


def session_at(host: Host, settings: SessionSettings = SETTINGS) -> GameSession:
    return GameSession(GameClient("127.0.0.1", host.port, PATIENCE_S), settings)


def check(host: Host, num_decisions: int = 80) -> CheckReport:
    return check_game(host.port, "127.0.0.1", num_decisions, 100.0, None, PATIENCE_S)


def race(session: GameSession, most: int = 100) -> list[tuple[int, bytes]]:
    """Time and car of each decision, on full gas, through the finish or for as many."""
    decision = session.begin()
    seen = [(decision.time_ms, decision.car.tobytes())]
    while not decision.is_finished and len(seen) < most:
        decision = session.drive([GAS])
        seen.append((decision.time_ms, decision.car.tobytes()))
    return seen


@pytest.mark.parametrize("habits", HABITS)
def test_races_repeat_and_end_at_their_finish(habits: str) -> None:
    with hosted(gates=GATES, **HABITS[habits]) as host:
        session = session_at(host)
        first = race(session)
        assert [time_ms for time_ms, _ in first] == list(range(0, FINISH_MS + 1, 50))
        assert race(session) == first  # after a finish
        part = race(session, 20)
        session.give_up()
        assert part == first[:20]
        assert race(session) == first  # after giving up
        session.recover()
        assert race(session) == first  # on a new connection
        session.close()
        report = check(host)
        assert not report.deviations
        assert list(report.notes) == ["the finish was reached, and the race rewound to its start"]
        assert report.version == 1


def test_frames_are_blue_green_red_from_the_top_row(game: Host) -> None:
    session = session_at(game)
    pixels = session.begin().pixels
    assert pixels is not None
    assert pixels.shape == (48, 64, 4)
    np.testing.assert_array_equal(pixels[:, :, 0], np.repeat(np.arange(48)[:, None], 64, 1))
    np.testing.assert_array_equal(pixels[:, :, 1], np.repeat(np.arange(64)[None], 48, 0))
    session.close()


def test_a_screenshot_that_fails_is_taken_again() -> None:
    with hosted(gates=GATES, failed_screenshots=3) as host:
        session = session_at(host)
        assert race(session)[-1][0] == FINISH_MS
        host.wait_for("no screenshot of 64 x 48")
        session.close()


def test_the_menus_have_no_state_and_a_map_can_be_opened_from_them() -> None:
    with hosted(gates=GATES, menus="yes") as host:
        with GameClient("127.0.0.1", host.port, PATIENCE_S) as client:
            sync = client.receive()
            assert sync.is_in_menus()
            assert not sync.is_finished()
            sync.rewind_to_current()
            sync.give_up()
            with pytest.raises(GameProtocolError, match="a length of 0"):
                sync.state()
            sync.shut_down()
        session = session_at(host, replace(SETTINGS, map_name="A01-Race"))
        assert race(session)[-1][0] == FINISH_MS
        session.close()


def greeted(host: Host) -> Wire:
    wire = Wire.to(host.port)
    assert wire.int() == 5
    return wire


def test_what_cannot_be_is_refused_and_the_game_lives_on(game: Host) -> None:
    for message in (i32(7, -1), i32(7, 10**9), i32(14, -5), i32(14, 65537)):
        with greeted(game) as wire:
            wire.send(message)
            assert wire.is_closed()
    game.wait_for("message 7 claims -1 bytes")
    game.wait_for("message 14 claims 65537 bytes")
    with greeted(game) as wire:
        wire.send(i32(17, 0, 4), i32(17, 4, 5000), i32(19, 0), i32(99), i32(6), f32(100.0), i32(5))
        assert wire.int() == 1
    game.wait_for("a frame of 4 x 5000 is ignored")
    game.wait_for("a period of 0 ms is ignored")
    game.wait_for("message 99 is unknown")
    assert not check(game).deviations


def test_a_program_that_holds_the_game_and_is_silent_gives_way_to_the_next(game: Host) -> None:
    """It would hold it for a week."""
    silent = session_at(game)
    first = race(silent)
    session = session_at(game)
    game.wait_for("another program connected")
    assert race(session) == first
    with pytest.raises(GameClosedError):
        silent.begin()
    silent.recover()
    assert race(silent) == first
    session.close()
    silent.close()


def test_the_port_is_the_one_that_was_set_last() -> None:
    old, new = free_ports(2), free_ports(1)
    with hosted(port=new, restored_port=old) as host:
        host.wait_for(f"listening on port {old}")
        assert greeted(host).close() is None
        with pytest.raises(ConnectionRefusedError):
            Wire.to(old)
        host.enter(f"set custom_port {old + 1}")
        host.wait_for(f"listening on port {old + 1}")
        with pytest.raises(ConnectionRefusedError):
            Wire.to(new)
        with Wire.to(old + 1) as wire:
            assert wire.int() == 5
        host.enter("set custom_port 70000")
        host.wait_for("port 70000 cannot be listened on")


def test_a_port_that_is_taken_is_tried_again() -> None:
    port, taken = free_ports(2), socket.socket()
    taken.bind(("127.0.0.1", port + 1))
    taken.listen()
    with hosted(port=port) as host:
        host.enter(f"set custom_port {port + 1}")
        host.wait_for(f"port {port + 1} cannot be listened on")
        taken.close()
        host.wait_for(f"listening on port {port + 1}")
        with Wire.to(port + 1) as wire:
            assert wire.int() == 5


def test_a_plugin_that_is_disabled_lets_go(game: Host) -> None:
    with greeted(game) as wire:
        wire.send(i32(6), f32(0.0), i32(5))  # no ticks, so no syncs: the console is read
        game.enter("disable")
        assert wire.is_closed()
    game.wait_for("the plugin is disabled")


@pytest.mark.slow
def test_thousands_of_decisions_need_no_more_memory(game: Host) -> None:
    process, session = psutil.Process(game.process.pid), session_at(game)
    sizes: list[tuple[int, int]] = []
    for _ in range(60):  # 53 decisions each
        race(session)
        sizes.append((process.memory_info().rss, process.num_fds()))
    assert sizes[-1][0] - sizes[9][0] < 2e6
    assert sizes[-1][1] == sizes[9][1]
    session.close()
