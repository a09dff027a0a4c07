"""What can be wrong with the machine that a run needs, and what to do about it."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import psutil

from rulka.errors import UserError
from rulka.game.settings import GameSettings, read_game_settings
from rulka.game.supervise import launch_command
from rulka.params import read_params

CONSTRAINTS_FILE = Path("constraints.txt")
CHECKED_PACKAGES = ("torch", "numba", "numpy", "gymnasium", "prefect", "fastapi", "sqlalchemy", "dvc")
"""Those whose other versions are known not to work together."""

WRITTEN = (".", "dvc.lock", ".dvc", ".dvc/tmp", ".dvc/cache", ".prefect", ".prefect/prefect.db", "data", "runs")
"""What a run writes in the root of the project, as far as it exists."""

FINE_AT_THE_PORT = {
    "nobody": "free for `rulka up`",
    "a Prefect server that takes this project's password": "`rulka up` runs",
}
MIN_DISK_GB = 5.0
MIN_MEMORY_GB = 6.0


class Finding(NamedTuple):
    """One thing that was looked at.

    Attributes:
        name: what was looked at.
        is_fine: whether a run can go on with it.
        text: what was found, and where it is not fine what to do.
    """

    name: str
    is_fine: bool
    text: str


def examine(find_server: Callable[[], tuple[str, str]]) -> list[Finding]:
    """Looks at everything.

    Args:
        find_server: returns where `rulka up` puts Prefect's server, and who answers there, as one of the texts of
            `flows.server.Occupant`; or raises UserError.
    """
    return [
        _python(),
        *_packages(),
        _imports(),
        _device(),
        _parameters(),
        _folder(),
        _versioning(),
        _disk(),
        _memory(),
        _server(find_server),
        *_game(),
    ]


def _python() -> Finding:
    found = f"{sys.version_info.major}.{sys.version_info.minor}"
    is_fine = found in ("3.11", "3.12")
    return Finding("python", is_fine, found if is_fine else f"{found}; make a new .venv with Python 3.11 or 3.12")


def _packages() -> list[Finding]:
    lines = CONSTRAINTS_FILE.read_text(encoding="utf-8").splitlines() if CONSTRAINTS_FILE.is_file() else []
    pinned = {name.lower(): pin for name, _, pin in (line.partition("==") for line in lines)}
    return [_package(name, pinned.get(name)) for name in CHECKED_PACKAGES]


def _package(name: str, pinned: str | None) -> Finding:
    try:
        found = version(name).partition("+")[0]
    except PackageNotFoundError:
        return Finding(name, False, "not installed; run `make setup`")
    if pinned in (None, found):
        return Finding(name, True, found)
    return Finding(name, False, f"{found} instead of {pinned}; run `make setup` in a new .venv")


def _imports() -> Finding:
    try:
        for name in ("torch", "numba"):
            importlib.import_module(name)
    except (ImportError, OSError) as error:
        return Finding("compute", False, f"{error}; run `make setup` in a new .venv")
    return Finding("compute", True, f"{os.cpu_count()} cores")


def _device() -> Finding:
    """Says where networks run; a GPU that is there and cannot be used ends no run, unless it was asked for."""
    try:
        chosen = importlib.import_module("rulka.device").choose_device()
    except UserError as error:
        return Finding("device", False, error.for_people())
    except (ImportError, OSError):
        return Finding("device", False, "not looked at: torch cannot be imported")
    return Finding("device", True, f"{chosen.device}: {chosen.why}")


def _parameters() -> Finding:
    try:
        read_params()
    except UserError as error:
        return Finding("params.yaml", False, error.for_people())
    return Finding("params.yaml", True, "complete")


def unwritable_paths() -> list[Path]:
    """Returns what a run writes in this folder, exists, and cannot be written."""
    return [Path(name) for name in WRITTEN if Path(name).exists() and not os.access(name, os.W_OK)]


def _folder() -> Finding:
    if paths := unwritable_paths():
        names = ", ".join(str(path) for path in paths)
        return Finding("folder", False, f"{names} in {Path.cwd()}: not writable; change the owner or the mode")
    return Finding("folder", True, str(Path.cwd()))


def _versioning() -> Finding:
    local = Path(".dvc/config.local")
    if Path(".git").exists() or (local.is_file() and "no_scm" in local.read_text(encoding="utf-8")):
        return Finding("versioning", True, "ready")
    return Finding("versioning", False, "no git repository; run `.venv/bin/dvc config --local core.no_scm true`")


def _disk() -> Finding:
    free_gb = shutil.disk_usage(".").free / 1e9
    advice = "" if free_gb >= MIN_DISK_GB else f"; a run wants {MIN_DISK_GB:.0f} GB"
    return Finding("disk", not advice, f"{free_gb:.0f} GB free{advice}")


def _memory() -> Finding:
    free_gb = psutil.virtual_memory().available / 1e9
    advice = "" if free_gb >= MIN_MEMORY_GB else f"; a run takes up to {MIN_MEMORY_GB:.0f} GB, end something else first"
    return Finding("memory", not advice, f"{free_gb:.0f} GB free{advice}")


def _server(find_server: Callable[[], tuple[str, str]]) -> Finding:
    if unwritable_paths():
        return Finding("server", False, "not looked at: its password lies in .prefect, which cannot be written")
    try:
        url, found = find_server()
    except UserError as error:
        return Finding("server", False, error.for_people())
    if found in FINE_AT_THE_PORT:
        return Finding("server", True, f"{url}: {FINE_AT_THE_PORT[found]}")
    advice = "end it, or choose another port with PREFECT_API_URL=http://127.0.0.1:PORT/api in .env"
    return Finding("server", False, f"{url} is taken by {found}; {advice}")


def _game() -> list[Finding]:
    """Says nothing where this machine has no settings of a game."""
    try:
        settings = read_game_settings()
    except UserError as error:
        return [Finding("game", False, error.for_people())]
    if settings == GameSettings():
        return []
    where = f"{settings.host}:{settings.port}"
    if not settings.starts_games:
        return [Finding("game", True, f"expected at {where}, started by you")]
    command = launch_command(settings, settings.port)
    program = settings.exe if settings.exe and not settings.prefix else Path(command[0])
    missing = [str(path) for path in (settings.exe, settings.prefix) if path is not None and not path.exists()]
    if shutil.which(str(program)) is None and not program.is_file():
        missing.insert(0, str(program))
    if missing:
        text = f"{missing[0]} is not there; look at RULKA_GAME_* in the environment and in .env"
        return [Finding("game", False, text)]
    return [Finding("game", True, f"started by Rulka at {where} with {command[0]}")]
