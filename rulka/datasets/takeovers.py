"""What people drove in an agent's place: labels for cloning.

HG-DAgger, Kelly et al. 2019, arXiv:1810.02890: an expert takes over where the policy goes wrong, and only the expert is
imitated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from rulka.contracts.observation import NUM_PREVIOUS_ACTIONS
from rulka.datasets.capture import CaptureSettings, capture_race
from rulka.datasets.drives import SUFFIX, read_drive
from rulka.datasets.formats.frames import CapturedRace
from rulka.simulator.scene import bake_scene


def find_takeovers(folder: Path) -> list[Path]:
    """Returns the takeover files below a folder, sorted."""
    return sorted(folder.rglob(f"*{SUFFIX}"))


def captured_takeovers(
    files: Sequence[Path], settings: CaptureSettings, num_frames: int
) -> Iterator[tuple[CapturedRace, int]]:
    """Yields the stretches in which a person drove whole decisions, each as a race of its own.

    Args:
        files: takeover files, each on its own track.
        settings: how they are captured.
        num_frames: frames per observation.

    Returns:
        Each stretch with the frames that led to it, for frame stacks and previous actions, and the number of these,
        which are not to be learned from.

    Raises:
        DriveFileError: if a file is damaged.
    """
    most_before = max(num_frames - 1, NUM_PREVIOUS_ACTIONS)
    for path in files:
        race, track = read_drive(path)
        seen = capture_race(race, track, bake_scene(track), settings)
        by_person = np.zeros((len(seen.image), settings.table.decision_ticks), np.bool_)
        by_person.flat[: race.num_ticks] = True if race.by_person is None else race.by_person
        edges = np.flatnonzero(np.diff(by_person.all(axis=1), prepend=False, append=False))
        for first, end in list(pairwise(edges.tolist()))[::2]:
            before = min(first, most_before)
            rows = {field.name: getattr(seen, field.name) for field in fields(seen)}
            cut = {name: values[first - before : end] for name, values in rows.items() if not isinstance(values, str)}
            yield replace(seen, race_id=f"{race.race_id}-{first}", **cut), before
