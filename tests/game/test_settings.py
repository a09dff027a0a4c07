"""Settings of the machine, and the command that they lead to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rulka.game.settings import GameSettings, read_game_settings
from rulka.game.supervise import GameStartError, launch, launch_command
from rulka.machine.errors import UserError

NO_FILE = Path("none/.env")


def read(**values: str) -> GameSettings:
    return read_game_settings({"PATH": "x"} | {f"RULKA_GAME_{name}": value for name, value in values.items()}, NO_FILE)


def test_nothing_set_means_a_game_that_a_person_started() -> None:
    settings = read()
    assert (settings.host, settings.port, settings.starts_games) == ("127.0.0.1", 8478, False)
    with pytest.raises(GameStartError, match="nothing says which program"):
        launch_command(settings, 8478)


def test_the_file_is_read_and_the_environment_goes_before_it(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text(
        "# the game\n\nexport RULKA_GAME_PORT=9000\nRULKA_GAME_EXE = '/games/Tm Forever/TmForever.exe'\nOTHER=1=2\n"
        'RULKA_GAME_PREFIX="/wine"\n'
    )
    settings = read_game_settings({"RULKA_GAME_PORT": "9100"}, file)
    assert settings.port == 9100
    assert settings.exe == Path("/games/Tm Forever/TmForever.exe")
    assert settings.prefix == Path("/wine")


def test_commands() -> None:
    windows = read(EXE="TmForever.exe")
    assert launch_command(windows, 8479) == ["TmForever.exe", "/configstring=set custom_port 8479"]
    assert launch_command(read(COMMAND="run 'a b' --port={port}"), 7) == ["run", "a b", "--port=7"]


def test_wine_gets_the_program_and_its_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wine = tmp_path / "wine"
    wine.write_text('#!/bin/sh\necho "$WINEPREFIX $PWD $@"\n')
    wine.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    game = launch(read(EXE=f"{tmp_path}/TmForever.exe", PREFIX="/wine"), 8480, tmp_path / "log")
    assert game.wait() == 0
    said = (tmp_path / "log").read_text()
    assert said == f"/wine {tmp_path} {tmp_path}/TmForever.exe /configstring=set custom_port 8480\n"


BAD = {
    "RULKA_GAME_PORT should be greater than or equal to 1, got '0'": {"PORT": "0"},
    "RULKA_GAME_SPEED": {"SPEED": "nan"},
    "RULKA_GAME_PROT is no setting of the game": {"PROT": "1"},
    "does not say where the port goes": {"COMMAND": "run"},
    "RULKA_GAME_COMMAND No closing quotation": {"COMMAND": "run '{port}"},
    "does not say where the replay goes": {"JUDGE": "run"},
    "in the place of": {"COMMAND": "run {port}", "EXE": "a.exe"},
    "without RULKA_GAME_EXE": {"PREFIX": "/wine"},
}


def test_bad_settings_are_named() -> None:
    for message, values in BAD.items():
        with pytest.raises(UserError, match=message):
            read(**values)
