"""The server against a byte-level program, which knows nothing of our client."""

import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rulka.game.errors import GameError
from rulka.game.serve import make_server
from rulka.game.server import BEHIND_S, GameServer
from rulka.params import Params
from rulka.tracks.track import Track
from tests.game.scripted import Wire, f32, i32
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
ServerMaker = Callable[..., GameServer]
FAST = i32(6) + f32(100.0)
GAS = i32(10) + bytes([0, 0, 1, 0])


def greeted(server: GameServer, *commands: bytes) -> Wire:
    """Connects and answers the greeting."""
    wire = Wire.to(server.port)
    assert wire.int() == 5
    wire.send(*commands, i32(5))
    return wire


def until(wire: Wire, time_ms: int) -> None:
    """Echoes run steps until that of a time, which stays open."""
    while True:
        assert wire.int() == 1
        if wire.int() == time_ms:
            return
        wire.send(i32(1))


def state_of(wire: Wire) -> bytes:
    wire.send(i32(9))
    return wire.sized()


def number(block: bytes, offset: int, form: str = "i") -> float:
    return struct.unpack_from(f"<{form}", block, offset)[0]


def finished(server: GameServer) -> Wire:
    """Drives through the finish; the message 2 that says so stays open."""
    wire = greeted(server, FAST, GAS, i32(19, 1000))
    while (message := wire.int()) != 2 or (counts := wire.ints(2))[0] != counts[1]:
        if message == 1:
            wire.int()
        wire.send(i32(message))
    return wire


# Clock and run steps --------------------------------------------------------------------------------------------------


def test_the_countdown_runs_from_minus_2600_at_the_period(serve: ServerMaker) -> None:
    """Every tick at first; settings that cannot be are ignored."""
    bad = (f32(-1.0), f32(float("nan")))
    with greeted(serve(), *(i32(6) + speed for speed in bad), i32(19, 0), i32(19, -50)) as wire:
        assert wire.ints(2) == (1, -2600)
        wire.send(i32(1))
        assert wire.ints(2) == (1, -2590)
        wire.send(i32(19, 50), i32(1))
        times = []
        for _ in range(60):
            assert wire.int() == 1
            times.append(wire.int())
            wire.send(i32(1))
    assert times == list(range(-2550, 450, 50))


def test_the_clock_stops_at_speed_zero_and_frames_still_come(serve: ServerMaker) -> None:
    with greeted(serve()) as wire:
        until(wire, -2500)
        wire.send(i32(6), f32(0.0), i32(17, 4, 4), i32(1))
        assert wire.int() == 4
        wire.read(64)
        assert number(state_of(wire), 7892) == -2500
        wire.send(i32(4), i32(22))
        assert wire.is_quiet(0.15)  # nor is what is sent outside a sync answered before the next


def test_the_speed_is_a_factor_of_time_and_a_sync_is_not_made_up_for(serve: ServerMaker) -> None:
    """At twice the speed, from the first tick after 600 ms of race to the last no less than 295 ms pass.

    A server that a busy machine holds up catches up a little, and how much more it takes depends on the machine.
    """
    with greeted(serve(speed=2.0), i32(19, 100)) as wire:
        until(wire, -2500)
        time.sleep(0.2)
        wire.send(i32(1))
        until(wire, -2400)
        started_s = time.monotonic()
        wire.send(i32(1))
        until(wire, -1800)
        assert time.monotonic() - started_s >= 0.295 - BEHIND_S


# Blocking -------------------------------------------------------------------------------------------------------------


def test_only_the_right_echo_ends_a_sync(serve: ServerMaker) -> None:
    """An unknown id takes four bytes, and messages may come in pieces."""
    with greeted(serve()) as wire:
        assert wire.ints(2) == (1, -2600)
        wire.send(i32(2), i32(3), i32(4), i32(5), i32(99), i32(-7), i32(22))
        assert wire.int() == 0  # the answer to 22, and nothing else
        assert wire.is_quiet(0.1)
        for byte in i32(6) + f32(100.0) + i32(14, 3) + b"abc" + i32(22):
            wire.send(bytes([byte]))
            time.sleep(0.002)
        assert wire.int() == 0
        wire.send(i32(1), i32(22))
        assert wire.ints(3) == (1, -2590, 0)  # the sync first, then the answer


