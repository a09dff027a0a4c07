"""Versions promoted agents and nights with DVC: they are kept permanently and are not outputs of a stage."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rulka.machine.errors import UserError
from rulka.machine.terminal import tell

DVC_FOLDER = Path(".dvc")


def keep_by_dvc(folders: Sequence[Path], done: str) -> None:
    """Adds folders to DVC, and says on standard error how to commit them.

    Args:
        folders: existing folders.
        done: what has succeeded already, as a sentence without its full stop.

    Raises:
        UserError: if DVC fails or cannot store them.
    """
    names = [folder.as_posix() for folder in folders]
    named = " and ".join(names)
    if not DVC_FOLDER.is_dir():
        tell(f"note: there is no {DVC_FOLDER} here, so that {named} has no versions")
        return
    files = sorted(f"{name}.dvc" for name in names)
    said = ""
    for command in (["add", *names], ["status", "--quiet", *files]):  # `dvc add` succeeds also where its cache is full
        call = [sys.executable, "-m", "dvc", "--wait-for-lock", *command]
        answer = subprocess.run(call, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        said += answer.stderr
        if answer.returncode != 0:
            message = f"{done}, but DVC has not taken in {named}: {said.strip()}"
            raise UserError(message, hint=f"When that is mended: `dvc add {' '.join(names)}`.")
    tell(f"note: under DVC: {named}; `git add {' '.join(files)} && git commit` keeps this version")
