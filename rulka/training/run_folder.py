"""The folders of training runs: what they leave there, and what of it may go.

`final/` is the trained agent, which stays there: a run that is finished is delivered again, never trained again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import get_args

from rulka.agents.params import Algorithm
from rulka.runtime.checkpoint import Checkpoints, remove_unfinished
from rulka.runtime.experience_files import ExperienceFiles
from rulka.runtime.run_lock import RunInUseError, locked
from rulka.runtime.specs import rank_folders

FINAL_FOLDER = "final"

_NAME = re.compile(rf"({'|'.join(get_args(Algorithm))})-[0-9a-f]{{16}}")
_LOGGER = logging.getLogger(__name__)


def drop_experience(folder: Path) -> int:
    """Removes the experience of a run, by far the most of its bytes, and returns how many these were.

    Checkpoints and the trained agent stay. A run that goes on from a checkpoint without it gathers experience anew.
    """
    files = [ExperienceFiles(each, 0) for each in rank_folders(folder)]
    num_bytes = sum(file.stat().st_size for each in files for file in each.folder.rglob("*") if file.is_file())
    for each in files:
        each.clear()
    return num_bytes


def clean_up(runs: Path, current: Collection[Path]) -> None:
    """Removes what old runs can do without, and says what it was.

    That is half-written files of killed runs, and experience, of which the newest unfinished run of each algorithm
    keeps its own: a changed parameter is often changed back. The folder of a live process is left alone.

    Args:
        runs: the folder of all runs.
        current: folders of the runs that are about to go on, which this process has locked.
    """
    folders = [folder for folder in runs.iterdir() if _NAME.fullmatch(folder.name) and folder not in current]
    kept = set[str]()
    for folder in sorted(folders, key=_last_saved_s, reverse=True):
        with suppress(RunInUseError), locked(folder):
            remove_unfinished(folder)
            algorithm, name = folder.name.partition("-")[0], folder.as_posix()
            if not (folder / FINAL_FOLDER).exists() and Checkpoints(folder).files() and algorithm not in kept:
                kept.add(algorithm)
                _LOGGER.warning("%s, of other parameters, inputs or code, is kept: with those it goes on", name)
            elif num_bytes := drop_experience(folder):
                _LOGGER.warning("%s: %.1f MB of experience of an old run went, all else stays", name, num_bytes / 1e6)


def _last_saved_s(folder: Path) -> float:
    return max((file.stat().st_mtime for file in Checkpoints(folder).files()), default=0.0)
