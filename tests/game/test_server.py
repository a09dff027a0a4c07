"""The server against a byte-level program, which knows nothing of our client."""

import os
import resource
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rulka.actions import action_table
from rulka.game.errors import GameError
from rulka.game.serve import find_track, make_server, serve_until_stopped
from rulka.game.server import BEHIND_S, GameServer
from rulka.observation import CAR
from rulka.params import Params
from rulka.simulator.render import FrameRenderer, camera_array
from rulka.simulator.scene import bake_scene
from rulka.simulator.simulator import Simulator
from rulka.tracks.find import find_track as find_campaign_track
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


def test_it_serves_in_a_process_with_many_open_files(serve: ServerMaker) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f"a process may have but {hard} files open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with greeted(serve()) as wire:
            assert wire.ints(2) == (1, -2600)
    finally:
        for each in opened:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# Clock and run steps --------------------------------------------------------------------------------------------------


def test_the_countdown_runs_from_minus_2600_at_the_period(serve: ServerMaker) -> None:
    with greeted(serve(), i32(19, 50)) as wire:
        times = []
        for _ in range(60):
            assert wire.int() == 1
            times.append(wire.int())
            wire.send(i32(1))
    assert times == list(range(-2600, 400, 50))


def test_run_steps_come_every_tick_at_first(serve: ServerMaker) -> None:
    with greeted(serve()) as wire:
        assert wire.ints(2) == (1, -2600)
        wire.send(i32(1))
        assert wire.ints(2) == (1, -2590)


def test_the_clock_stops_at_speed_zero_and_frames_still_come(serve: ServerMaker) -> None:
    with greeted(serve()) as wire:
        until(wire, -2500)
        wire.send(i32(6), f32(0.0), i32(17, 4, 4), i32(1))
        assert wire.int() == 4
        wire.read(64)
        assert number(state_of(wire), 7892) == -2500
        wire.send(i32(4))
        assert wire.is_quiet(0.15)


def test_the_speed_is_a_factor_of_time(serve: ServerMaker) -> None:
    """At twice the speed, from the first tick after 600 ms of race to the last no less than 295 ms pass.

    A server that a busy machine holds up catches up a little, and how much more it takes depends on the machine.
    """
    with greeted(serve(speed=2.0), i32(19, 100)) as wire:
        until(wire, -2500)
        started_s = time.monotonic()
        wire.send(i32(1))
        until(wire, -1900)
        assert time.monotonic() - started_s >= 0.295 - BEHIND_S


def test_time_in_a_sync_is_not_made_up_for(serve: ServerMaker) -> None:
    with greeted(serve(speed=1.0)) as wire:
        until(wire, -2590)
        time.sleep(0.2)
        wire.send(i32(1))
        until(wire, -2580)
        started_s = time.monotonic()
        wire.send(i32(1))
        until(wire, -2400)  # eighteen ticks
        assert time.monotonic() - started_s >= 0.17 - BEHIND_S


@pytest.mark.parametrize("bad", [i32(6) + f32(-1.0), i32(6) + f32(float("nan")), i32(19, 0), i32(19, -50)])
def test_impossible_settings_are_ignored(serve: ServerMaker, bad: bytes) -> None:
    with greeted(serve(), bad) as wire:
        assert wire.ints(2) == (1, -2600)
        wire.send(i32(1))
        assert wire.ints(2) == (1, -2590)


# Blocking -------------------------------------------------------------------------------------------------------------


def test_only_the_right_echo_ends_a_sync(serve: ServerMaker) -> None:
    with greeted(serve()) as wire:
        assert wire.ints(2) == (1, -2600)
        wire.send(i32(2), i32(3), i32(4), i32(5), i32(22))
        assert wire.int() == 0  # the answer to 22, and nothing else
        assert wire.is_quiet(0.1)
        wire.send(i32(1))
        assert wire.ints(2) == (1, -2590)


