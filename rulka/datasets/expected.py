"""Whether recordings that were here are missing: nobody is to train on the built-in driver's races instead, unasked."""

from __future__ import annotations

from pathlib import Path

from rulka.errors import UserError
from rulka.graph import read_lock

STAGE = "races"


class MissingRecordingsError(UserError):
    """No recording is there, though some are wanted or were used before."""


def refuse_missing(folder: Path) -> None:
    """Checks that a folder without recordings is one that never had any.

    Args:
        folder: where they would lie, as `dvc.yaml` names it.

    Raises:
        MissingRecordingsError: if DVC tracks recordings there, or the last run of the stage `races` read some.
        LockFileError: if what DVC remembers of that run is damaged.
    """
    tracked = folder.with_name(folder.name + ".dvc")
    instead = "or set races.source in params.yaml to driver to race with the built-in driver instead."
    if tracked.exists():
        message = f"there are no recordings in {folder.as_posix()}, though {tracked.as_posix()} says that there are"
        raise MissingRecordingsError(message, hint=f"Run `dvc pull` or `dvc checkout {tracked.as_posix()}`, {instead}")
    if _num_bytes_before(folder):
        message = f"there are no recordings in {folder.as_posix()}, though the last run of the stage {STAGE} used some"
        hint = f"They are no part of the repository: copy them there again, {instead}"
        raise MissingRecordingsError(message, hint=hint)


def _num_bytes_before(folder: Path) -> int:
    """Returns the size of the folder when the stage last ran; 0 where that is not known or it held empty files only."""
    dependencies = read_lock().get(STAGE, {}).get("deps", [])
    return next((int(dep.get("size", 0)) for dep in dependencies if dep["path"] == folder.as_posix()), 0)
