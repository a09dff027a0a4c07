"""Races gathered out of blocks: which decisions belong together, when a group is whole, what is kept and let go."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rulka.agents.shared.race_queue import QueuedRaces, num_decisions_of
from rulka.agents.shared.spec import AgentError, Decision
from rulka.buffers.experience import BlockSpec, ExperienceBlock, new_block
from tests.agents.conftest import Races

NUM_CARS, SIZE, NUM_STEPS = 4, 2, 5


class Cars(Races):
    """Races of told lengths, by car and number of the race, from states that count on from a start.

    The reward of a decision says its car, its race and which of that race's decisions it is.
    """

    def __init__(
        self, lengths: Callable[[int, int], int], seed: int = 0, end: str = "terminated", size: int = SIZE
    ) -> None:
        super().__init__(lambda *_: None, NUM_CARS, np.arange(100.0, 1e6, 100.0), NUM_STEPS)
        self.rng, self.lengths, self.end = np.random.default_rng(seed), lengths, end
        self.race, self.driven = np.full(NUM_CARS, -1), {}
        self.deal(size)

    def act(self, _image: object, floats: object, *, explore: bool) -> Decision:
        return Decision(np.zeros((NUM_CARS, 1), np.int64), np.zeros(NUM_CARS, np.float32), np.ones(NUM_CARS, np.bool_))

    def block(self) -> ExperienceBlock:
        return self.drive(self)

    def _begin(self, which: np.ndarray) -> None:
        super()._begin(which)
        self.race[which] += 1

    def _step(self, block: ExperienceBlock, t: int, car: int) -> None:
        rewards = self.driven.setdefault((car, int(self.race[car])), [])
        rewards.append(100.0 * self.race[car] + len(rewards) + 0.25 * car)
        block.reward[t, car] = rewards[-1]
        getattr(block, self.end)[t, car] = len(rewards) == self.lengths(car, int(self.race[car]))
        self.state[car] += 1


def gather(cars: Cars, num_blocks: int) -> QueuedRaces:
    waiting = QueuedRaces(SIZE)
    for number in range(num_blocks):
        waiting.insert(cars.block(), 0, number)
    return waiting


def rewards(waiting: QueuedRaces) -> list[list[float]]:
    return [[float(x) for x in row] for row in waiting.returns(1.0, 0.0)]


def test_races_run_across_blocks_and_end_by_themselves() -> None:
    """Cars 0 and 1 drive 7 and 3 decisions: car 1 takes the second start's first race while car 0 is in its first."""
    cars = Cars(lambda car, _race: (7, 3, 50, 50)[car])
    waiting = gather(cars, 2)  # 10 decisions: car 0 ends race 0 in row 6, car 1 races in rows 0-2, 4-6, 8-10
    assert waiting.num_decisions == 10
    assert rewards(waiting) == [[sum(cars.driven[0, 0]), sum(cars.driven[1, 0])]]
    (races,) = waiting.groups()
    rows = waiting.rows(races)
    assert rows.num_decisions.tolist() == [7, 3]
    states = rows.floats[:, 1]
    assert (states - states[0]).tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2], "they began alike"
    assert races[0].pieces == [(0, 0, 0, 5), (1, 0, 0, 2)]
    assert waiting.versions_behind(2) == pytest.approx((8 * 2 + 2 * 1) / 10)
    waiting.drop()
    assert (waiting.groups(), waiting.num_decisions) == ([], 0)
    assert len(waiting.experience().pieces) == 2, "the other cars are in the race that they began with"


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_every_decision_is_in_one_race_of_one_group(end: str) -> None:
    """A slow twin: all rewards of all finished races of whole groups, over 60 blocks of races of random lengths."""
    cars = Cars(lambda car, race: int(np.random.default_rng([car, race]).integers(1, 13)), end=end)
    waiting, found, used = QueuedRaces(SIZE), [], 0
    for number in range(60):
        waiting.insert(cars.block(), 0, number)
        if number % 7 == 6:
            found += [total for group in rewards(waiting) for total in group]
            used += sum(num_decisions_of(race) for group in waiting.groups() for race in group)
            assert used > 0
            waiting.drop()
            assert waiting.num_decisions == 0
    totals = {sum(values) for values in cars.driven.values()}
    assert len(found) == len(set(found))
    assert set(found) <= totals
    assert len(totals) - len(found) < 6 * NUM_CARS, "but for the last ones"
    assert used > 0.7 * 60 * NUM_STEPS * NUM_CARS