def test_what_is_sent_outside_a_sync_waits_for_the_next(serve: ServerMaker) -> None:
    with greeted(serve(speed=0.0)) as wire:
        wire.send(i32(22))
        assert wire.is_quiet(0.15)
    with greeted(serve()) as wire:
        assert wire.ints(2) == (1, -2600)
        wire.send(i32(1), i32(22))
        assert wire.ints(3) == (1, -2590, 0)  # the sync first, then the answer


def test_frames_come_only_after_the_echo(serve: ServerMaker) -> None:
    with greeted(serve()) as wire:
        assert wire.ints(2) == (1, -2600)
        wire.send(i32(17, 8, 4))
        assert wire.is_quiet(0.1)
        wire.send(i32(1))
        assert wire.int() == 4
        assert wire.read(8 * 4 * 4)[3::4] == b"\xff" * 32
        wire.send(i32(4))
        assert wire.ints(2) == (1, -2590)


def test_the_place_for_a_request_is_cleared_after_the_wait(serve: ServerMaker) -> None:
    """A second request takes the place of the first; one made while a frame is open is lost; one can be taken back."""
    with greeted(serve()) as wire:
        assert wire.ints(2) == (1, -2600)
        wire.send(i32(17, 8, 8), i32(17, 2, 2), i32(1))
        assert wire.int() == 4
        wire.read(16)
        wire.send(i32(17, 2, 2), i32(4))
        assert wire.ints(2) == (1, -2590)
        wire.send(i32(17, 2, 2), i32(20), i32(1))
        assert wire.ints(2) == (1, -2580)


@pytest.mark.parametrize("size", [(0, 4), (-1, -1), (4, 100_000), (2**31 - 1, 2**31 - 1)])
def test_a_frame_of_an_absurd_size_is_ignored(serve: ServerMaker, size: tuple[int, int]) -> None:
    with greeted(serve()) as wire:
        assert wire.ints(2) == (1, -2600)
        wire.send(i32(17, *size), i32(1))
        assert wire.ints(2) == (1, -2590)


def test_an_unknown_id_takes_four_bytes(serve: ServerMaker) -> None:
    with greeted(serve()) as wire:
        assert wire.ints(2) == (1, -2600)
        wire.send(i32(99), i32(-7), i32(22))
        assert wire.int() == 0


def test_messages_may_come_in_pieces(serve: ServerMaker) -> None:
    with greeted(serve(), i32(19, 50)) as wire:
        assert wire.ints(2) == (1, -2600)
        for byte in i32(6) + f32(100.0) + i32(14, 3) + b"abc" + i32(22):
            wire.send(bytes([byte]))
            time.sleep(0.002)
        assert wire.int() == 0
        wire.send(i32(1))
        assert wire.ints(2) == (1, -2550)


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
        assert number(state_of(wire), 744, "f") > 1.0  # rolling: the gas is still pressed


@pytest.mark.parametrize("garbage", [i32(7, -1), i32(7, 2**30), i32(14, -5), i32(14, 2**31 - 1)])
def test_an_absurd_length_ends_the_connection_not_the_server(serve: ServerMaker, garbage: bytes) -> None:
    server = serve()
    with greeted(server) as wire:
        assert wire.ints(2) == (1, -2600)
        wire.send(garbage)
        assert wire.is_closed()
    with greeted(server) as wire:
        assert wire.int() == 1


def test_a_program_that_dies_in_mid_message_is_dropped(serve: ServerMaker) -> None:
    server = serve()
    with greeted(server) as wire:
        assert wire.ints(2) == (1, -2600)
        wire.send(i32(7, 8356), bytes(100))
    with greeted(server) as wire:
        assert wire.int() == 1


def test_random_bytes_never_end_the_server(serve: ServerMaker) -> None:
    server, rng = serve(), np.random.default_rng(0)
    for _ in range(20):
        with greeted(server, i32(15, 50)) as wire:
            words = rng.integers(0, 25, 60).astype("<i4").tobytes() + rng.bytes(200)
            wire.send(words)
            wire.socket.settimeout(0.05)
            try:
                while wire.socket.recv(65536):
                    pass
            except (TimeoutError, ConnectionError):
                pass
    with greeted(server, FAST):
        pass


