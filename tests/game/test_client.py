"""The client against a scripted game, byte by byte."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from rulka.contracts.actions import Controls
from rulka.game.client import GameClient
from rulka.game.errors import (
    GameClosedError,
    GameOrderError,
    GameProtocolError,
    GameTimeoutError,
)
from rulka.game.protocol import CheckpointCount, LapCount, OnConnect, RunStep
from tests.game.scripted import ScriptedGame, Wire, f32, i32
from tests.waiting import PATIENCE_S

Script = Callable[[Wire], None]
STATE = bytes(8356)


@contextmanager
def connected(*scripts: Script) -> Iterator[GameClient]:
    """Yields the client of a game that plays scripts, a connection each, and has played them when the block is over."""
    game = ScriptedGame(*scripts)
    with GameClient("127.0.0.1", game.port, PATIENCE_S) as client:
        yield client
    game.finish()


def await_bytes(client: GameClient, count: int) -> None:
    """Waits until the client has so many bytes that it has not read."""
    Wire(client._connection._socket).await_bytes(count)


def test_messages_are_typed_and_echoed() -> None:
    def script(wire: Wire) -> None:
        for message, answer in ((i32(5), 5), (i32(1, -2600), 1), (i32(2, 1, 3), 2), (i32(3, 1, 1), 3)):
            wire.send(message)
            assert wire.int() == answer
        assert wire.is_closed()

    with connected(script) as client:
        seen = []
        for _ in range(4):
            sync = client.receive()
            seen.append(sync.message)
            sync.echo()
    assert seen == [OnConnect(), RunStep(-2600), CheckpointCount(1, 3), LapCount(1, 1)]
    assert {int(number): count for number, count in client.counts.items()} == {1: 1, 2: 1, 3: 1, 4: 0, 5: 1}


def test_commands_leave_before_the_echo_in_their_order() -> None:
    expected = i32(6) + f32(80.0) + i32(7, 8356) + STATE + i32(8) + i32(10) + bytes([0, 1, 1, 0]) + i32(11) + i32(12)
    expected += i32(14, 6) + "map \u00e9".encode() + i32(15, 10_100) + i32(17, 64, 48) + i32(19, 50)
    expected += i32(20) + i32(21, 0)

    def script(wire: Wire) -> None:
        wire.send(i32(1, 0))
        assert wire.read(len(expected)) == expected
        assert wire.int() == 9, "what comes after a rewind waits for a state"
        wire.send(i32(8356), STATE)
        assert wire.int() == 1
        assert wire.is_closed()

    with connected(script) as client:
        sync = client.receive()
        sync.set_speed(80.0)
        sync.rewind(STATE)
        sync.rewind_to_current()
        sync.set_inputs(Controls(accelerate=True, brake=False, left=False, right=True))
        sync.give_up()
        sync.prevent_finish()
        sync.execute("map \u00e9")
        sync.set_timeout(10_100)
        sync.request_frame(64, 48)
        sync.set_step_period(50)
        sync.cancel_frame()
        sync.show_interface(False)
        sync.echo()


def test_syncs_inside_a_rewind_are_answered_in_there() -> None:
    """Two of them, one after the other; what had come before is handled in the first, the echo included."""

    def script(wire: Wire) -> None:
        wire.send(i32(1, 0))
        assert wire.read(4 + 4 + 4) == i32(8) + i32(9) + i32(1)
        wire.send(i32(2, 0, 3), i32(8356), STATE)
        assert wire.read(8) == i32(2) + i32(9)
        wire.send(i32(3, 0, 1), i32(8356), STATE)
        assert wire.read(8) == i32(3) + i32(9)
        wire.send(i32(8356), STATE)
        assert wire.int() == 1, "again, to the run step itself"
        wire.send(i32(1, 10))
        assert wire.int() == 1

    with connected(script) as client:
        sync = client.receive()
        sync.rewind_to_current()
        assert sync.echo_for_state() == STATE
        sync = client.receive()
        assert sync.message == RunStep(10)
        sync.echo()


def test_requests_are_answered_inside_the_sync() -> None:
    """A state can be asked for together with the echo; the game answers before it takes that."""

    def script(wire: Wire) -> None:
        wire.send(i32(1, 50))
        assert wire.read(12) == i32(6) + f32(0.0) + i32(16)
        wire.send(i32(1))
        assert wire.int() == 22
        wire.send(i32(0))
        assert wire.int() == 9
        wire.send(i32(8356), STATE)
        assert wire.read(16) == i32(6) + f32(0.0) + i32(9) + i32(1)
        wire.send(i32(8356), STATE, i32(1, 100))
        assert wire.int() == 1

    with connected(script) as client:
        sync = client.receive()
        sync.set_speed(0.0)
        assert sync.is_finished()
        assert not sync.is_in_menus()
        assert sync.state() == STATE
        sync.set_speed(0.0)
        assert sync.echo_for_state() == STATE
        assert client.sync is None
        sync = client.receive()
        assert sync.message == RunStep(100)
        sync.echo()


def test_the_handshake_costs_a_plain_game_nothing() -> None:
    answers = {b"# rulka link 12\n0 press up\n": 12, b"0 press up\n# rulka link 1\n": None, b"": None}
    answers |= dict.fromkeys((b"# rulka link x\n", "# rulka link \u00b2\n".encode()))

    def script(wire: Wire) -> None:
        wire.send(i32(1, 0))
        for answer in answers:
            assert wire.read(25) == i32(14, 13) + b"rulka_version" + i32(23)
            wire.send(i32(len(answer)), answer)
        assert wire.int() == 1

    with connected(script) as client:
        sync = client.receive()
        assert [sync.version() for _ in answers] == list(answers.values())
        sync.echo()


def test_a_frame_has_the_size_that_was_asked_for() -> None:
    pixels = bytes(range(24))

    def script(wire: Wire) -> None:
        wire.send(i32(1, 0))
        assert wire.read(28) == i32(17, 9, 9) + i32(17, 3, 2) + i32(1)  # the second request takes the only place
        wire.send(i32(4), pixels[:10])
        time.sleep(0.02)
        wire.send(pixels[10:])
        assert wire.int() == 4

    with connected(script) as client:
        sync = client.receive()
        sync.request_frame(9, 9)
        sync.request_frame(3, 2)
        sync.echo()
        frame = client.receive()
        assert frame.message.pixels.shape == (2, 3, 4)
        assert frame.message.pixels.tobytes() == pixels
        with pytest.raises(GameOrderError, match="forgets such a request"):
            frame.request_frame(3, 2)
        frame.echo()


def test_the_order_of_the_protocol_is_kept() -> None:
    def script(wire: Wire) -> None:
        wire.send(i32(5))
        assert wire.int() == 5
        assert wire.is_closed()

    with connected(script) as client:
        sync = client.receive()
        assert client.sync is sync
        for speed in (-1.0, float("nan"), float("inf")):
            with pytest.raises(GameOrderError, match="a speed"):
                sync.set_speed(speed)
        with pytest.raises(GameOrderError, match="has not been echoed"):
            client.receive()
        sync.echo()
        assert client.sync is None
        for late in (sync.echo, sync.state, sync.give_up, sync.is_finished, lambda: sync.set_speed(1.0)):
            with pytest.raises(GameOrderError, match="ON_CONNECT is over"):
                late()


# Faults ---------------------------------------------------------------------------------------------------------------


def request_a_frame(client: GameClient) -> None:
    sync = client.receive()
    sync.request_frame(64, 64)
    sync.echo()


def wait_for_a_frame(client: GameClient) -> None:
    request_a_frame(client)
    client.receive()


def after(first: bytes, then: bytes, num_read: int = 16) -> Script:
    def script(wire: Wire) -> None:
        wire.send(first)
        wire.read(num_read)
        if then:  # sending nothing would still fail where the client, having seen enough, has closed already
            wire.send(then)

    return script


def only(data: bytes) -> Script:
    return after(data, b"", 0)


def ask_for_state(client: GameClient) -> None:
    client.receive().state()


FAULTS = {
    "closes at once": (only(b""), GameClient.receive, GameClosedError, "0 of 4 bytes"),
    "closes in a message": (only(i32(1) + b"\0"), GameClient.receive, GameClosedError, "message 1"),
    "dies in mid-frame": (after(i32(1, 0), i32(4) + bytes(9000)), wait_for_a_frame, GameClosedError, "9000 of 16384"),
    "garbage": (only(b"HTTP/1.1 400 Bad Request"), GameClient.receive, GameProtocolError, "48 54 54 50"),
    "a frame that nobody asked for": (only(i32(4) + bytes(64)), GameClient.receive, GameProtocolError, "none was req"),
    "a negative length": (after(i32(1, 0), i32(-1), 4), ask_for_state, GameProtocolError, "length of -1"),
    "a state that is not one": (
        after(i32(1, 0), i32(8358) + bytes(8358), 4),
        ask_for_state,
        GameProtocolError,
        "has 8356 bytes, got 8358",
    ),
    "a sync for an answer": (
        after(i32(1, 0), i32(2, 1, 1), 4),
        lambda client: client.receive().is_finished(),
        GameProtocolError,
        "0 or 1",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_its_named_error_and_the_client_can_reconnect(name: str) -> None:
    script, act, error, text = FAULTS[name]
    with connected(script, lambda wire: wire.send(i32(5))) as client:
        with pytest.raises(error, match=text):
            act(client)
        client.reconnect()
        assert client.receive().message == OnConnect()


def test_bytes_that_drip_do_not_prolong_the_wait_and_the_client_can_reconnect() -> None:
    """They would go on for a quarter of an hour. The timeout is short only when a busy machine cannot be late."""

    def drip(wire: Wire) -> None:
        wire.send(i32(1, 0))
        wire.read(16)
        wire.send(i32(4))
        with suppress(ConnectionError):
            while True:
                wire.send(b"\1")
                time.sleep(0.05)

    with connected(drip, lambda wire: wire.send(i32(5))) as client:
        request_a_frame(client)
        await_bytes(client, 5)
        client.set_timeout(0.2)
        with pytest.raises(GameTimeoutError, match="of 16384 bytes of a frame of 64 x 64"):
            client.receive()
        client.set_timeout(PATIENCE_S)
        client.reconnect()
        assert client.receive().message == OnConnect()


def test_nobody_listens() -> None:
    with socket.socket() as kept:  # so that nobody else gets the port
        kept.bind(("127.0.0.1", 0))
        port = kept.getsockname()[1]
        with pytest.raises(GameClosedError, match=f"no game listens on 127.0.0.1:{port}") as caught:
            GameClient("127.0.0.1", port, PATIENCE_S)
    assert "game serve" in caught.value.hint


def test_a_closed_client_says_so() -> None:
    with connected(lambda wire: wire.send(i32(5))) as client:
        client.close()
        client.close()
        with pytest.raises(GameClosedError, match="closed on our side"):
            client.receive()
