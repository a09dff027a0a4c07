"""Where games are on this machine: facts of the machine, from the environment or the file `.env`, never parameters.

    RULKA_GAME_HOST     where games listen; 127.0.0.1 where it is not set
    RULKA_GAME_PORT     port of the first game, the next ones have the next numbers; 8478 where it is not set
    RULKA_GAME_SPEED    factor of the race clock; 10 where it is not set
    RULKA_GAME_MAP      map that games in their menus open, as the console command `map` names it
    RULKA_GAME_EXE      TmForever.exe, or TMInterface's loader; Rulka then starts and ends the games itself
    RULKA_GAME_PREFIX   prefix of Wine; RULKA_GAME_EXE is then started with `wine`
    RULKA_GAME_COMMAND  a whole command in the place of both, with {port} where the port goes
    RULKA_GAME_JUDGE    command of an outside judge, see `rulka.game.judge`, with {replay} where the replay's path goes

A variable of the environment goes before the file.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from dotenv import dotenv_values
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from rulka.errors import UserError
from rulka.game.link import GameLink
from rulka.game.protocol import BASE_PORT, LOOPBACK
from rulka.ports import HIGHEST_PORT, LOWEST_PORT

PREFIX = "RULKA_GAME_"

_Program = Annotated[Path, AfterValidator(Path.expanduser)]


def _words(command: object) -> object:
    return shlex.split(command) if isinstance(command, str) else command


class GameSettings(BaseModel):
    """What this machine says of its games.

    Attributes:
        host: where they listen.
        port: of the first one.
        speed: factor of the race clock.
        map: that a game in its menus opens; empty leaves that to a person.
        exe: the game's program; None where a person starts the games.
        prefix: of Wine; None on Windows.
        command: words of a whole command in the place of both, `{port}` inside; empty where there is none.
        judge: words of the command of an outside judge, `{replay}` inside; empty where there is none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = LOOPBACK
    port: Annotated[int, Field(ge=LOWEST_PORT, le=HIGHEST_PORT)] = BASE_PORT
    speed: Annotated[float, Field(ge=0.01, le=1000.0)] = 10.0
    map: str = ""
    exe: _Program | None = None
    prefix: _Program | None = None
    command: Annotated[tuple[str, ...], BeforeValidator(_words)] = ()
    judge: Annotated[tuple[str, ...], BeforeValidator(_words)] = ()

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        problem = ""
        if self.command and (self.exe or self.prefix):
            problem = f"{PREFIX}COMMAND stands in the place of {PREFIX}EXE and {PREFIX}PREFIX: set it or the two others"
        elif self.command and not any("{port}" in word for word in self.command):
            problem = f"{PREFIX}COMMAND does not say where the port goes: write {{port}} in it"
        elif self.prefix and not self.exe:
            problem = f"{PREFIX}PREFIX is set without {PREFIX}EXE: name the program that Wine is to start"
        elif self.judge and not any("{replay}" in word for word in self.judge):
            problem = f"{PREFIX}JUDGE does not say where the replay goes: write {{replay}} in it"
        if problem:
            raise ValueError(problem)
        return self

    @property
    def starts_games(self) -> bool:
        """Whether Rulka starts the games itself."""
        return bool(self.command) or self.exe is not None

    def link(self, patience_s: float) -> GameLink:
        """Returns the link to the first game.

        Args:
            patience_s: how long to wait for a game that does not listen.
        """
        return GameLink(self.host, self.port, speed=self.speed, patience_s=patience_s, map_name=self.map)


class GameSettingsError(UserError):
    """A setting of the game is unknown, out of range or contradicts another; the message names it."""


def read_game_settings(environment: Mapping[str, str] | None = None, file: Path = Path(".env")) -> GameSettings:
    """Reads the settings.

    Args:
        environment: in the place of the environment of this process.
        file: need not exist.

    Raises:
        GameSettingsError: naming the setting and what it may be.
    """
    values = {**dotenv_values(file), **(os.environ if environment is None else environment)}
    given = {
        name.removeprefix(PREFIX).lower(): value for name, value in values.items() if value and name.startswith(PREFIX)
    }
    try:
        return GameSettings.model_validate(given)
    except ValidationError as error:
        known = ", ".join(PREFIX + name.upper() for name in GameSettings.model_fields)
        raise GameSettingsError("; ".join(map(_problem, error.errors())), hint=f"Known are {known}.") from error


def _problem(problem: ErrorDetails) -> str:
    rule = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    name = PREFIX + "".join(map(str, problem["loc"][:1])).upper()
    if problem["type"] == "extra_forbidden":
        return f"{name} is no setting of the game"
    return f"{name} {rule}, got {problem['input'][:60]!r}" if problem["loc"] else rule