def test_a_taken_port_is_one_message(track: Track, params: Params, serve: ServerMaker) -> None:
    with pytest.raises(GameError, match="cannot be listened on"):
        make_server(track, params, serve().port, speed=1.0)


# The race -------------------------------------------------------------------------------------------------------------


def test_the_car_drives_as_in_the_simulator(serve: ServerMaker, track: Track, params: Params) -> None:
    """Gas for a second, then gas and right: state and frame are those of a simulator driven in the same way."""
    with greeted(serve(), FAST, GAS, i32(19, 1000)) as wire:
        until(wire, 1000)
        wire.send(i32(10), bytes([0, 1, 1, 0]), i32(1))
        until(wire, 2000)
        block = state_of(wire)
        wire.send(i32(17, 64, 64), i32(1))
        assert wire.int() == 4
        pixels = np.frombuffer(wire.read(64 * 64 * 4), np.uint8).reshape(64, 64, 4)
    simulator = Simulator(track, 1, params.simulator, action_table(5))
    for action in (0,) * 20 + (2,) * 20:
        simulator.step(np.array([action]))
    car = simulator.cars[0]
    for name, offset, count in (("position", 724, 3), ("rotation", 688, 9), ("velocity", 736, 3), ("rpm", 3112, 1)):
        assert struct.unpack_from(f"<{count}f", block, offset) == tuple(car[CAR[name]].tolist())
    assert [number(block, 3996 + 764 * k, "f") for k in range(4)] == car[CAR["damper"]].tolist()
    assert [number(block, 4108 + 764 * k) for k in range(4)] == car[CAR["has_contact"]].tolist()
    assert [number(block, 4112 + 764 * k) for k in range(4)] == car[CAR["material"]].tolist()
    assert (number(block, 3128), number(block, 7892), number(block, 16)) == (car[CAR["gear"]][0], 2000, 4610)
    assert number(block, 8036) == int(3.6 * np.linalg.norm(car[CAR["velocity"]].astype(float)))
    grey = np.empty((1, 64, 64), np.uint8)
    camera = camera_array(params.simulator.camera)
    FrameRenderer(simulator.cars, simulator.zone_index, bake_scene(track), camera).render(grey)
    np.testing.assert_array_equal(pixels[..., :3], np.repeat(grey[0][..., None], 3, axis=2))


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


@pytest.mark.parametrize("change", ["garbled", "foreign", "short", "empty"])
def test_a_state_that_is_not_ours_is_refused(serve: ServerMaker, change: str) -> None:
    with greeted(serve(), FAST, GAS, i32(19, 500)) as wire:
        until(wire, 1000)
        block = state_of(wire)
        bad = bytearray(block)
        bad[2000] ^= 1
        states = {"garbled": bytes(bad), "foreign": bytes(8356), "short": block[:-1], "empty": b""}
        wire.send(i32(1))
        until(wire, 1500)
        before = state_of(wire)
        wire.send(i32(7, len(states[change])), states[change])
        assert state_of(wire) == before


def test_giving_up_begins_the_countdown_anew(serve: ServerMaker) -> None:
    with greeted(serve(), FAST, GAS) as wire:
        until(wire, 500)
        wire.send(i32(11), i32(1))
        assert wire.ints(2) == (1, -2600)
        assert number(state_of(wire), 732, "f") == pytest.approx(0.0, abs=1e-6)


def test_checkpoints_are_told_in_order(serve: ServerMaker) -> None:
    with greeted(serve(), FAST, GAS, i32(19, 1000)) as wire:
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


def test_the_finish_ends_the_race(serve: ServerMaker) -> None:
    with finished(serve()) as wire:
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


def test_a_finish_can_be_prevented(serve: ServerMaker) -> None:
    with finished(serve()) as wire:
        time_ms = number(state_of(wire), 7892)
        wire.send(i32(12), i32(16))
        assert wire.int() == 0
        block = state_of(wire)
        assert (number(block, 8032), number(block, 8024), number(block, len(block) - 8)) == (0, 1, -1)
        wire.send(i32(2))
        message, next_ms = wire.ints(2)
        assert message == 1
        assert next_ms > time_ms
        assert next_ms % 1000 == 0


