"""Saving and restoring whole batches of races: what follows equals the uninterrupted run to the bit."""

import dataclasses
import hashlib
import multiprocessing

import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError

from rulka.envs.batch import RaceBatch, SavedRaces, car_generators
from rulka.envs.settings import read_settings
from rulka.observation import NUM_FLOATS
from rulka.simulator.simulator import SimulatorError
from rulka.tracks.track import Track
from tests.conftest import sees
from tests.waiting import PATIENCE_S

NUM_CARS = 5


def make_batch(track: Track, start_from_earlier: float = 0.0, frames: int = 1) -> RaceBatch:
    """Short races from anywhere, so that several resets happen after the restore."""
    options = {
        "start_anywhere": 0.5,
        "start_from_earlier": start_from_earlier,
        "start_lateral_m": 2.0,
        "start_heading_deg": 5.0,
        "max_race_s": 2.0 + 2.0 * start_from_earlier,
        "observation": sees(64, 64).model_copy(update={"frames": frames}),
    }
    return RaceBatch(track, read_settings(None, options, ()), NUM_CARS)


def go_on(batch: RaceBatch, actions: np.ndarray) -> tuple[str, int]:
    """Drives on; returns a hash of all that was seen and scored, and the number of resets."""
    digest, num_resets = hashlib.sha256(), 0
    image, floats = (
        np.empty((NUM_CARS, *batch.settings.image_shape), np.uint8),
        np.empty((NUM_CARS, NUM_FLOATS), np.float32),
    )
    potential = np.empty(NUM_CARS, np.float32)
    for chosen in actions:
        result = batch.step(chosen)
        batch.observe(image, floats, potential)
        num_resets += int(result.is_reset.sum())
        for array in (*(getattr(result, field.name) for field in dataclasses.fields(result)), image, floats, potential):
            digest.update(array.tobytes())
    return digest.hexdigest(), num_resets


def in_another_process(queue: multiprocessing.Queue, track: Track, saved: SavedRaces, actions: np.ndarray) -> None:
    batch = make_batch(track)
    batch.restore(saved)
    queue.put(go_on(batch, actions))


def test_a_restored_batch_goes_on_as_the_uninterrupted_one(straight) -> None:
    actions = np.random.default_rng(3).integers(0, 12, (150, NUM_CARS))
    batch = make_batch(straight)
    batch.reset(car_generators(7, NUM_CARS))
    go_on(batch, actions[:33])
    saved = batch.save()
    expected = go_on(batch, actions[33:])
    assert expected[1] > NUM_CARS
    batch.restore(saved)
    assert go_on(batch, actions[33:]) == expected
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=in_another_process, args=(queue, straight, saved, actions[33:]))
    process.start()
    assert queue.get(timeout=PATIENCE_S) == expected
    process.join()


def test_frames_seen_before_are_saved_too(straight) -> None:
    actions = np.random.default_rng(3).integers(0, 12, (120, NUM_CARS))
    batch, other = make_batch(straight, frames=4), make_batch(straight, frames=4)
    batch.reset(car_generators(7, NUM_CARS))
    go_on(batch, actions[:33])
    saved = batch.save()
    other.restore(saved)
    assert go_on(other, actions[33:]) == go_on(batch, actions[33:])
    with pytest.raises(SimulatorError, match="another number or size of frames"):
        make_batch(straight).restore(saved)


def test_what_races_may_begin_from_is_saved_too(straight) -> None:
    actions = np.where(np.arange(400)[:, None] % 5, 0, np.random.default_rng(3).integers(0, 12, (400, NUM_CARS)))
    batch, other = make_batch(straight, 0.5), make_batch(straight, 0.5)
    batch.reset(car_generators(7, NUM_CARS))
    go_on(batch, actions[:200])
    saved = batch.save()
    assert saved.earlier[..., -1].sum() > NUM_CARS
    other.restore(saved)
    assert go_on(other, actions[200:]) == go_on(batch, actions[200:])
    with pytest.raises(SimulatorError, match="start_from_earlier"):
        make_batch(straight).restore(saved)


def test_races_of_another_batch_are_refused(straight) -> None:
    batch = make_batch(straight)
    saved = batch.save()
    with pytest.raises(SimulatorError, match="do not fit"):
        batch.restore(dataclasses.replace(saved, counters=saved.counters[:2]))
    batch.close()
    with pytest.raises(ClosedEnvironmentError):
        batch.restore(saved)
