"""The command that starts a game, and the process that it becomes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from rulka.errors import UserError
from rulka.game.settings import GameSettings
from rulka.processes import start_group

WINE = "wine"


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
    """Starts a game in a process group of its own, see `rulka.processes.start_group`; `end_group` ends it.

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
            return start_group(command, launch_environment(settings, os.environ), out, folder)
    except OSError as error:
        message = f"the game cannot be started with {command[0]!r}: {error.strerror or error}"
        raise LaunchError(message, hint="Look at RULKA_GAME_EXE, RULKA_GAME_PREFIX and RULKA_GAME_COMMAND.") from error
