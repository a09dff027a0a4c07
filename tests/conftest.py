"""Fixtures that several rooms share."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from rulka.actions import action_table
from rulka.artifacts import observation_contract
from rulka.datasets.frames import CapturedRace, FrameIndex, FrameWriter
from rulka.datasets.split import split_races
from rulka.device import choose_device
from rulka.observation import FLOATS, NUM_FLOATS
from rulka.params import ObservationParams

NUM_PIXELS = 64

sys.path.insert(0, str(Path(__file__).parent / "device"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what needs a GPU where there is none, with the reason.

    The stand-in has to be there before the first gradient of the process: torch then counts the devices, once.
    """
    if any({"device", "standin"} & set(getattr(item, "fixturenames", ())) for item in items):
        importlib.import_module("stand_in")
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if not needing:
        return
    chosen = choose_device("auto")
    if chosen.device.type == "cpu":
        for item in needing:
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {chosen.why}"))


@pytest.fixture
def standin() -> Iterator[torch.device]:
    """A device that refuses implicit transfers, see `tests/device/stand_in.py`."""
    stand_in = importlib.import_module("stand_in")
    stand_in.crossings.clear()
    stand_in.backend.free_bytes = stand_in.FREE_BYTES
    with stand_in.generators():
        yield stand_in.DEVICE


@pytest.fixture(params=["standin", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The stand-in, and a GPU where there is one."""
    if request.param == "standin":
        return request.getfixturevalue("standin")
    return choose_device("auto").device


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
