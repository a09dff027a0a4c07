"""Fixtures that several rooms share."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:
    # Several processes share the cores: threads of one would spin while they wait for those of another. Before torch.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest

from rulka.actions import action_table
from rulka.artifacts import observation_contract
from rulka.datasets.frames import CapturedRace, FrameIndex, FrameWriter
from rulka.datasets.split import split_races
from rulka.observation import FLOATS, NUM_FLOATS
from rulka.params import ObservationParams

NUM_PIXELS = 64
LONG = tuple(
    f"tests/{name}"
    for name in ("tasks/test_stage_ends", "runtime/test_fault_matrix", "flows/test_stack", "flows/test_local")
)
"""Files of a minute and more."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than cores: many tests wait for processes of their own."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the long files first: the processes that share the files then end at about the same time."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


@pytest.fixture(scope="session", autouse=True)
def _children_hear_interrupts() -> None:
    """A shell starts what it puts in the background with interrupts ignored, and every child would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def synthetic_race(race_id: str, num_frames: int, seed: int) -> CapturedRace:
    """A race whose right action can be read off the image: a bright side says where to steer.

    The last previous action among the floats is the action before, as in real frames.
    """
    rng = np.random.default_rng(seed)
    action = np.repeat(rng.choice([0, 1, 2], size=num_frames, p=[0.5, 0.3, 0.2]), 3)[:num_frames]
    image = rng.integers(60, 120, (num_frames, 1, NUM_PIXELS, NUM_PIXELS)).astype(np.uint8)
    image[action == 1, :, :, :20] += 120
    image[action == 2, :, :, -20:] += 120
    floats = rng.normal(0, 1, (num_frames, NUM_FLOATS)).astype(np.float32)
    previous = np.concatenate([[0], action[:-1]])
    floats[:, FLOATS["previous_actions"].stop - 4 : FLOATS["previous_actions"].stop] = action_table(5).keys()[previous]
    share = np.full((num_frames, 12), 0.0, np.float32)
    share[np.arange(num_frames), action] = 0.8
    share[np.arange(num_frames), 3] = 0.2
    time_ms = 50 * np.arange(num_frames, dtype=np.int32)
    along_m = 0.5 * time_ms.astype(np.float32)
    keys = np.eye(12, dtype=np.float32)[action] @ action_table(5).analog()
    return CapturedRace(race_id, "driver", image, floats, action.astype(np.uint8), share, keys, time_ms, along_m)


@pytest.fixture
def write_frames(tmp_path: Path) -> Callable[..., tuple[Path, FrameIndex]]:
    """Returns a function that writes a synthetic frame dataset of 64 x 64 pixels and returns where."""

    def write(
        num_races: int = 6, num_frames: int = 40, shard_frames: int = 100, validation_fraction: float = 0.3
    ) -> tuple[Path, FrameIndex]:
        folder = tmp_path / "frames"
        folder.mkdir()
        race_ids = [f"race-{number}" for number in range(num_races)]
        writer = FrameWriter(
            folder,
            observation=observation_contract(ObservationParams(height=NUM_PIXELS, width=NUM_PIXELS)),
            actions=action_table(5),
            map_uid="synthetic",
            splits=split_races(race_ids, validation_fraction),
            shard_frames=shard_frames,
        )
        for number, race_id in enumerate(race_ids):
            writer.add(synthetic_race(race_id, num_frames + number, seed=number))
        return folder, writer.close()

    return write
