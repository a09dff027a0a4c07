"""Permission, order and loss of blocks, by a scripted supervisor in place of processes; rewards that follow the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runtime_fakes import BLOCK_STEPS, FakeNetwork, fake_run, fake_train

from rulka.contracts.actions import action_table
from rulka.contracts.schedule import Moment
from rulka.params import reference_params
from rulka.runtime.collectors import CollectLimits, CollectorProcesses, SerialCollectors, collector_spec
from rulka.runtime.messages import BlockFilled, CollectorTimes, Fill
from rulka.simulator.race_params import EngineeredRewardParams
from rulka.simulator.race_settings import RaceSettings
from rulka.training.environment import block_spec
from rulka.training.race_environment import RaceEnvironment
from tests.conftest import straight_track

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
    assert collectors.collect(CollectLimits(1000, 0.0)) == []
    assert _script(collectors).fills == []
    collectors.collect(CollectLimits(1000 + 3 * BLOCK_STEPS + BLOCK_STEPS // 2, 0.0))
    fills = _script(collectors).fills
    assert [index for index, _ in fills] == [0, 1, 2, 0]
    assert [fill.moment.env_steps for _, fill in fills] == [1000 + k * BLOCK_STEPS for k in range(4)]
    assert collectors.num_under_way == 4


def test_blocks_are_driven_by_the_schedules_of_the_moment_they_were_given_out(collectors: CollectorProcesses) -> None:
    """Environment steps of other learners count, too."""
    collectors.collect(CollectLimits(1000 + BLOCK_STEPS, 0.0, 0.25))
    collectors.collect(CollectLimits(1000 + 2 * BLOCK_STEPS, 0.0, 0.5, env_steps_elsewhere=500))
    moments = [fill.moment for _, fill in _script(collectors).fills]
    assert moments == [Moment(1000, 0.25), Moment(1500 + BLOCK_STEPS, 0.5)]


def test_who_waited_longest_is_next_when_few_blocks_are_allowed(collectors: CollectorProcesses) -> None:
    script = _script(collectors)
    for number in range(6):  # one at a time
        collectors.collect(CollectLimits(1000 + (number + 1) * BLOCK_STEPS, 0.0))
        script.fill(number)
        for delivery in collectors.collect(CollectLimits(0, 0.0)):
            collectors.release(delivery)
    assert [index for index, _ in script.fills] == [0, 1, 2, 0, 1, 2]


def test_slots_bound_what_is_out(collectors: CollectorProcesses) -> None:
    collectors.collect(CollectLimits(10**9, 0.0))
    assert len(_script(collectors).fills) == 9  # three slots each
    assert len({(index, fill.slot) for index, fill in _script(collectors).fills}) == 9


def test_blocks_come_in_the_order_of_permission(collectors: CollectorProcesses) -> None:
    script = _script(collectors)
    collectors.collect(CollectLimits(1000 + 4 * BLOCK_STEPS, 0.0))
    for number in (1, 3):
        script.fill(number)
    assert collectors.collect(CollectLimits(0, 0.0)) == []
    script.fill(0)
    first = collectors.collect(CollectLimits(0, 0.0))
    assert [float(delivery.block.reward[0, 0]) for delivery in first] == [0.0, 1.0]
    script.fill(2)
    assert [delivery.facts.version for delivery in collectors.collect(CollectLimits(0, 0.0))] == [2, 3]


def test_permission_of_the_dead_is_given_out_again(collectors: CollectorProcesses) -> None:
    """Collector 1 dies with one block said to be filled and one not: the first counts, the second is poisoned."""
    script = _script(collectors)
    collectors.collect(CollectLimits(1000 + 5 * BLOCK_STEPS, 0.0))  # to 0, 1, 2, 0, 1
    for number in (0, 1):
        script.fill(number)
    script.dying = [1]
    deliveries = collectors.collect(CollectLimits(1000 + 5 * BLOCK_STEPS, 0.0))
    assert [delivery.collector for delivery in deliveries] == [0, 1]
    again = script.fills[5:]
    assert [(index, fill.moment.env_steps) for index, fill in again] == [(1, 1000 + 4 * BLOCK_STEPS)]
    assert np.isnan(collectors._blocks[1][again[0][1].slot].reward).all()
    for number in (2, 3, 5):
        script.fill(number)
    assert [delivery.facts.version for delivery in collectors.collect(CollectLimits(0, 0.0))] == [2, 3, 5]


def test_half_filled_block_is_never_handed_on(collectors: CollectorProcesses) -> None:
    script = _script(collectors)
    collectors.collect(CollectLimits(1001, 0.0))
    script.fill(0)
    slot = script.fills[0][1].slot
    collectors._blocks[0][slot].reward[-1, -1] = np.nan
    with pytest.raises(RuntimeError, match="1 of 48 numbers of 'reward'"):
        collectors.collect(CollectLimits(0, 0.0))


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


def test_rewards_follow_the_run_block_by_block(tmp_path: Path) -> None:
    """Full gas is paid 0.8 from step 32 on; blocks have 16 steps, and others took 8 when the second one began."""
    params = reference_params()
    train = fake_train(block_steps=8, cars_per_collector=2)
    block = block_spec(params.observation, train, action_table(params.actions.ticks_per_action))

    def driven(value: float) -> list[tuple[np.ndarray, np.ndarray]]:
        points = {"kamikaze": {"interpolation": "linear", "points": [[0, 0.0], [32, value]]}}
        engineered = EngineeredRewardParams.model_validate(params.rewards.engineered.model_dump() | points)
        rewards = params.rewards.model_copy(update={"engineered": engineered})
        sections = params.observation, params.actions, params.simulator, params.race_end, rewards
        races = RaceEnvironment(RaceSettings.for_training(*sections, train, 1), [straight_track(200.0)])
        spec = replace(fake_run(tmp_path), cars_of=races.cars_of_collector, block=block)
        collectors = SerialCollectors(spec, 0, 0)
        turns = (CollectLimits(10**9, 0.0, env_steps_elsewhere=others) for others in (0, 8, 0))
        deliveries = (collectors.collect(turn)[0] for turn in turns)
        return [(each.block.action[..., 0].copy(), each.block.reward.copy()) for each in deliveries]

    for share, (action, plain), (same, paid) in zip((0.0, 0.75, 1.0), driven(0.0), driven(0.8), strict=True):
        np.testing.assert_array_equal(action, same)
        assert (action <= 2).any()
        np.testing.assert_allclose((paid - plain)[action <= 2], 0.8 * share, atol=1e-6)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"inference": "central"}, "inference central needs collectors, but num_collectors is 0"),
        ({"num_collectors": 3, "learners": 2}, "learners need equal shares of num_collectors, but it is 3"),
        (
            {"num_collectors": 1, "inference": "central", "order": "exact"},
            "inference central needs train.order free, .* is exact: set it to free",
        ),
        (
            {"num_collectors": 1, "cluster": "ray", "order": "exact"},
            "cluster ray needs train.order free, .*: set it to free",
        ),
        ({"cluster": "ray"}, "cluster ray needs collector processes, but num_collectors is 0"),
        (
            {"num_collectors": 2, "cluster": "ray", "learners": 2},
            "cluster ray needs a single learner, but learners is 2",
        ),
        (
            {"num_collectors": 1, "cluster": "ray", "environment": "game"},
            "environment game needs collectors here, but cluster is ray",
        ),
        (
            {"num_collectors": 1, "cluster": "ray", "inference": "central"},
            "cluster ray needs acting in collectors, but inference is central",
        ),
    ],
)
def test_what_collectors_cannot_do_is_refused_when_parameters_are_read(train: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fake_train(**train)