def test_frames_come_after_the_echo_and_have_one_place(serve: ServerMaker) -> None:
    """A second request takes the place of the first; one made while a frame is open is lost; one can be taken back."""
    with greeted(serve()) as wire:
        assert wire.ints(2) == (1, -2600)
        wire.send(i32(17, 2, 2), i32(17, 8, 4))
        assert wire.is_quiet(0.1)
        wire.send(i32(1))
        assert wire.int() == 4
        assert wire.read(8 * 4 * 4)[3::4] == b"\xff" * 32
        wire.send(i32(17, 2, 2), i32(4))
        assert wire.ints(2) == (1, -2590)
        wire.send(i32(17, 2, 2), i32(20), i32(1))
        assert wire.ints(2) == (1, -2580)
        for size in ((0, 4), (-1, -1), (4, 100_000), (2**31 - 1, 2**31 - 1)):
            wire.send(i32(17, *size))
        wire.send(i32(1))
        assert wire.ints(2) == (1, -2570)


# Connections ----------------------------------------------------------------------------------------------------------


def test_a_program_that_does_not_answer_is_dropped_and_the_next_is_served(serve: ServerMaker) -> None:
    server = serve()
    started_s = time.monotonic()  # before the sync that is not echoed: the test itself may be held up in there
    with greeted(server, i32(15, 100)) as wire:
        assert wire.ints(2) == (1, -2600)
        wire.send(i32(17, 4, 4))
        assert wire.is_closed()
        assert time.monotonic() - started_s >= 0.1
    with greeted(server) as wire:
        assert wire.ints(2) == (1, -2590)  # no frame: the request is forgotten, the race goes on
        time.sleep(0.3)  # longer than the other's timeout, which was reset
        wire.send(i32(22))
        assert wire.int() == 0


def test_a_new_program_takes_the_place_of_the_old(serve: ServerMaker) -> None:
    server = serve(speed=0.0)
    with greeted(server) as old, greeted(server, FAST) as new:
        assert old.is_closed()
        assert new.ints(2) == (1, -2600)
        server.stop()
        assert new.is_closed()


def test_settings_outlive_a_program(serve: ServerMaker) -> None:
    server = serve()
    with greeted(server, i32(19, 100), GAS) as wire:
        assert wire.ints(2) == (1, -2600)
        wire.send(i32(13))
        assert wire.is_closed()
    with greeted(server) as wire:
        assert wire.ints(2) == (1, -2500)
        wire.send(i32(1))
        until(wire, 500)
        block = state_of(wire)
        speed_mps = np.linalg.norm(np.frombuffer(block, "<f4", 3, 736).astype(float))
        assert number(block, 744, "f") > 1.0  # rolling: the gas is still pressed
        assert (number(block, 8036), number(block, 16)) == (int(3.6 * speed_mps), 500 + 2610)
        wire.send(i32(11), i32(1))
        assert wire.ints(2) == (1, -2600)
        assert number(state_of(wire), 732, "f") == pytest.approx(-0.37, abs=1e-6)


def test_garbage_ends_the_connection_not_the_server(serve: ServerMaker) -> None:
    server, rng = serve(), np.random.default_rng(0)
    for garbage in (i32(7, -1), i32(7, 2**30), i32(14, -5), i32(14, 2**31 - 1)):
        with greeted(server) as wire:
            assert wire.int() == 1
            wire.int()
            wire.send(garbage)
            assert wire.is_closed()
    with greeted(server) as wire:
        assert wire.int() == 1
        wire.send(i32(7, 8356), bytes(100))  # and dies in mid-message
    for _ in range(20):
        with greeted(server, i32(15, 50)) as wire:
            wire.send(rng.integers(0, 25, 60).astype("<i4").tobytes() + rng.bytes(200))
            wire.socket.settimeout(0.05)
            try:
                while wire.socket.recv(65536):
                    pass
            except (TimeoutError, ConnectionError):
                pass
    with greeted(server, FAST):
        pass


def test_what_cannot_be_served_is_one_message(track: Track, params: Params, serve: ServerMaker) -> None:
    with pytest.raises(GameError, match="cannot be listened on"):
        make_server(track, params, serve().port, speed=1.0)
    with pytest.raises(ValueError, match="a speed is a number from 0"):
        make_server(track, params, 0, speed=-1.0)


# The race -------------------------------------------------------------------------------------------------------------


