"""Supervises games: starts them, waits until they listen, restarts those that died or hang, and ends all on exit.

Each game has its own process group. One thread starts and watches all games, because on Linux a child dies with the
thread that started it. The supervisor reads from the system's socket table whether a game listens, since connecting
would take the game away from the program that drives it. Only that program can detect a hang; it reports one with a
marker file, see `rulka.game.link.hang_report`.
"""

from __future__ import annotations

import logging
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil

from rulka.game.errors import GameError
from rulka.game.link import GameLink, hang_report
from rulka.game.settings import GameSettings
from rulka.machine.processes import RestartBudget, end_group, start_group

WINE = "wine"


class GameStartError(GameError):
    """A game cannot be started, ended before it listened, or does not listen; the message says what is missing."""


def launch_command(settings: GameSettings, port: int) -> list[str]:
    """Returns the words of the command that starts a game whose plugin listens at `port`.

    The port is passed as a TMInterface console variable, as in Linesight.

    Raises:
        GameStartError: if the settings do not say what to start.
    """
    if settings.command:
        return [word.replace("{port}", str(port)) for word in settings.command]
    if settings.exe is None:
        message = "nothing says which program the game is"
        raise GameStartError(message, hint="Set RULKA_GAME_EXE or RULKA_GAME_COMMAND; see docs/game.md.")
    game = [str(settings.exe), f"/configstring=set custom_port {port}"]
    return [WINE, *game] if settings.prefix else game


def launch(settings: GameSettings, port: int, log: Path) -> subprocess.Popen[bytes]:
    """Starts a game in its own process group, see `rulka.machine.processes.start_group`; `end_group` ends it.

    Args:
        settings: settings with the command.
        port: port for its plugin.
        log: file to which its output is appended.

    Raises:
        GameStartError: if the program cannot be started.
    """
    command = launch_command(settings, port)
    wine = {"WINEPREFIX": str(settings.prefix), "WINEDEBUG": "-all"} if settings.prefix else {}
    folder = settings.exe.parent if settings.exe else None  # the game looks for its data in its own folder
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with log.open("ab") as out:
            return start_group(command, os.environ | wine, out, folder)
    except OSError as error:
        message = f"the game cannot be started with {command[0]!r}: {error.strerror or error}"
        raise GameStartError(
            message, hint="Look at RULKA_GAME_EXE, RULKA_GAME_PREFIX and RULKA_GAME_COMMAND."
        ) from error


LOG_DIR = Path("runs/games")
START_LIMIT_S = 120.0
"""Timeout for a game to listen; the first start of a day takes a minute on slow disks."""
LOOK_S = 0.2
MAX_RESTARTS, RESTART_WINDOW_S = 5, 60.0
"""Restart budget of all games together."""
SUPERVISED_RETRY_S = 60.0
"""How long programs retry a supervised game, which may be restarting."""
PATIENCE_S = 10.0

_LOGGER = logging.getLogger(__name__)


class GameSupervisor:
    """Supervisor of games at consecutive ports; use it as a context manager.

    Args:
        settings: settings with the command and the first port.
        num_games: number of games.
        reports: folder for programs' reports of games that hang.
        log_dir: folder for one log per port.

    Attributes:
        games: process of the game at each port.
        num_restarts: number of restarts so far.
    """

    def __init__(self, settings: GameSettings, num_games: int, reports: Path, log_dir: Path) -> None:
        self._settings, self._reports, self._log_dir = settings, reports, log_dir
        self._ports = [settings.port + index for index in range(num_games)]
        self.games: dict[int, subprocess.Popen[bytes]] = {}
        self._budget = RestartBudget(MAX_RESTARTS, RESTART_WINDOW_S)
        self._is_ending, self._is_started = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self.num_restarts = 0
        self._thread = threading.Thread(target=self._watch, name="games", daemon=True)

    def start(self, limit_s: float = START_LIMIT_S) -> None:
        """Starts all games and waits until they listen.

        Raises:
            GameStartError: if the program cannot be started, a port is taken, or a game ends or does not listen.
        """
        taken = sorted(set(self._ports) & listening_ports())
        if taken:
            message = f"port {taken[0]} is taken already: a game or another program listens there"
            raise GameStartError(message, hint="End it, or set another RULKA_GAME_PORT.")
        self._thread.start()
        try:
            self._wait_until_all_listen(time.monotonic() + limit_s)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends all games started here; returns when they are gone."""
        self._is_ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def _wait_until_all_listen(self, limit_s: float) -> None:
        while not set(self._ports) <= listening_ports():
            if self._error is not None:
                raise self._error
            for port, game in list(self.games.items()):
                if game.poll() is not None:
                    message = f"the game at port {port} ended with exit code {game.returncode} before it listened"
                    raise GameStartError(message, hint=f"See {self._log(port).as_posix()}.")
            if time.monotonic() > limit_s:
                silent = sorted(set(self._ports) - listening_ports())
                message = f"the game at port {silent[0]} does not listen"
                raise GameStartError(message, hint=f"See {self._log(silent[0]).as_posix()}; is the plugin installed?")
            time.sleep(LOOK_S)
        self._is_started.set()

    def _watch(self) -> None:
        """Body of the thread: starts, restarts and finally ends the games."""
        try:
            for port in self._ports:
                self.games[port] = launch(self._settings, port, self._log(port))
            while not self._is_ending.wait(LOOK_S):
                if self._is_started.is_set():
                    self._replace_broken()
        except GameStartError as error:
            self._error = error
            _LOGGER.error("%s", error.for_people())
        finally:
            for game in self.games.values():
                end_group(game)

    def _replace_broken(self) -> None:
        for port, game in self.games.items():
            report = hang_report(self._reports, port)
            is_dead, hangs = game.poll() is not None, report.exists()
            if not is_dead and not hangs:
                continue
            reason = f"ended with exit code {game.returncode}" if is_dead else "hangs"
            if not self._budget.take():
                message = (
                    f"games were started again {MAX_RESTARTS} times in a minute; now the one at port {port} {reason}"
                )
                raise GameStartError(message, hint=f"See {self._log(port).as_posix()}.")
            _LOGGER.warning("the game at port %d %s; starting it again", port, reason)
            end_group(game)
            report.unlink(missing_ok=True)
            self.games[port] = launch(self._settings, port, self._log(port))
            self.num_restarts += 1

    def _log(self, port: int) -> Path:
        return self._log_dir / f"{port}.log"

    def __enter__(self) -> GameSupervisor:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@contextmanager
def running_games(settings: GameSettings, num_games: int) -> Iterator[GameLink]:
    """Yields the link to the first game; starts and ends the games if the settings have a command.

    Otherwise a person has started them.

    Args:
        settings: settings of this machine.
        num_games: number of games, at consecutive ports.

    Raises:
        GameStartError: if a game does not come up.
    """
    if not settings.starts_games:
        yield settings.link(PATIENCE_S)
        return
    with (
        tempfile.TemporaryDirectory(prefix="rulka-games-") as reports,
        GameSupervisor(settings, num_games, Path(reports), LOG_DIR),
    ):
        yield replace(settings.link(SUPERVISED_RETRY_S), reports=Path(reports))


def listening_ports() -> set[int]:
    """Returns the listening TCP ports (IPv4) of this machine."""
    found = psutil.net_connections(kind="tcp4")
    return {one.laddr.port for one in found if one.laddr and one.status == psutil.CONN_LISTEN}
