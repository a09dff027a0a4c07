"""The command that starts a game, and the process that it becomes."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from rulka.errors import UserError
from rulka.game.settings import GameSettings

WINE = "wine"
STOP_GRACE_S = 3.0
_PR_SET_PDEATHSIG = 1  # of Linux's prctl


class LaunchError(UserError):
    """A game cannot be started; the message says what is missing."""


def launch_command(settings: GameSettings, port: int) -> list[str]:
    """Returns the words of the command that starts a game whose plugin listens at a port.

    The port goes to TMInterface as a variable of its console, as in Linesight.

    Raises:
        LaunchError: if the settings do not say what to start.
    """
    if settings.command:
        return [word.replace("{port}", str(port)) for word in settings.command]
    if settings.exe is None:
        message = "nothing says which program the game is"
        raise LaunchError(message, hint="Set RULKA_GAME_EXE or RULKA_GAME_COMMAND; see docs/game.md.")
    game = [str(settings.exe), f"/configstring=set custom_port {port}"]
    return [WINE, *game] if settings.prefix else game


def launch_environment(settings: GameSettings, inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a game: that of this process, and Wine's prefix."""
    extra = {"WINEPREFIX": str(settings.prefix), "WINEDEBUG": "-all"} if settings.prefix else {}
    return dict(inherited) | extra


def launch(settings: GameSettings, port: int, log: Path) -> subprocess.Popen[bytes]:
    """Starts a game in a process group of its own, which on Linux dies with the thread that called this.

    Args:
        settings: what to start.
        port: where its plugin is to listen.
        log: gets what it prints; appended.

    Raises:
        LaunchError: if the program cannot be started.
    """
    command = launch_command(settings, port)
    folder = settings.exe.parent if settings.exe else None  # the game looks for its data where it lies
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with log.open("ab") as out:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=launch_environment(settings, os.environ),
                start_new_session=True,
                preexec_fn=_parent_death_signal(),
            )
    except OSError as error:
        message = f"the game cannot be started with {command[0]!r}: {error.strerror or error}"
        raise LaunchError(message, hint="Look at RULKA_GAME_EXE, RULKA_GAME_PREFIX and RULKA_GAME_COMMAND.") from error


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a game that `launch` started, with everything it started itself; nothing else is touched.

    Asks first, and kills what is left after `STOP_GRACE_S`.
    """
    family = _family(process)
    _signal(family, process, signal.SIGTERM)
    _, alive = psutil.wait_procs(family, STOP_GRACE_S)
    if alive:
        _signal(alive, process, getattr(signal, "SIGKILL", signal.SIGTERM))
        psutil.wait_procs(alive, STOP_GRACE_S)
    process.wait()


def _family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    if process.poll() is not None:  # the id may belong to somebody else by now
        return []
    try:
        parent = psutil.Process(process.pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _signal(family: list[psutil.Process], process: subprocess.Popen[bytes], number: int) -> None:
    """Signals the group, which has the id of its first process, and whoever left the group."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)  # the group outlives its first process, and no other can have its id
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.send_signal(number)


def _parent_death_signal() -> Callable[[], None] | None:
    """Returns what lets the system end a child whose parent is gone, where the system can."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up before the fork

    def tie() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    return tie