def test_a_rewind_restores_what_was_fetched_to_the_byte(serve: ServerMaker) -> None:
    with greeted(serve(), FAST, GAS, i32(19, 500)) as wire:
        until(wire, 1000)
        start = state_of(wire)
        assert len(start) == 8356 + 4 * number(start, 8348) + 8 * 2
        wire.send(i32(10), bytes([1, 0, 1, 0]), i32(1))
        until(wire, 2500)
        there = state_of(wire)
        wire.send(i32(7, len(start)), start)
        assert state_of(wire) == start
        wire.send(i32(10), bytes([1, 0, 1, 0]), i32(1))
        until(wire, 1500)  # the next multiple of the period after the time that was rewound to
        wire.send(i32(1))
        until(wire, 2500)
        assert state_of(wire) == there
        wire.send(i32(8))
        assert state_of(wire) == there


def test_a_state_that_is_not_ours_is_refused(serve: ServerMaker) -> None:
    with greeted(serve(), FAST, GAS, i32(19, 500)) as wire:
        until(wire, 1000)
        block = state_of(wire)
        garbled = bytearray(block)
        garbled[2000] ^= 1
        wire.send(i32(1))
        until(wire, 1500)
        before = state_of(wire)
        for bad in (bytes(garbled), bytes(8356), block[:-1], b""):
            wire.send(i32(7, len(bad)), bad)
            assert state_of(wire) == before


def test_checkpoints_are_told_in_order_and_the_finish_ends_the_race(serve: ServerMaker) -> None:
    server = serve()
    with greeted(server, FAST, GAS, i32(19, 1000)) as wire:
        while (message := wire.int()) == 1:
            wire.int()
            wire.send(i32(1))
        assert (message, *wire.ints(2)) == (2, 1, 2)
        block = state_of(wire)
        assert number(block, 8024) == 1
        assert number(block, len(block) - 8) == -1
        assert 0 < number(block, len(block) - 16) <= number(block, 7892)
        wire.send(i32(16))
        assert wire.int() == 0
    with finished(server) as wire:
        wire.send(i32(16))
        assert wire.int() == 1
        block = state_of(wire)
        assert number(block, 8032) == 1
        time_ms = number(block, 7892)
        wire.send(i32(2))
        assert wire.ints(3) == (3, 1, 1)
        wire.send(i32(3))
        # The race time stands still, the tick time goes on: a run step each tick, whatever the period.
        for _ in range(3):
            assert wire.ints(2) == (1, time_ms)
            wire.send(i32(1))


@pytest.mark.parametrize("by_erasing", [False, True])
def test_a_finish_can_be_prevented(serve: ServerMaker, by_erasing: bool) -> None:
    """By message, or in the way of a rollout: the last time becomes -1, and the race is rewound to that."""
    with finished(serve()) as wire:
        block = bytearray(state_of(wire))
        time_ms = number(block, 7892)
        struct.pack_into("<i", block, len(block) - 8, -1)
        wire.send(*((i32(7, len(block)), bytes(block)) if by_erasing else (i32(12),)), i32(16))
        assert wire.int() == 0
        block = state_of(wire)
        assert (number(block, 8032), number(block, 8024), number(block, len(block) - 8)) == (0, 1, -1)
        wire.send(i32(2))
        message, next_ms = wire.ints(2)
        assert message == 1
        assert next_ms > time_ms
        assert next_ms % 1000 == 0


def test_the_menus_have_no_race(serve: ServerMaker) -> None:
    """The handshake is told once, and only when asked for."""
    server = serve(is_in_menus=True)
    with greeted(server, i32(22), i32(9), GAS, i32(11), i32(12), i32(8), i32(7, 3), b"abc") as wire:
        assert wire.ints(2) == (1, 0)  # in the menus, and no state
        assert wire.is_quiet(0.1)
    with Wire.to(server.port) as wire:
        assert wire.int() == 5
        wire.send(i32(14, 14), b"map Campaign 1", i32(22), i32(23), i32(14, 13), b"rulka_version", i32(23), i32(23))
        assert wire.int() == 0
        assert [wire.sized() for _ in range(3)] == [b"", b"# rulka link 1\n", b""]
        wire.send(i32(5))
        assert wire.ints(2) == (1, -2600)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_stops_cleanly_at_a_signal(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "rulka.cli", "game", "serve", "--port", "0", "--speed", "100"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        while "listens on" not in (line := process.stdout.readline()):
            assert line, process.communicate()[1]
        with Wire.to(int(line.split("127.0.0.1:")[1].split(";")[0])) as wire:
            assert wire.int() == 5
            process.send_signal(number)
            out, err = process.communicate(timeout=PATIENCE_S)
            assert wire.is_closed()
    finally:
        process.kill()
    assert process.returncode == 0
    assert out == "stopped\n"
    assert "Traceback" not in err
