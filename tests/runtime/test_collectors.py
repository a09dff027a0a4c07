"""Permission, order and loss of blocks, by a scripted supervisor in place of processes; rewards that follow the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from runtime_fakes import BLOCK_STEPS, FakeNetwork, fake_run, fake_train

from rulka.actions import action_table
from rulka.params import reference_params
from rulka.race_params import EngineeredRewardParams, RewardParams
from rulka.race_settings import RaceSettings
from rulka.runtime.collectors import CollectorProcesses, Collectors, SerialCollectors, collector_spec
from rulka.runtime.messages import BlockFilled, CollectorTimes, Fill
from rulka.runtime.shared import IncompleteBlockError
from rulka.runtime.specs import RunSpec
from rulka.tracks.generate import generate_track
from rulka.training.races import Races
from rulka.training.run import block_spec
from tests.waiting import wait_for

NO_TIMES = CollectorTimes(0.0, 0.0, 0.0, 0.0)


class ScriptedSupervisor:
    """Remembers permissions and says what it is told to say."""

    num_restarts = 0

    def __init__(self, collectors: CollectorProcesses) -> None:
        self.collectors = collectors
        self.fills: list[tuple[int, Fill]] = []
        self.heard: list[tuple[int, BlockFilled]] = []
        self.dying: list[int] = []

    def send(self, index: int, message: Fill) -> None:
        self.fills.append((index, message))

    def receive(self, timeout_s: float) -> list[tuple[int, BlockFilled]]:
        heard, self.heard = self.heard, []
        return heard

    def replace_dead(self) -> None:
        for index in self.dying:
            self.collectors._forget(index)
        self.dying = []

    def stop(self) -> None:
        pass

    def fill(self, number: int) -> None:
        """The collector that got permission `number` fills its block with that number and says so."""
        index, message = self.fills[number]
        block = self.collectors._blocks[index][message.slot]
        for name in block.spec.layout():
            getattr(block, name)[...] = number % 2 if name.startswith(("is_", "t")) else number
        self.heard.append((index, BlockFilled(message.slot, number, (), np.zeros((1, 2), np.float32), NO_TIMES)))


@pytest.fixture
def collectors(tmp_path: Path) -> Iterator[CollectorProcesses]:
    spec = fake_run(tmp_path, num_collectors=3)
    made = CollectorProcesses(spec, FakeNetwork().state_dict(), env_steps=1000, num_starts=0)
    made._supervisor = ScriptedSupervisor(made)
    yield made
    made.stop()


def _script(collectors: CollectorProcesses) -> ScriptedSupervisor:
    assert isinstance(collectors._supervisor, ScriptedSupervisor)
    return collectors._supervisor


def test_permission_ends_at_the_limit_and_is_shared_evenly(collectors: CollectorProcesses) -> None:
    """A block may be begun while fewer steps are out than allowed: with room for 3.5 blocks, four."""
    assert collectors.collect(1000, 0.0) == []
    assert _script(collectors).fills == []
    collectors.collect(1000 + 3 * BLOCK_STEPS + BLOCK_STEPS // 2, 0.0)
    fills = _script(collectors).fills
    assert [index for index, _ in fills] == [0, 1, 2, 0]
    assert [fill.moment.env_steps for _, fill in fills] == [1000 + k * BLOCK_STEPS for k in range(4)]
    assert collectors.num_under_way == 4


def test_blocks_are_driven_by_the_schedules_of_the_moment_they_were_given_out(collectors: CollectorProcesses) -> None:
    collectors.collect(1000 + BLOCK_STEPS, 0.0, 0.25)
    collectors.collect(1000 + 2 * BLOCK_STEPS, 0.0, 0.5)
    assert [fill.moment.share for _, fill in _script(collectors).fills] == [0.25, 0.5]


def test_who_waited_longest_is_next_when_few_blocks_are_allowed(collectors: CollectorProcesses) -> None:
    script = _script(collectors)
    for number in range(6):  # one at a time
        collectors.collect(1000 + (number + 1) * BLOCK_STEPS, 0.0)
        script.fill(number)
        for delivery in collectors.collect(0, 0.0):
            collectors.release(delivery)
    assert [index for index, _ in script.fills] == [0, 1, 2, 0, 1, 2]


def test_slots_bound_what_is_out(collectors: CollectorProcesses) -> None:
    collectors.collect(10**9, 0.0)
    assert len(_script(collectors).fills) == 9  # three slots each
    assert len({(index, fill.slot) for index, fill in _script(collectors).fills}) == 9


def test_blocks_come_in_the_order_of_permission(collectors: CollectorProcesses) -> None:
    script = _script(collectors)
    collectors.collect(1000 + 4 * BLOCK_STEPS, 0.0)
    for number in (1, 3):
        script.fill(number)
    assert collectors.collect(0, 0.0) == []
    script.fill(0)
    first = collectors.collect(0, 0.0)
    assert [float(delivery.block.reward[0, 0]) for delivery in first] == [0.0, 1.0]
    script.fill(2)
    assert [delivery.facts.version for delivery in collectors.collect(0, 0.0)] == [2, 3]


def test_permission_of_the_dead_is_given_out_again(collectors: CollectorProcesses) -> None:
    """Collector 1 dies with one block said to be filled and one not: the first counts, the second is poisoned."""
    script = _script(collectors)
    collectors.collect(1000 + 5 * BLOCK_STEPS, 0.0)  # to 0, 1, 2, 0, 1
    for number in (0, 1):
        script.fill(number)
    script.dying = [1]
    deliveries = collectors.collect(1000 + 5 * BLOCK_STEPS, 0.0)
    assert [delivery.collector for delivery in deliveries] == [0, 1]
    again = script.fills[5:]
    assert [(index, fill.moment.env_steps) for index, fill in again] == [(1, 1000 + 4 * BLOCK_STEPS)]
    assert np.isnan(collectors._blocks[1][again[0][1].slot].reward).all()
    for number in (2, 3, 5):
        script.fill(number)
    assert [delivery.facts.version for delivery in collectors.collect(0, 0.0)] == [2, 3, 5]


def test_half_filled_block_is_never_handed_on(collectors: CollectorProcesses) -> None:
    script = _script(collectors)
    collectors.collect(1001, 0.0)
    script.fill(0)
    slot = script.fills[0][1].slot
    collectors._blocks[0][slot].reward[-1, -1] = np.nan
    with pytest.raises(IncompleteBlockError, match="1 of 48 numbers of 'reward'"):
        collectors.collect(0, 0.0)


def test_every_start_of_every_collector_has_a_seed_of_its_own(tmp_path: Path) -> None:
    spec = fake_run(tmp_path)
    seeds = {
        collector_spec(spec, index, starts, restarts).seed
        for index in range(3)
        for starts in range(3)
        for restarts in range(3)
    }
    assert len(seeds) == 27
    assert collector_spec(spec, 1, 2, 0).seed == collector_spec(spec, 1, 2, 0).seed


NUM_BLOCKS, FEW_STEPS, NUM_CARS, TOP_STEP = 3, 8, 2, 32


def rising(value: float) -> RewardParams:
    """Kamikaze is always paid by cars in the air or on full gas; here up to `value` at step 32."""
    base = reference_params().rewards
    points = {"interpolation": "linear", "points": [[0, 0.0], [TOP_STEP, value]]}
    engineered = EngineeredRewardParams.model_validate(base.engineered.model_dump() | {"kamikaze": points})
    return base.model_copy(update={"engineered": engineered})


def run_spec(folder: Path, rewards: RewardParams, num_collectors: int) -> RunSpec:
    params = reference_params()
    train = fake_train(num_collectors=num_collectors, block_steps=FEW_STEPS, cars_per_collector=NUM_CARS)
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
        for delivery in collectors.collect(NUM_BLOCKS * FEW_STEPS * NUM_CARS, 0.2):
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
