"""Shared memory of a run: reserved so that it is really there, noted, and removed when a killed run left it behind.

A list of the names lies in the folder of the run while there is any. Where every process that could have removed the
memory was killed, the next start of any run removes what the list names.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import sys
from collections.abc import Sequence
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

from rulka.errors import UserError
from rulka.runtime.checkpoint import write_file

LIST_FILE = "shared_memory.json"
MEMORY_FOLDER = Path("/dev/shm")
"""Where Linux keeps it: a file system of limited size."""

_LOGGER = logging.getLogger(__name__)


class SharedMemoryError(UserError):
    """There is not enough shared memory for what collectors and learner share."""


def check_room(num_bytes: int) -> None:
    """Makes sure that there is room for all the shared memory of a run, where that can be known before.

    Args:
        num_bytes: that the run is going to reserve.

    Raises:
        SharedMemoryError: if there is less; the message holds both figures.
    """
    if sys.platform != "linux":
        return
    room = shutil.disk_usage(MEMORY_FOLDER).free
    if room < num_bytes:
        raise _too_small(num_bytes, f"{room >> 20} MiB are free")


def new_memory(num_bytes: int) -> SharedMemory:
    """Reserves shared memory; its creator has to close and unlink it.

    Raises:
        SharedMemoryError: if there is not enough.
    """
    memory = SharedMemory(create=True, size=num_bytes)
    if sys.platform != "linux":
        return memory
    try:
        # Linux hands out pages when they are first written, and ends a process that gets none with SIGBUS.
        handle = os.open(MEMORY_FOLDER / memory.name.lstrip("/"), os.O_RDWR)
        try:
            os.posix_fallocate(handle, 0, num_bytes)
        finally:
            os.close(handle)
    except OSError as error:
        memory.close()
        memory.unlink()
        if error.errno != errno.ENOSPC:
            raise
        raise _too_small(num_bytes, "others have taken it meanwhile") from error
    return memory


def note_memory(folder: Path, names: Sequence[str]) -> None:
    """Writes down which shared memory a run has reserved."""
    with write_file(folder / LIST_FILE) as file:
        file.write(json.dumps(list(names)).encode())


def remove_left_memory(folder: Path) -> int:
    """Removes what was noted in the folder of a run and is still there, and the note.

    Nobody else may be working in the folder, see `rulka.training.run_folder`.

    Returns:
        Bytes that were given back.
    """
    path = folder / LIST_FILE
    try:
        names = json.loads(path.read_bytes())
    except FileNotFoundError:
        return 0
    except ValueError:
        _LOGGER.warning("%s is damaged: shared memory of a killed run may be left until the next boot", path.as_posix())
        names = []
    num_bytes = 0
    for name in names:
        try:
            memory = SharedMemory(name)
        except FileNotFoundError:
            continue
        num_bytes += memory.size
        memory.close()
        memory.unlink()
    path.unlink()
    return num_bytes


def _too_small(num_bytes: int, why: str) -> SharedMemoryError:
    message = f"shared memory ({MEMORY_FOLDER}) is too small: training needs {_mib(num_bytes)} MiB more, and {why}"
    hint = (
        "In Docker start the container with --shm-size=1g (its default is 64 MiB); elsewhere enlarge it with"
        " `mount -o remount,size=1G /dev/shm`. Or lower train.num_collectors, cars_per_collector or block_steps."
    )
    return SharedMemoryError(message, hint=hint)


def _mib(num_bytes: int) -> int:
    return -(-num_bytes // (1 << 20))
