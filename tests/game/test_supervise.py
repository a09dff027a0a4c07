"""Games in processes of their own: started, started again, ended. `rulka game serve` stands in for the game."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rulka.game.errors import GameTimeoutError
from rulka.game.link import GameLink
from rulka.game.settings import GameSettings
from rulka.game.supervise import GameStartError, GameSupervisor, listening_ports, running_games
from tests.game.processes import free_ports
from tests.waiting import PATIENCE_S, wait_for

SERVE = (sys.executable, "-m", "rulka.cli", "game", "serve", "--speed", "100", "--port", "{port}")
LISTENS = (
    sys.executable,
    "-c",
    "import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(600)",
)
SILENT = (sys.executable, "-c", "import time; time.sleep(600)", "{port}")


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes long to start a game."""
    monkeypatch.setattr(GameSupervisor.start, "__defaults__", (PATIENCE_S,))


def processes(games: GameSupervisor) -> list[psutil.Process]:
    return [psutil.Process(game.pid) for game in games.games.values()]


def has_ended(process: psutil.Process) -> bool:
    """Also where nobody has asked how it ended."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(
    "command", [LISTENS, pytest.param(SERVE, marks=pytest.mark.slow)], ids=["what listens", "games"]
)
def test_games_are_started_started_again_and_ended(command: tuple[str, ...], tmp_path: Path) -> None:
    port = free_ports(2)
    settings = GameSettings(port=port, command=command)
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with GameSupervisor(settings, 2, tmp_path, tmp_path / "logs") as games:
            first, started = {port: game.pid for port, game in games.games.items()}, processes(games)
            assert set(first) == {port, port + 1} <= listening_ports()
            os.kill(first[port + 1], signal.SIGKILL)
            wait_for(lambda: games.num_restarts == 1 and port + 1 in listening_ports(), "the one that died")
            second, started = {port: game.pid for port, game in games.games.items()}, started + processes(games)
            assert second[port] == first[port]
            assert second[port + 1] != first[port + 1]
            os.kill(second[port], signal.SIGSTOP)  # hangs; the kernel goes on to accept connections
            wait_for(lambda: psutil.Process(second[port]).status() == psutil.STATUS_STOPPED, "the one that hangs")
            with pytest.raises(GameTimeoutError):
                GameLink(port=port, timeout_s=0.5, reports=tmp_path).open(50, 8, 8)
            wait_for(lambda: games.num_restarts == 2 and port in listening_ports(), "the one that hung")
            if command is SERVE:
                GameLink(port=port, timeout_s=PATIENCE_S).open(50, 8, 8).close()
            started += processes(games)
        assert not any(process.is_running() for process in started)
        assert bystander.poll() is None, "only what was started here is ended"
        assert not list(tmp_path.glob("*.hung"))
    finally:
        bystander.kill()
        bystander.wait()


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        games = GameSupervisor(GameSettings(port=port, command=SERVE), 1, tmp_path, tmp_path)
        with pytest.raises(GameStartError, match=f"port {port} is taken already"):
            games.start()


def test_a_game_that_does_not_come_up_is_an_error(tmp_path: Path) -> None:
    commands = {
        "cannot be started with 'no-such-game'": ("no-such-game", "{port}"),
        "ended with exit code 3 before it listened": (sys.executable, "-c", "print('{port}'); raise SystemExit(3)"),
    }
    for message, command in commands.items():
        with pytest.raises(GameStartError, match=message):
            GameSupervisor(GameSettings(port=free_ports(1), command=command), 1, tmp_path, tmp_path).start()
    silent = GameSupervisor(GameSettings(port=free_ports(1), command=SILENT), 1, tmp_path, tmp_path)
    with pytest.raises(GameStartError, match="does not listen"):
        silent.start(limit_s=0.5)
    (game,) = silent.games.values()
    assert game.returncode is not None, "it has been ended"


def test_without_a_program_to_start_a_person_has_started_the_games() -> None:
    with running_games(GameSettings(port=1234), 3) as link:
        assert (link.port, link.reports, link.instance(2).port) == (1234, None, 1236)


_PARENT = """
import sys, time
from pathlib import Path
from rulka.game.settings import GameSettings
from rulka.game.supervise import GameSupervisor
from rulka.stages.stage import interrupt_on_signals
interrupt_on_signals()
folder = Path(sys.argv[2])
code = "import socket, time\\ns = socket.create_server(('127.0.0.1', {port}))\\ntime.sleep(600)"
command = (sys.executable, "-c", code)
with GameSupervisor(GameSettings(port=int(sys.argv[1]), command=command), 1, folder, folder) as games:
    print(*(game.pid for game in games.games.values()), flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_games_end_with_who_started_them(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _PARENT, str(free_ports(1)), str(tmp_path)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert parent.stdout is not None
    game = psutil.Process(int(parent.stdout.readline()))
    assert game.is_running(), shlex.join(command)
    parent.send_signal(number)
    parent.wait(PATIENCE_S)
    parent.stdout.close()
    wait_for(lambda: has_ended(game), "the game to end")
