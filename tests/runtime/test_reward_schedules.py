"""Rewards whose weights follow the run: the same in serial and in process mode, block by block."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from runtime_fakes import FakeNetwork, fake_run, fake_train

from rulka.actions import action_table
from rulka.params import reference_params
from rulka.race_params import EngineeredRewardParams, RewardParams
from rulka.race_settings import RaceSettings
from rulka.runtime.collectors import CollectorProcesses, Collectors, SerialCollectors
from rulka.runtime.specs import RunSpec
from rulka.tracks.generate import generate_track
from rulka.training.races import Races
from rulka.training.run import block_spec
from tests.waiting import wait_for

NUM_BLOCKS, BLOCK_STEPS, NUM_CARS, TOP_STEP = 3, 8, 2, 32


def rising(value: float) -> RewardParams:
    """Kamikaze is always paid by cars in the air or on full gas; here up to `value` at step 32."""
    base = reference_params().rewards
    points = {"interpolation": "linear", "points": [[0, 0.0], [TOP_STEP, value]]}
    engineered = EngineeredRewardParams.model_validate(base.engineered.model_dump() | {"kamikaze": points})
    return base.model_copy(update={"engineered": engineered})


def run_spec(folder: Path, rewards: RewardParams, num_collectors: int) -> RunSpec:
    params = reference_params()
    train = fake_train(num_collectors=num_collectors, block_steps=BLOCK_STEPS, cars_per_collector=NUM_CARS)
    track = generate_track(**params.track.model_dump() | {"length_m": 200.0})
    race = RaceSettings.for_training(
        params.observation, params.actions, params.simulator, params.race_end, rewards, train, 1
    )
    made = fake_run(folder, num_collectors=num_collectors)
    spec = block_spec(params.observation, train, action_table(params.actions.ticks_per_action))
    return RunSpec(Races(race, [track]).make_cars, made.make_actor, made.build_learner, spec, train, folder, "test")


def gathered(collectors: Collectors) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Rewards, actions and floats of the first blocks."""
    collectors.publish(0, FakeNetwork().state_dict())
    found = []

    def has_all() -> bool:
        for delivery in collectors.collect(NUM_BLOCKS * BLOCK_STEPS * NUM_CARS, 0.2):
            block = delivery.block
            found.append((block.reward.copy(), block.action.copy(), block.floats.copy()))
            collectors.release(delivery)
        return len(found) >= NUM_BLOCKS

    wait_for(has_all, "the first blocks")
    assert len(found) == NUM_BLOCKS
    return found


def in_series(folder: Path, rewards: RewardParams) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    collectors = SerialCollectors(run_spec(folder, rewards, 0), 0, 0)
    try:
        return gathered(collectors)
    finally:
        collectors.stop()


def test_the_weight_is_that_of_the_blocks_first_step(tmp_path: Path) -> None:
    """Blocks of 16 steps: the weight is 0 in the first, half in the second and whole in the third."""
    plain, paid = in_series(tmp_path, rising(0.0)), in_series(tmp_path, rising(0.8))
    for number, (without, with_it) in enumerate(zip(plain, paid, strict=True)):
        np.testing.assert_array_equal(without[1], with_it[1])
        np.testing.assert_array_equal(without[2], with_it[2])
        gained = (with_it[0] - without[0])[with_it[1] <= 2]
        np.testing.assert_allclose(gained, 0.8 * min(1.0, number * 16 / TOP_STEP), atol=1e-6)
        assert gained.size > 0


def test_processes_pay_as_serial_collectors(tmp_path: Path) -> None:
    expected = in_series(tmp_path, rising(0.8))
    spec = run_spec(tmp_path, rising(0.8), 1)
    collectors = CollectorProcesses(spec, FakeNetwork().state_dict(), env_steps=0, num_starts=0)
    try:
        collectors.start()
        found = gathered(collectors)
    finally:
        collectors.stop()
    for ours, theirs in zip(found, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert one.tobytes() == other.tobytes()
