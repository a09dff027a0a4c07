"""The folders of training runs: what a finished run leaves there, what killed runs left behind.

`final/` is the trained agent. `delivered.json` says that it became the output of the stage, and what `dvc.lock` said of
`train` at that moment.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import get_args

from rulka.agents.params import Algorithm
from rulka.graph import read_lock
from rulka.provenance import hash_json
from rulka.runtime.checkpoint import Checkpoints, remove_unfinished, write_file
from rulka.runtime.experience_files import ExperienceFiles
from rulka.runtime.live import LIVE_FILE
from rulka.runtime.run_lock import RunInUseError, locked
from rulka.runtime.specs import rank_folders

FINAL_FOLDER = "final"
DELIVERY_FILE = "delivered.json"
NUM_KEPT = 1
"""Unfinished runs of other fingerprints that are kept for each algorithm: a changed parameter is often changed back."""

_NAME = re.compile(rf"({'|'.join(get_args(Algorithm))})-[0-9a-f]{{16}}")
_LOGGER = logging.getLogger(__name__)


def dvc_record() -> str | None:
    """Returns a hash of what `dvc.lock` says of stage `train`; None where DVC has recorded no training yet.

    Raises:
        LockFileError: if the file is damaged.
    """
    entry = read_lock().get("train")
    return None if entry is None else hash_json(entry)


def note_delivery(folder: Path) -> None:
    """Notes that the trained agent of a run is about to become the stage's output, which DVC has yet to record."""
    with write_file(folder / DELIVERY_FILE) as file:
        file.write(json.dumps({"dvc_record": dvc_record()}).encode())


def is_recorded(folder: Path) -> bool:
    """True if DVC has recorded the output that a run became.

    DVC writes its record when the stage has ended. As long as it still says what it said when the output was put in
    place, DVC or the machine was stopped before that, and would run the stage again.
    """
    try:
        note = json.loads((folder / DELIVERY_FILE).read_bytes())
        recorded_then = note["dvc_record"]
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError):
        _LOGGER.warning("%s is damaged: the trained agent counts as not recorded", (folder / DELIVERY_FILE).as_posix())
        return False
    return recorded_then != dvc_record()


def forget_run(folder: Path) -> int:
    """Removes all that is only there to go on from, or to be delivered again; metrics stay.

    Returns:
        Bytes that were freed on the disk.
    """
    num_bytes = _size_of_state(folder)
    Checkpoints(folder).clear()
    drop_experience(folder)
    if (folder / FINAL_FOLDER).exists():
        shutil.rmtree(folder / FINAL_FOLDER)
    for name in (LIVE_FILE, DELIVERY_FILE):
        (folder / name).unlink(missing_ok=True)
    return num_bytes - _size_of_state(folder)


def drop_experience(folder: Path) -> None:
    """Removes the experience of a run that was delivered: by far the most of its bytes, and nobody learns from it.

    Its checkpoints stay: should the trained agent be damaged before DVC has it, it is chosen again from them.
    """
    for each in rank_folders(folder):
        ExperienceFiles(each, 0).clear()


def clean_up(runs: Path, current: Collection[Path]) -> None:
    """Removes what runs left behind that are not going on, wherever in `runs` they lie, and says what it was.

    Half-written files of killed runs go. Of unfinished runs of other fingerprints the
    newest `NUM_KEPT` of each algorithm keep their checkpoints and experience, so that one can go back to them; of all
    others only the metrics stay. The folder of a live process is left alone.

    Args:
        runs: the folder of all runs.
        current: folders of the runs that are about to go on, which this process has locked.
    """
    folders = [folder for folder in runs.iterdir() if _NAME.fullmatch(folder.name) and folder not in current]
    num_kept = dict.fromkeys(get_args(Algorithm), 0)
    for folder in sorted(folders, key=_last_change_s, reverse=True):
        algorithm = folder.name.partition("-")[0]
        try:
            with locked(folder):
                num_kept[algorithm] += _clean(folder, may_stay=num_kept[algorithm] < NUM_KEPT)
        except RunInUseError:
            continue


def _clean(folder: Path, *, may_stay: bool) -> bool:
    """Cleans the folder of one run; returns whether it can be gone on with."""
    remove_unfinished(folder)
    if not _size_of_state(folder):
        return False
    if may_stay and not is_recorded(folder):
        _LOGGER.warning(
            "%s, of other parameters, inputs or code, is kept with %s: with those it goes on",
            folder.as_posix(),
            _megabytes(_size_of_state(folder)),
        )
        return True
    _LOGGER.warning("%s: removed %s of an old run; its metrics stay", folder.as_posix(), _megabytes(forget_run(folder)))
    return False


def _state_files(folder: Path) -> list[Path]:
    inside = (*(ExperienceFiles(each, 0).folder for each in rank_folders(folder)), folder / FINAL_FOLDER)
    return [*Checkpoints(folder).files(), *(file for part in inside for file in part.rglob("*") if file.is_file())]


def _size_of_state(folder: Path) -> int:
    return sum(file.stat().st_size for file in _state_files(folder))


def _last_change_s(folder: Path) -> float:
    return max((file.stat().st_mtime for file in _state_files(folder)), default=0.0)


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB"