def test_a_finish_can_be_taken_back_by_erasing_its_time(serve: ServerMaker) -> None:
    """The way of a rollout: the last checkpoint time becomes -1, and the race is rewound to that."""
    with finished(serve()) as wire:
        block = bytearray(state_of(wire))
        struct.pack_into("<i", block, len(block) - 8, -1)
        wire.send(i32(7, len(block)), bytes(block), i32(16))
        assert wire.int() == 0
        wire.send(i32(2))
        assert wire.int() == 1


def test_a_finished_race_can_be_rewound_to_its_start(serve: ServerMaker) -> None:
    server = serve()
    with greeted(server, FAST, i32(19, 50)) as wire:
        until(wire, 0)
        start = state_of(wire)
        wire.send(i32(13))
        assert wire.is_closed()
    with finished(server) as wire:
        wire.send(i32(7, len(start)), start, i32(2))
        assert wire.ints(2) == (1, 1000)
        assert number(state_of(wire), 8024) == 0


def test_inputs_are_told_as_a_script(serve: ServerMaker) -> None:
    with greeted(serve(), FAST, GAS, i32(19, 50)) as wire:
        until(wire, 100)
        wire.send(i32(10), bytes([1, 0, 1, 0]), i32(1))
        until(wire, 150)
        wire.send(i32(10), bytes([0, 0, 0, 1]), i32(23))
        lines = wire.sized().decode().splitlines()
        assert lines == ["0 press up", "100 press left", "150 rel up", "150 press down", "150 rel left"]


def test_the_handshake_is_told_once_and_only_when_asked(serve: ServerMaker) -> None:
    with greeted(serve()) as wire:
        assert wire.ints(2) == (1, -2600)
        wire.send(i32(23), i32(14, 13), b"rulka_version", i32(23), i32(23))
        assert [wire.sized() for _ in range(3)] == [b"", b"# rulka link 1\n", b""]


def test_the_menus_have_no_race(serve: ServerMaker) -> None:
    with greeted(serve(is_in_menus=True), i32(22), i32(9), GAS, i32(11), i32(12), i32(8), i32(7, 3), b"abc") as wire:
        assert wire.ints(2) == (1, 0)  # in the menus, and no state
        assert wire.is_quiet(0.1)
    server = serve(is_in_menus=True)
    with Wire.to(server.port) as wire:
        assert wire.int() == 5
        wire.send(i32(14, 14), b"map Campaign 1", i32(22), i32(5))
        assert wire.ints(3) == (0, 1, -2600)


def test_a_stopped_server_closes_its_connection(serve: ServerMaker) -> None:
    server = serve()
    with greeted(server) as wire:
        assert wire.int() == 1
        server.stop()
        wire.int()
        assert wire.is_closed()


def test_tracks_are_found_by_name_and_by_file(track: Track, params: Params, tmp_path: Path) -> None:
    track.save(tmp_path / "mine.npz")
    assert find_track("mine", params, tmp_path).uid == "short"
    assert find_track(str(tmp_path / "mine.npz"), params, tmp_path).uid == "short"
    assert find_track("thunder-bowl", params, tmp_path).uid == find_campaign_track("thunder-bowl").uid
    assert find_track(None, params).uid == "generated-5-600"
    with pytest.raises(ValueError, match="no track 'other': it is neither a file nor one of mine"):
        find_track("other", params, tmp_path)


def test_a_negative_speed_is_refused(track: Track, params: Params) -> None:
    with pytest.raises(ValueError, match="a speed is a number from 0"):
        make_server(track, params, 0, speed=-1.0)


def test_serving_ends_when_told(track: Track, params: Params) -> None:
    server = make_server(track, params, 0, speed=1.0)
    server.stop()
    lines: list[str] = []
    serve_until_stopped(server, lines.append)
    assert lines == [f"a game listens on 127.0.0.1:{server.port}; Ctrl-C stops it", "stopped"]


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
