"""Settings of the games on this machine, from the environment or the file `.env`, never from parameters.

    RULKA_GAME_HOST     host on which games listen; default 127.0.0.1
    RULKA_GAME_PORT     port of the first game, further ones use consecutive ports; default 8478
    RULKA_GAME_SPEED    factor of the race clock; default 10
    RULKA_GAME_MAP      map that games in their menus open, as the console command `map` names it
    RULKA_GAME_EXE      TmForever.exe, or TMInterface's loader; Rulka then starts and ends the games itself
    RULKA_GAME_PREFIX   Wine prefix; RULKA_GAME_EXE is then started with `wine`
    RULKA_GAME_COMMAND  full command that replaces both, with {port} as the placeholder for the port
    RULKA_GAME_JUDGE    command of an external judge, see `rulka.game.judge`, with {replay} for the replay's path

Environment variables override the file.
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

from rulka.game.link import GameLink
from rulka.game.protocol import BASE_PORT, LOOPBACK
from rulka.machine.errors import UserError
from rulka.machine.ports import HIGHEST_PORT, LOWEST_PORT

PREFIX = "RULKA_GAME_"

_Program = Annotated[Path, AfterValidator(Path.expanduser)]


def _words(command: object) -> object:
    return shlex.split(command) if isinstance(command, str) else command


class GameSettings(BaseModel):
    """This machine's settings for its games.

    Attributes:
        host: host on which they listen.
        port: port of the first game.
        speed: factor of the race clock.
        map: map that a game in its menus opens; empty leaves that to a person.
        exe: the game's executable; None if a person starts the games.
        prefix: Wine prefix; None on Windows.
        command: words of a full command that replaces both, with `{port}`; empty if not set.
        judge: words of an external judge's command, with `{replay}`; empty if not set.
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
        """True if Rulka starts the games itself."""
        return bool(self.command) or self.exe is not None

    def link(self, patience_s: float) -> GameLink:
        """Returns the link to the first game.

        Args:
            patience_s: how long to retry while the game does not listen.
        """
        return GameLink(self.host, self.port, speed=self.speed, patience_s=patience_s, map_name=self.map)


def read_game_settings(environment: Mapping[str, str] | None = None, file: Path = Path(".env")) -> GameSettings:
    """Reads the settings.

    Args:
        environment: replaces the environment of this process.
        file: an `.env` file; need not exist.

    Raises:
        UserError: if a setting is invalid; names it and its allowed values.
    """
    values = {**dotenv_values(file), **(os.environ if environment is None else environment)}
    given = {
        name.removeprefix(PREFIX).lower(): value for name, value in values.items() if value and name.startswith(PREFIX)
    }
    try:
        return GameSettings.model_validate(given)
    except ValidationError as error:
        known = ", ".join(PREFIX + name.upper() for name in GameSettings.model_fields)
        raise UserError("; ".join(map(_problem, error.errors())), hint=f"Known are {known}.") from error


def _problem(problem: ErrorDetails) -> str:
    rule = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    name = PREFIX + "".join(map(str, problem["loc"][:1])).upper()
    if problem["type"] == "extra_forbidden":
        return f"{name} is no setting of the game"
    return f"{name} {rule}, got {problem['input'][:60]!r}" if problem["loc"] else rule