def test_memory_is_bounded_by_the_longest_race() -> None:
    """Race lengths of 1 and 40 decisions, 8 blocks at most: blocks of two longest races, and the one that is filled."""
    cars = Cars(lambda car, race: 40 if np.random.default_rng([car, race]).random() < 0.2 else 1)
    waiting = QueuedRaces(SIZE)
    most = 0
    for number in range(200):
        waiting.insert(cars.block(), 0, number)
        waiting.drop()
        most = max(most, len(waiting.experience().pieces))
    assert most <= 2 * 41 / NUM_STEPS + 1


def test_a_collector_that_begins_anew_breaks_off_its_races() -> None:
    """Another collector's stay; what was whole stays too."""
    lengths = lambda car, _race: (3, 3, 50, 50)[car]  # noqa: E731
    waiting = QueuedRaces(SIZE)
    first, other, later = (Cars(lengths, seed) for seed in (1, 2, 3))
    waiting.insert(first.block(), 0, 0)
    waiting.insert(other.block(), 1, 0)
    waiting.insert(later.block(), 0, 0)
    assert len(waiting.groups()) == 3
    for _ in range(10):
        waiting.insert(other.block(), 1, 0)
        waiting.insert(later.block(), 0, 0)
    totals = {total for group in rewards(waiting) for total in group}
    assert {sum(other.driven[car, 0]) for car in (2, 3)} | {sum(later.driven[car, 0]) for car in (2, 3)} <= totals
    assert sum(num_decisions_of(race) for group in waiting.groups() for race in group) == waiting.num_decisions


def test_races_that_were_under_way_before_are_left_out() -> None:
    """Experience that is gathered anew begins in the middle of races; groups are whole again from the next start on."""
    cars = Cars(lambda car, _race: (7, 4, 9, 6)[car])
    gather(cars, 3)
    waiting = gather(cars, 12)
    assert len(waiting.groups()) > 4
    for races in waiting.groups():
        first, other = (float(waiting.rows([race]).floats[0, 1]) for race in races)
        assert first == other
        assert first % 100 == 0, "from their first decision on"


def test_returns_of_races_that_were_cut_by_hand() -> None:
    """Rewards 0, 1, 2 and the same plus 0.25; discounted by half, and with -8 after the last decision."""
    waiting = gather(Cars(lambda car, _race: (3, 3, 50, 50)[car], end="truncated"), 1)
    assert waiting.returns(0.5, -8.0).tolist() == [[0.5 + 0.5 - 1.0, 1.0 + 0.25 * 1.75 - 1.0]]


def test_what_was_forgotten_is_as_if_it_had_never_been() -> None:
    cars, fresh = Cars(lambda car, _race: (3, 3, 9, 6)[car]), QueuedRaces(SIZE)
    waiting = gather(cars, 1)
    assert len(waiting.groups()) == 1
    waiting.forget()
    assert (waiting.groups(), waiting.num_decisions) == ([], 0)
    for _ in range(8):
        block = cars.block()
        for one in (waiting, fresh):
            one.insert(block, 0, 1)
    assert rewards(waiting) == rewards(fresh)


def test_cars_and_races_that_make_no_groups_are_refused() -> None:
    with pytest.raises(AgentError, match="of 2 races that should begin alike, 1 did"):
        gather(Cars(lambda _car, _race: 2, size=1), 3)
    with pytest.raises(AgentError, match="blocks of 3 cars hold no groups of 2 cars"):
        QueuedRaces(2).insert(new_block(BlockSpec(2, 3, 2, 2, 2)), 0, 0)
