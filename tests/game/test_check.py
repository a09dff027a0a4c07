"""`game check` against our server, and against servers that break one rule each."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from types import SimpleNamespace

import pytest

from rulka import cli
from rulka.game.check import OVER_LIMIT, CheckReport, _Check, check_game
from rulka.game.client import GameClient
from rulka.game.protocol import INT, MessageId, pack_sync
from rulka.game.server import GameServer
from rulka.game.simulated import SimulatedGame
from rulka.machine.errors import UserError
from tests.game.scripted import ScriptedGame, Wire
from tests.waiting import PATIENCE_S

ServerMaker = Callable[..., GameServer]
SHORT_S = 0.2
"""How long nothing is waited for."""


@pytest.fixture(autouse=True)
def _waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes may come late; silence of a tenth of a second and the like, at a third."""
    patience_ms = round(1000 * PATIENCE_S)
    changes = {"WAIT_S": PATIENCE_S, "PATIENT_TIMEOUT_MS": patience_ms, "QUIET_S": 0.03, "HELD_TIMEOUT_MS": 100}
    for name, value in changes.items():
        monkeypatch.setattr(f"rulka.game.check.{name}", value)


def check(port: int, num_decisions: int = 8, limit_s: float = PATIENCE_S, open_map: str | None = None) -> CheckReport:
    return check_game(port, "127.0.0.1", num_decisions, 100.0, open_map, limit_s)


def listen_for(monkeypatch: pytest.MonkeyPatch, waits_s: Iterator[float]) -> None:
    """Lets the check listen for so long, each time that it wants to hear nothing."""
    is_quiet = GameClient.is_quiet
    monkeypatch.setattr(GameClient, "is_quiet", lambda client, _: is_quiet(client, next(waits_s)))


def test_our_server_conforms(serve: ServerMaker) -> None:
    report = check(serve().port, 40)
    assert not report.deviations
    assert (report.num_decisions, report.messages[4], report.messages[5], report.version) == (40, 40, 2, 1)
    assert report.state is not None
    assert report.state["race_time_ms"] == 2000
    assert report.state["speed_mps"] > 5
    assert report.decisions_per_s is not None
    assert "40 x FRAME" in report.to_text()


def test_a_plain_server_and_a_finish_on_the_way_are_no_deviations(serve: ServerMaker) -> None:
    server = serve()
    server._game._handlers[MessageId.EXECUTE_COMMAND] = lambda _: None
    report = check(server.port, 300)
    assert not report.deviations
    assert list(report.notes) == ["the finish was reached, and the race rewound to its start"]
    assert report.messages[2] >= 2
    assert report.version is None
    assert "a plain game" in report.to_text()


