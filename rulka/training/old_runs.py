"""Folders of training runs, and the clean-up of old ones.

`final/` holds the trained agent and is kept: a finished run is delivered again, not trained again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from rulka.agents.params import ALGORITHMS
from rulka.runtime.checkpoint import Checkpoints, remove_unfinished
from rulka.runtime.experience_files import ExperienceFiles
from rulka.runtime.run_lock import RunInUseError, locked
from rulka.runtime.specs import rank_folders

FINAL_FOLDER = "final"

_NAME = re.compile(rf"({'|'.join(ALGORITHMS)})-[0-9a-f]{{16}}")
_LOGGER = logging.getLogger(__name__)


def drop_experience(folder: Path) -> int:
    """Removes the experience of a run, by far its largest part, and returns the number of bytes freed.

    Checkpoints and the trained agent stay. A run that resumes without its experience collects new experience first.
    """
    files = [ExperienceFiles(each, 0) for each in rank_folders(folder)]
    num_bytes = sum(file.stat().st_size for each in files for file in each.folder.rglob("*") if file.is_file())
    for each in files:
        each.clear()
    return num_bytes


def clean_up(runs: Path, current: Collection[Path]) -> None:
    """Removes and logs dispensable files of old runs: half-written files of killed runs, and experience.

    The newest unfinished run of each algorithm keeps its experience, because a changed parameter is often changed back.
    Folders locked by a live process are skipped.

    Args:
        runs: the folder of all runs.
        current: folders of the runs about to continue, locked by this process.
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
