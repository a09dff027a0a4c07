"""Where games are on this machine: facts of the machine, from the environment or the file `.env`, never parameters.

    RULKA_GAME_HOST     where games listen; 127.0.0.1 where it is not set
    RULKA_GAME_PORT     port of the first game, the next ones have the next numbers; 8478 where it is not set
    RULKA_GAME_SPEED    factor of the race clock; 10 where it is not set
    RULKA_GAME_MAP      map that games in their menus open, as the console command `map` names it
    RULKA_GAME_EXE      TmForever.exe, or TMInterface's loader; Rulka then starts and ends the games itself
    RULKA_GAME_PREFIX   prefix of Wine; RULKA_GAME_EXE is then started with `wine`
    RULKA_GAME_COMMAND  a whole command in the place of both, with {port} where the port goes

A variable of the environment goes before the file.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rulka.env_file import ENV_FILE, read_env_file
from rulka.errors import UserError
from rulka.game.link import GameLink
from rulka.game.protocol import BASE_PORT, LOOPBACK
from rulka.ports import HIGHEST_PORT, LOWEST_PORT

PREFIX = "RULKA_GAME_"
NAMES = ("HOST", "PORT", "SPEED", "MAP", "EXE", "PREFIX", "COMMAND")


class GameSettingsError(UserError):
    """A setting of the game is unknown, out of range or contradicts another; the message names it."""


@dataclass(frozen=True)
class GameSettings:
    """What this machine says of its games.

    Attributes:
        host: where they listen.
        port: of the first one.
        speed: factor of the race clock.
        map_name: map that a game in its menus opens; empty leaves that to a person.
        exe: the game's program; None where a person starts the games.
        prefix: of Wine; None on Windows.
        command: words of a whole command in the place of both, `{port}` inside; empty where there is none.
    """

    host: str = LOOPBACK
    port: int = BASE_PORT
    speed: float = 10.0
    map_name: str = ""
    exe: Path | None = None
    prefix: Path | None = None
    command: tuple[str, ...] = ()

    @property
    def starts_games(self) -> bool:
        """Whether Rulka starts the games itself."""
        return bool(self.command) or self.exe is not None

    def link(self, patience_s: float) -> GameLink:
        """Returns the link to the first game.

        Args:
            patience_s: how long to wait for a game that does not listen.
        """
        return GameLink(self.host, self.port, speed=self.speed, patience_s=patience_s, map_name=self.map_name)


def read_game_settings(environment: Mapping[str, str] | None = None, file: Path = ENV_FILE) -> GameSettings:
    """Reads the settings.

    Args:
        environment: in the place of the environment of this process.
        file: need not exist.

    Raises:
        GameSettingsError: naming the setting and where it stands.
        EnvFileError: at a line of the file that cannot be read.
    """
    values = read_env_file(file, PREFIX)
    values |= {
        name: value
        for name, value in (os.environ if environment is None else environment).items()
        if name.startswith(PREFIX)
    }
    unknown = sorted(set(values) - {PREFIX + name for name in NAMES})
    if unknown:
        message = f"unknown settings of the game: {', '.join(unknown)}"
        raise GameSettingsError(message, hint=f"Known are {', '.join(PREFIX + name for name in NAMES)}.")
    given = {name: values[PREFIX + name] for name in NAMES if values.get(PREFIX + name)}
    settings = GameSettings(
        host=given.get("HOST", LOOPBACK),
        port=int(_number(given, "PORT", BASE_PORT, LOWEST_PORT, HIGHEST_PORT)),
        speed=_number(given, "SPEED", 10.0, 0.01, 1000.0),
        map_name=given.get("MAP", ""),
        exe=Path(given["EXE"]).expanduser() if "EXE" in given else None,
        prefix=Path(given["PREFIX"]).expanduser() if "PREFIX" in given else None,
        command=_words(given.get("COMMAND", "")),
    )
    if settings.command and (settings.exe or settings.prefix):
        message = "RULKA_GAME_COMMAND stands in the place of RULKA_GAME_EXE and RULKA_GAME_PREFIX"
        raise GameSettingsError(message, hint="Set the command or the two others.")
    if settings.prefix and not settings.exe:
        message = "RULKA_GAME_PREFIX is set without RULKA_GAME_EXE"
        raise GameSettingsError(message, hint="Name the program that Wine is to start.")
    return settings


def _number(given: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    text = given.get(name)
    if text is None:
        return default
    try:
        number = int(text) if isinstance(default, int) else float(text)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        message = f"{PREFIX}{name} is a number from {least:g} to {most:g}, got {text[:60]!r}"
        raise GameSettingsError(message)
    return number


def _words(command: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        message = f"RULKA_GAME_COMMAND cannot be read: {error}"
        raise GameSettingsError(message) from error
    if words and not any("{port}" in word for word in words):
        message = "RULKA_GAME_COMMAND does not say where the port goes"
        raise GameSettingsError(message, hint="Write {port} in it.")
    return words
