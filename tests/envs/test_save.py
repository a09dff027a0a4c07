"""Saving and restoring whole batches of races: what follows equals the uninterrupted run to the bit."""

import dataclasses
import hashlib
import multiprocessing

import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError

from rulka.envs.batch import RaceBatch, car_generators
from rulka.envs.settings import read_settings
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
    return RaceBatch(track, read_settings(None, options), NUM_CARS)


def go_on(batch: RaceBatch, actions: np.ndarray) -> tuple[str, int]:
    """Drives on; returns a hash of all that was seen and scored, and the number of resets."""
    digest, num_resets = hashlib.sha256(), 0
    for chosen in actions:
        result = batch.step(chosen)
        seen, potential = batch.look()
        num_resets += int(result.is_reset.sum())
        for array in (*dataclasses.astuple(result), *seen.values(), potential):
            digest.update(array.tobytes())
    return digest.hexdigest(), num_resets


def in_another_process(queue: multiprocessing.Queue, track: Track, saved: dict, actions: np.ndarray) -> None:
    batch = make_batch(track)
    batch.load_state_dict(saved)
    queue.put(go_on(batch, actions))


def test_a_restored_batch_goes_on_as_the_uninterrupted_one(straight) -> None:
    actions = np.random.default_rng(3).integers(0, 12, (150, NUM_CARS))
    batch = make_batch(straight)
    batch.reset(car_generators(7, NUM_CARS))
    go_on(batch, actions[:33])
    saved = batch.state_dict()
    expected = go_on(batch, actions[33:])
    assert expected[1] > NUM_CARS
    batch.load_state_dict(saved)
    assert go_on(batch, actions[33:]) == expected
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=in_another_process, args=(queue, straight, saved, actions[33:]))
    process.start()
    assert queue.get(timeout=PATIENCE_S) == expected
    process.join()


def test_frames_and_earlier_states_are_saved_too(straight) -> None:
    actions = np.where(np.arange(400)[:, None] % 5, 0, np.random.default_rng(3).integers(0, 12, (400, NUM_CARS)))
    for options, lacks in (({"frames": 4}, "number or size of frames"), ({"start_from_earlier": 0.5}, "start_from_")):
        batch, other = make_batch(straight, **options), make_batch(straight, **options)
        batch.reset(car_generators(7, NUM_CARS))
        go_on(batch, actions[:200])
        saved = batch.state_dict()
        assert "frames" in options or saved["earlier"][..., -1].sum() > NUM_CARS
        other.load_state_dict(saved)
        assert go_on(other, actions[200:]) == go_on(batch, actions[200:])
        with pytest.raises(SimulatorError, match=f"do not fit this environment: they have another .*{lacks}"):
            make_batch(straight).load_state_dict(saved)


def test_a_closed_batch_takes_no_state(straight) -> None:
    batch = make_batch(straight)
    batch.close()
    with pytest.raises(ClosedEnvironmentError):
        batch.load_state_dict(batch.state_dict())
