"""The disk: what is free, and what of this project takes how much."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from rulka.doctor.finding import Finding, State
from rulka.folders import DATA, RUNS

MIN_DISK_GB = 5.0
PLACES = (DATA, Path(".dvc/cache"), RUNS, Path(".prefect"))
"""What grows with use. A file that is linked into several of them counts for the first."""


def disk() -> Finding:
    """Says what is free and what takes it."""
    free_gb = shutil.disk_usage(".").free / 1e9
    used = [f"{place.as_posix()} {_size_text(size)}" for place, size in usage(PLACES).items()]
    text = "; ".join([f"{free_gb:.0f} GB free", *([f"used by {', '.join(used)}"] if used else [])])
    if free_gb >= MIN_DISK_GB:
        return Finding("disk", State.OK, text)
    hint = "`dvc gc --all-commits --dry` names what DVC's cache holds and no commit needs"
    return Finding("disk", State.WRONG, f"{text}; a run wants {MIN_DISK_GB:.0f} GB free", hint)


def usage(places: tuple[Path, ...]) -> dict[Path, int]:
    """Returns the bytes on disk below each place that exists; a file with several names counts once.

    What vanishes or may not be read while this looks counts as nothing.
    """
    seen: set[tuple[int, int]] = set()
    sizes: dict[Path, int] = {}
    for place in places:
        if place.exists():
            sizes[place] = 0
            for found in _entries(place):
                if (found.st_dev, found.st_ino) not in seen:
                    seen.add((found.st_dev, found.st_ino))
                    sizes[place] += _bytes_on_disk(found)
    return sizes


def _entries(place: Path) -> Iterator[os.stat_result]:
    for folder, _, names in os.walk(place):
        for name in names:
            try:
                yield os.lstat(os.path.join(folder, name))
            except OSError:
                continue


def _size_text(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def _bytes_on_disk(found: os.stat_result) -> int:
    # Windows does not say how many blocks a file has.
    return found.st_blocks * 512 if hasattr(found, "st_blocks") else found.st_size
