"""The game, where this machine has settings of one: its program, the plugin's folder, and the link."""

from __future__ import annotations

import shutil
from pathlib import Path

from rulka.doctor.finding import Finding, State
from rulka.game.plugin import PLUGIN_FILE
from rulka.game.settings import GameSettings, read_game_settings
from rulka.game.supervise import launch_command
from rulka.ports import LOOPBACK, holder

PLUGINS = ("Documents/TMInterface/Plugins", "My Documents/TMInterface/Plugins")
"""Where TMInterface looks for plugins, below the folder of a user."""


def game() -> list[Finding]:
    """Looks at program, plugin and link; says nothing where this machine has no settings of a game."""
    settings = read_game_settings()
    if settings == GameSettings():
        return []
    return [_program(settings), *_plugin(settings), _link(settings)]


def _program(settings: GameSettings) -> Finding:
    where = f"{settings.host}:{settings.port}"
    if not settings.starts_games:
        return Finding("game", State.OK, f"expected at {where}, started by you")
    command = launch_command(settings, settings.port)
    program = settings.exe if settings.exe and not settings.prefix else Path(command[0])
    missing = [str(path) for path in (settings.exe, settings.prefix) if path is not None and not path.exists()]
    if shutil.which(str(program)) is None and not program.is_file():
        missing.insert(0, str(program))
    if missing:
        hint = "look at RULKA_GAME_* in the environment and in .env"
        return Finding("game", State.WRONG, f"{missing[0]} is not there", hint)
    return Finding("game", State.OK, f"started by Rulka at {where} with {command[0]}")


def _plugin(settings: GameSettings) -> list[Finding]:
    """Looks for our plugin in the prefix of Wine, or below the home of the user."""
    homes = sorted((settings.prefix / "drive_c" / "users").glob("*")) if settings.prefix else [Path.home()]
    folders = [home / name for home in homes for name in PLUGINS if (home / name).is_dir()]
    if not folders:
        # A command of one's own may start a game whose folder cannot be known.
        return []
    lying = [folder / PLUGIN_FILE.name for folder in folders if (folder / PLUGIN_FILE.name).is_file()]
    copy = f"copy {PLUGIN_FILE} there, see docs/game.md"
    if not lying:
        return [Finding("game plugin", State.WRONG, f"{PLUGIN_FILE.name} is not in {folders[0]}", copy)]
    if any(file.read_bytes() != PLUGIN_FILE.read_bytes() for file in lying):
        return [Finding("game plugin", State.NOTE, f"{lying[0]} is not that of this version", copy)]
    return [Finding("game plugin", State.OK, str(lying[0]))]


def _link(settings: GameSettings) -> Finding:
    """Looks whether somebody listens, and asks nothing: a plugin serves one program, which may be a training."""
    where = f"{settings.host}:{settings.port}"
    if settings.host not in LOOPBACK:
        return Finding("game link", State.UNKNOWN, f"not looked at: {where} is on another machine")
    if found := holder(settings.host, settings.port):
        return Finding("game link", State.OK, f"{found} listens at {where}")
    if settings.starts_games:
        return Finding("game link", State.OK, f"nobody listens at {where} yet; Rulka starts the game when it is needed")
    hint = "start the game with TMInterface and the plugin, see docs/game.md"
    return Finding("game link", State.NOTE, f"nobody listens at {where}", hint)
