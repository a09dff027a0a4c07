"""The plugin runs in AngelScript's engine with real sockets, in a game whose unknown habits are options."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import psutil
import pytest

from rulka.actions import CONTROLS, Controls, action_table
from rulka.datasets.capture import CaptureSettings
from rulka.datasets.game_capture import GameCapture, ReplayError
from rulka.datasets.races import Race
from rulka.game.check import CheckReport, check_game
from rulka.game.client import GameClient
from rulka.game.errors import GameClosedError, GameProtocolError
from rulka.game.link import GameLink
from rulka.game.plugin import PLUGIN_FILE
from rulka.game.session import GameSession, SessionSettings
from rulka.params import read_params
from rulka.simulator.render import camera_array
from rulka.tracks.track import Track
from tests.conftest import along_z, plain_road
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
TABLE = action_table(5)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    patience_ms = round(1000 * PATIENCE_S)
    monkeypatch.setattr("rulka.game.session.RACE_TIMEOUT_MS", patience_ms)
    changes = {"WAIT_S": PATIENCE_S, "PATIENT_TIMEOUT_MS": patience_ms, "QUIET_S": 0.03, "HELD_TIMEOUT_MS": 100}
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


def test_a_plugin_that_nests_its_syncs_is_survived(tmp_path: Path) -> None:
    """As Linesight's does, where the game calls it back inside a rewind: what was sent before is handled in there."""
    nesting = tmp_path / "nesting.as"
    text = PLUGIN_FILE.read_text()
    assert text.count(" || isWaiting") == 2
    nesting.write_text(text.replace(" || isWaiting", ""))
    for order in ("checkpoint-first", "step-first"):
        with hosted(nesting, gates=GATES, rewind="inside", order=order) as host:
            session = session_at(host)
            first = race(session)
            for _ in range(3):
                assert race(session) == first
            session.close()
            assert not check(host).deviations


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


def test_two_games_are_two_races() -> None:
    with hosted(gates=GATES) as one, hosted(gates="20,40") as other:
        sessions = session_at(one), session_at(other)
        starts = [session.begin() for session in sessions]
        assert [len(start.state.checkpoints) for start in starts] == [2, 2]
        ends = [session.drive([GAS]) for session in sessions for _ in range(10)]
        assert [end.time_ms for end in ends] == [*range(50, 501, 50)] * 2
        for session in sessions:
            session.give_up()
        near_ms = next(10 * tick for tick in range(1, 300) if metres_after(tick) >= 40)
        assert [race(session)[-1][0] for session in sessions] == [FINISH_MS, near_ms]
        for session in sessions:
            session.close()


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


# Through whole parts of Rulka -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def road() -> Track:
    return plain_road(along_z(60.0), 24.0, (20.0,), uid="road", name="road")


def test_an_environment_drives_to_the_finish(road: Track) -> None:
    with hosted(gates="20,60") as host:
        env = gymnasium.make("rulka/Game-v0", port=host.port, track=road, speed=100.0, timeout_s=PATIENCE_S)
        totals = []
        for _ in range(2):
            env.reset()
            total, is_over = 0.0, False
            while not is_over:
                _, reward, is_finished, is_cut, info = env.step(0)
                total, is_over = total + float(reward), is_finished or is_cut
            assert info["is_finished"]
            totals.append((total, info["time_ms"]))
        assert totals[0] == totals[1]
        env.close()


def recorded(session: GameSession, road: Track) -> Race:
    """Keys by the tick, driven in the game, as a race that was recorded."""
    decision, keys, rng = session.begin(), [], np.random.default_rng(1)
    start = decision.car
    while not decision.is_finished:
        held = CONTROLS[int(rng.choice([0, 0, 0, 1, 2]))]
        for _ in range(int(rng.integers(1, 12))):
            if not decision.is_finished:
                keys.append(held)
                decision = session.drive([held])
    times = tuple(int(time_ms) for time_ms in decision.state.checkpoints["time_ms"])
    controls = [[held.right - held.left, held.accelerate, held.brake] for held in keys]
    return Race(
        race_id="driven",
        source="recording",
        file="driven.Replay.Gbx",
        player="somebody",
        map_uid=road.uid,
        race_time_ms=decision.time_ms,
        is_finished=True,
        checkpoint_times_ms=times,
        seed=None,
        controls=np.array(controls, np.float32),
        state_time_ms=np.array([0, decision.time_ms]),
        state=np.stack([start, decision.car]),
    )


@pytest.mark.parametrize("habits", ["checkpoint first, silent rewinds", "step first, callbacks inside a rewind"])
def test_a_capture_is_held_to_the_millisecond(road: Track, habits: str) -> None:
    with hosted(gates="20,60", **HABITS[habits]) as host:
        session = session_at(host, replace(SETTINGS, period_ms=10))
        driven = recorded(session, road)
        session.close()
        assert driven.race_time_ms is not None
        settings = CaptureSettings(64, 64, TABLE, 0.0153, camera_array(read_params().simulator.camera))
        link = GameLink(port=host.port, speed=100.0, timeout_s=PATIENCE_S, patience_s=PATIENCE_S)
        with GameCapture(link, road, settings) as capture:
            captured = capture.capture(driven)
            assert len(captured.image) == -(-driven.race_time_ms // 50)
            late = (*driven.checkpoint_times_ms[:-1], driven.race_time_ms + 10)
            with pytest.raises(ReplayError, match="finish at"):
                capture.capture(replace(driven, race_time_ms=late[-1], checkpoint_times_ms=late))
