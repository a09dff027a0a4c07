"""Client and server together: races over a real socket, and what happens when one side fails."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from rulka.contracts.actions import CONTROLS
from rulka.game.client import GameClient
from rulka.game.errors import GameClosedError, GameError, GameOrderError, GameProtocolError
from rulka.game.frames import grey_from_bgra
from rulka.game.server import GameServer
from rulka.game.session import GameSession, SessionSettings
from rulka.tracks.track import Track
from tests.game.processes import free_ports
from tests.game.scripted import ScriptedGame, i32
from tests.waiting import PATIENCE_S, wait_for

ServerMaker = Callable[..., GameServer]
SETTINGS = SessionSettings(50, 64, 64, speed=100.0)
ACTIONS = (0, 0, 1, 0, 2, 9, 0, 3)


def session_at(port: int) -> GameSession:
    return GameSession(GameClient("127.0.0.1", port, PATIENCE_S), SETTINGS)


HABITS = [{}, {"is_step_first": True}, {"calls_back": True}, {"is_step_first": True, "calls_back": True}]
"""Of a game, of which nobody knows which it has."""


@pytest.fixture(params=HABITS, ids=lambda habits: ", ".join(habits) or "plain")
def session(serve: ServerMaker, request: pytest.FixtureRequest) -> Iterator[GameSession]:
    one = session_at(serve(**request.param).port)
    yield one
    one.close()


def race(session: GameSession, num_decisions: int = 400) -> list[tuple[int, bytes, bytes]]:
    """Time, car and grey frame of each decision of a race, driven in the same way each time."""
    seen, grey = [], np.empty((64, 64), np.uint8)
    decision = session.begin()
    for number in range(num_decisions):
        if decision.pixels is not None:
            grey_from_bgra(decision.pixels, grey)
        seen.append((decision.time_ms, decision.car.tobytes(), grey.tobytes()))
        if decision.is_finished:
            break
        decision = session.drive([CONTROLS[ACTIONS[number % len(ACTIONS)]]])
    return seen


def test_races_follow_each_other_and_repeat(session: GameSession) -> None:
    with pytest.raises(GameOrderError, match="begin one"):
        session.drive(CONTROLS[:1])
    first = race(session)
    with pytest.raises(GameOrderError, match="begin one"):
        session.drive(CONTROLS[:1])
    assert race(session) == first  # after a finish
    part = race(session, 20)
    session.give_up()
    assert part == first[:20]
    assert race(session) == first  # after giving up


@pytest.mark.parametrize("is_step_first", [False, True])
def test_a_finish_on_a_decision_is_not_lost(serve: ServerMaker, is_step_first: bool) -> None:
    """With a decision in every tick each finish is on one; before its frame comes, if the run step came first."""
    session = GameSession(
        GameClient("127.0.0.1", serve(is_step_first=is_step_first).port, PATIENCE_S), replace(SETTINGS, period_ms=10)
    )
    decision = session.begin()
    while not decision.is_finished:
        assert decision.time_ms < 20_000
        decision = session.drive([CONTROLS[0]])
    assert decision.time_ms == decision.state.checkpoints["time_ms"][-1]
    session.close()


def test_a_silent_program_gives_way_to_the_next(serve: ServerMaker) -> None:
    server = serve()
    silent, session = session_at(server.port), session_at(server.port)
    first = race(session)
    with pytest.raises(GameClosedError):
        silent.begin()
    assert race(session) == first
    session.close()


def test_after_an_error_the_next_race_is_whole(serve: ServerMaker) -> None:
    """The server drops the program in mid-race, and both go on."""
    server = serve()
    session = session_at(server.port)
    first = race(session)
    session.begin()
    assert server._program is not None
    server._program.interrupt()
    wait_for(lambda: server._program is None, "the server to drop the program")
    with pytest.raises(GameError):
        session.drive(CONTROLS[:1])
    session.recover()
    assert race(session) == first
    session.close()


def test_a_restarted_game_on_another_map_begins_with_its_own_countdown(track: Track, serve: ServerMaker) -> None:
    server = serve(port=free_ports(1))
    session = session_at(server.port)
    session.begin()
    server.stop()
    wait_for(lambda: server._listener.fileno() < 0, "the server to end")
    with pytest.raises(GameClosedError):
        session.drive(CONTROLS[:1])
    serve(replace(track, gate_m=track.gate_m[-1:]), port=server.port)
    session.recover()
    decision = session.begin()
    assert (decision.time_ms, len(decision.state.checkpoints)) == (0, 1)
    session.close()


def test_a_game_that_greets_otherwise_is_refused() -> None:
    game = ScriptedGame(lambda wire: wire.send(i32(1, 0)))
    with pytest.raises(GameProtocolError, match="message 5 on connecting"):
        session_at(game.port)
    game.finish()
