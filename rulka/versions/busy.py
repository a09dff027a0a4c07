"""Which DVC processes run a stage here, by the file in which they note the paths that they read and write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil

from rulka.errors import UserError

PATHS_LOCK_FILE = Path(".dvc/tmp/rwlock")


class DvcError(UserError):
    """DVC cannot do what was asked."""


def holders() -> dict[int, str]:
    """Returns the processes that hold paths of this repository, with their commands as they are typed.

    Raises:
        DvcError: if the file names a process that is no DVC; it would hold for ever.
    """
    locks = _locks()
    readers = [each for found in locks.get("read", {}).values() for each in found]
    found = {each["pid"]: _typed(each["cmd"]) for each in (*readers, *locks.get("write", {}).values())}
    return {pid: command for pid, command in found.items() if is_dvc(pid)}


def writers() -> dict[Path, str]:
    """Returns the paths that a DVC writes now, with the process that does.

    Raises:
        DvcError: as `holders`.
    """
    alive = holders()
    written = _locks().get("write", {}).items()
    return {Path(path): f"process {pid}, `{alive[pid]}`" for path, each in written if (pid := each["pid"]) in alive}


def _typed(command: str) -> str:
    """Returns `dvc repro` for `/where/packages/lie/dvc/__main__.py repro`, which is how DVC notes it."""
    program, *arguments = command.split(" ", 1)
    path = Path(program)
    return " ".join([path.parent.name if path.name == "__main__.py" else path.name, *arguments])


def _locks() -> dict[str, Any]:
    try:
        return json.loads(PATHS_LOCK_FILE.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        # There is none before the first stage, and it is being written now.
        return {}


def is_dvc(pid: int) -> bool:
    """Returns whether a process that holds a lock still runs.

    Raises:
        DvcError: if the number is another program's by now.
    """
    try:
        command = psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
    if not command:
        # It has ended, and its parent has not asked how.
        return False
    # `rulka remote push` and its like are DVC too: they call it within their own process.
    if any("dvc" in word for word in command) or {"rulka", "rulka.cli"} & {Path(word).name for word in command[:3]}:
        return True
    message = f"{PATHS_LOCK_FILE} names process {pid}, which is no DVC but `{' '.join(command)}`"
    raise DvcError(message, hint=f"A DVC that was killed left it there: remove {PATHS_LOCK_FILE} and start again.")
