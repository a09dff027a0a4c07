"""Saving and restoring whole batches of races: what follows equals the uninterrupted run to the bit."""

import dataclasses
import hashlib
import multiprocessing
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError

from rulka.envs.batch import RaceBatch, car_generators
from rulka.simulator.race_settings import read_settings
from rulka.simulator.simulator import SimulatorError
from rulka.tracks.track import Track
from tests.conftest import sees
from tests.waiting import PATIENCE_S

NUM_CARS = 6
OTHERS: dict[str, dict[str, Any]] = {
    "number or size of frames": {"observation": sees(64, 64).model_copy(update={"frames": 4})},
    "start_from_earlier": {"start_from_earlier": 0.5, "max_race_s": 3.0},
    "races_per_start": {"races_per_start": 3},
    "domain randomisation": {"randomisation": {"physics": 1.0}},
}
"""Settings that keep a part of the state of their own, by the words that a state without it is refused with."""


def make_batch(track: Track, **changes: Any) -> RaceBatch:
    """Short races from anywhere, so that several resets happen after the restore."""
    options = {"start_anywhere": 0.5, "start_lateral_m": 2.0, "start_heading_deg": 5.0, "max_race_s": 2.0}
    return RaceBatch(track, read_settings(None, options | changes), NUM_CARS)


def go_on(batch: RaceBatch, actions: np.ndarray) -> tuple[str, int]:
    """Drives on; returns a hash of all that was seen and scored, and the number of resets."""
    digest, num_resets = hashlib.sha256(), 0
    for chosen in actions:
        result = batch.step(chosen)
        seen, info = batch.look()
        num_resets += int(result.is_reset.sum())
        for array in (*dataclasses.astuple(result), *seen.values(), info["potential"]):
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


@pytest.mark.parametrize("lacks", OTHERS)
def test_all_parts_of_the_state_are_saved(straight, lacks: str) -> None:
    actions = np.where(np.arange(400)[:, None] % 5, 0, np.random.default_rng(3).integers(0, 12, (400, NUM_CARS)))
    batch, other = make_batch(straight, **OTHERS[lacks]), make_batch(straight, **OTHERS[lacks])
    batch.reset(car_generators(7, NUM_CARS))
    go_on(batch, actions[:200])
    while not (batch.state_dict()["starts"][:, 0] % 3).any():  # in the middle of a start that several share
        batch.step(actions[0])
    saved = batch.state_dict()
    assert "earlier" not in lacks or saved["earlier"][..., -1].sum() > NUM_CARS
    other.load_state_dict(saved)
    assert go_on(other, actions[200:]) == go_on(batch, actions[200:])
    with pytest.raises(SimulatorError, match=f"do not fit this environment: they have another .*{lacks}"):
        make_batch(straight).load_state_dict(saved)
    batch.close()
    with pytest.raises(ClosedEnvironmentError):
        batch.load_state_dict(saved)