def test_the_menus_are_one_message(serve: ServerMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    server, greet = serve(is_in_menus=True), _Check._greet

    def greet_then_hurry(one: _Check, open_map: str | None) -> None:
        greet(one, open_map)
        monkeypatch.setattr("rulka.game.check.WAIT_S", SHORT_S)

    with monkeypatch.context() as patch:
        patch.setattr(_Check, "_greet", greet_then_hurry)
        with pytest.raises(UserError, match="the game is in its menus") as caught:
            check(server.port)
    monkeypatch.setattr("rulka.game.check.WAIT_S", PATIENCE_S)
    assert "--map" in caught.value.hint
    assert check(server.port, open_map="A01-Race").conforms


# Servers that break one rule each -------------------------------------------------------------------------------------


def no_rewind(server: GameServer) -> None:
    server._game._handlers[MessageId.REWIND_TO_STATE] = lambda _: None


def no_stop(server: GameServer) -> None:
    """The clock ticks on at speed 0."""
    game = server._game
    take = game.race.state

    def state() -> bytes:
        if game.speed == 0:
            game.race.tick()
        return take()

    game.race.state = state


def long_state(server: GameServer) -> None:
    take = server._game.race.state
    server._game.race.state = lambda: take() + b"\0"


def deaf_to_period(server: GameServer) -> None:
    server._game._handlers[MessageId.SET_STEP_PERIOD] = lambda _: None


def strange_flag(server: GameServer) -> None:
    server._game._handlers[MessageId.IS_IN_MENUS] = lambda: INT.pack(7)


def other_clock(server: GameServer) -> None:
    take = server._game.race.state
    server._game.race.state = lambda: take()[:7892] + INT.pack(77) + take()[7896:]


BROKEN = {
    no_rewind: "a rewind did not restore .*position",
    no_stop: "the clock moved from 0 to 20 ms at speed 0",
    long_state: r"expected a length of 8356 \+ 4 a \+ 8 b",
    deaf_to_period: "is no multiple of 50 ms",
    strange_flag: "expected 0 or 1 as the answer to IS_IN_MENUS, got 7",
    other_clock: "has a race time of 77 ms",
}


@pytest.mark.parametrize("break_rule", BROKEN, ids=lambda rule: rule.__name__)
def test_a_broken_rule_is_a_deviation(break_rule: Callable, serve: ServerMaker) -> None:
    server = serve()
    break_rule(server)
    report = check(server.port)
    assert not report.conforms
    assert any(re.search(BROKEN[break_rule], text) for text in report.deviations), report


def test_a_frame_before_the_echo_is_a_deviation(serve: ServerMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()
    # The frame comes from within the sync.
    frame = pack_sync(MessageId.FRAME) + bytes(64 * 64 * 4)
    server._game._handlers[MessageId.REQUEST_FRAME] = lambda *_: frame
    listen_for(monkeypatch, iter([SHORT_S, SHORT_S, PATIENCE_S]))  # two other rules are kept
    assert "expected silence after a request of a frame before the echo" in next(iter(check(server.port).deviations))


def test_waiting_for_ever_is_a_deviation(serve: ServerMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()
    server._game._handlers[MessageId.SET_TIMEOUT] = lambda _: setattr(server._game, "timeout_ms", 10**9)
    listen_for(monkeypatch, repeat(SHORT_S))
    assert list(check(server.port).deviations) == ["without an echo nothing happened, instead of a close after 100 ms"]


def test_any_echo_must_not_do(serve: ServerMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes the echo of a checkpoint for that of a run step goes on, and so breaks the silence."""
    handle = SimulatedGame.handle
    server = serve()
    sent = []

    def careless(game: SimulatedGame, number: int, values: tuple) -> bytes:
        if number == MessageId.CHECKPOINT_COUNT and not sent:
            sent.append(number)
            return pack_sync(MessageId.RUN_STEP, 0)
        return handle(game, number, values)

    monkeypatch.setattr(SimulatedGame, "handle", careless)
    listen_for(monkeypatch, iter([SHORT_S, PATIENCE_S]))
    assert "expected silence after the echo of another message" in next(iter(check(server.port).deviations))


# Servers that are none ------------------------------------------------------------------------------------------------


def test_garbage_is_a_deviation() -> None:
    game = ScriptedGame(lambda wire: wire.send(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    report = check(game.port)
    game.finish()
    assert "expected one of the ids [1, 2, 3, 4, 5]" in next(iter(report.deviations))


def test_silence_ends_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own clock says so: the limit is set, there is time left, and when the wait has ended it is over."""
    times_s = iter([0.0, 0.0])
    monkeypatch.setattr("rulka.game.check.time", SimpleNamespace(monotonic=lambda: next(times_s, SHORT_S)))

    def script(wire: Wire) -> None:
        wire.is_closed()

    game = ScriptedGame(script)
    report = check(game.port, limit_s=SHORT_S)
    game.finish()
    assert "sent 0 of 4 bytes of the next message within 0.2 s" in next(iter(report.deviations))
    assert list(report.deviations)[1:] == [OVER_LIMIT]


def test_messages_without_end_end_at_the_limit(serve: ServerMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = chain(repeat(0.0, 50), repeat(2 * PATIENCE_S))
    monkeypatch.setattr("rulka.game.check.time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert list(check(serve().port).deviations) == [OVER_LIMIT]


def test_impossible_numbers_are_refused() -> None:
    for num_decisions, limit_s in ((0, 1.0), (1, 0.0)):
        with pytest.raises(UserError, match="at least one decision"):
            check(1, num_decisions, limit_s)


def test_the_command_ends_with_0_only_for_a_game_that_conforms(
    serve: ServerMaker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(port: int) -> int:
        options = ["--port", str(port), "--decisions", "5", "--speed", "100", "--json"]
        monkeypatch.setattr(sys, "argv", ["rulka", "game", "check", *options])
        try:
            cli.main()
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    assert call(serve().port) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["conforms"], report["num_frames"], report["messages"]["5"]) == (True, 5, 2)
    broken = serve()
    no_rewind(broken)
    assert call(broken.port) == 1
    assert not json.loads(capsys.readouterr().out)["conforms"]
