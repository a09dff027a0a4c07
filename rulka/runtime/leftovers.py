"""Shared memory that a run left behind, because every process that could have removed it was killed.

A list of the names lies in the folder of the run while there is any; the next start removes what is still there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

from rulka.runtime.checkpoint import write_file

LIST_FILE = "shared_memory.json"
_LOGGER = logging.getLogger(__name__)


def note_memory(folder: Path, names: Sequence[str]) -> None:
    """Writes down which shared memory a run has reserved."""
    with write_file(folder / LIST_FILE) as file:
        file.write(json.dumps(list(names)).encode())


def remove_left_memory(folder: Path) -> None:
    """Removes what was noted in the folder of a run and is still there, and the note."""
    path = folder / LIST_FILE
    try:
        names = json.loads(path.read_bytes())
    except FileNotFoundError:
        return
    except ValueError:
        _LOGGER.warning("%s is damaged: shared memory of a killed run may be left until the next boot", path.as_posix())
        names = []
    for name in names:
        try:
            memory = SharedMemory(name)
        except FileNotFoundError:
            continue
        memory.close()
        memory.unlink()
    path.unlink()
