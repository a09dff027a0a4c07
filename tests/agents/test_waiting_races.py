"""Races gathered out of blocks: which decisions belong together, when a group is whole, what is kept and let go."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rulka.agents.spec import AgentError
from rulka.agents.waiting import WaitingRaces, num_decisions_of
from rulka.buffers.experience import BlockSpec, ExperienceBlock, new_block
from rulka.envs.starts import EqualStarts

NUM_CARS, SIZE, NUM_STEPS = 4, 2, 5


class Cars:
    """Cars whose races have told lengths; a decision is known by its car, race and number, its reward by the last two.

    Floats are the start and the number of the decision, so that races from one start begin alike.
    """

    def __init__(self, lengths: Callable[[int, int], int], seed: int = 0, num_cars: int = NUM_CARS) -> None:
        self.lengths, self.num_cars = lengths, num_cars
        self.starts = EqualStarts(num_cars, SIZE, 1)
        self.generators = [np.random.default_rng([seed, car]) for car in range(num_cars)]
        self.race, self.step = np.full(num_cars, -1), np.zeros(num_cars, np.int64)
        self.start = np.zeros(num_cars)
        self.is_over = np.zeros(num_cars, np.bool_)
        self._begin(np.ones(num_cars, np.bool_))
        self.driven: dict[tuple[int, int], list[float]] = {}
        self.number = 1000 * seed

    def block(self, end: str = "terminated") -> ExperienceBlock:
        block = new_block(BlockSpec(NUM_STEPS, self.num_cars, 2, 2, 2))
        block.number[...] = self.number
        self.number += 1
        for t in range(NUM_STEPS):
            self._look(block, t)
            block.is_reset[t] = self.is_over
            over = np.zeros(self.num_cars, np.bool_)
            for car in np.flatnonzero(~self.is_over):
                key = (int(car), int(self.race[car]))
                block.reward[t, car] = 100.0 * self.race[car] + self.step[car] + 0.25 * car
                block.action[t, car] = self.step[car] % 12
                self.driven.setdefault(key, []).append(float(block.reward[t, car]))
                self.step[car] += 1
                over[car] = self.step[car] == self.lengths(*key)
            getattr(block, end)[t] = over
            self._begin(self.is_over)
            self.is_over = over
        self._look(block, NUM_STEPS)
        return block

    def _look(self, block: ExperienceBlock, t: int) -> None:
        block.floats[t] = np.stack([self.start, self.step], axis=1)
        block.image[t] = (10 * np.arange(self.num_cars) + self.step)[:, None, None, None]

    def _begin(self, which: np.ndarray) -> None:
        self.start[which] = self.starts.draw(which, self.generators)[which, 0]
        self.race[which] += 1
        self.step[which] = 0


def gather(cars: Cars, num_blocks: int, waiting: WaitingRaces | None = None) -> WaitingRaces:
    waiting = waiting or WaitingRaces(SIZE)
    for number in range(num_blocks):
        waiting.insert(cars.block(), 0, number)
    return waiting


def rewards(waiting: WaitingRaces) -> list[list[float]]:
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
    assert rows.action.tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2]
    assert rows.image[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 10, 11, 12]
    assert rows.floats[:, 1].tolist() == rows.action.tolist()
    assert len(set(rows.floats[:, 0].tolist())) == 1, "they began alike"
    assert races[0].pieces == [(0, 0, 0, 5), (1, 0, 0, 2)]
    assert waiting.versions_behind(2) == pytest.approx((8 * 2 + 2 * 1) / 10)
    waiting.drop()
    assert (waiting.groups(), waiting.num_decisions) == ([], 0)
    assert len(waiting.experience().pieces) == 2, "the other cars are in the race that they began with"


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_every_decision_is_in_one_race_of_one_group(end: str) -> None:
    """A slow twin: all rewards of all finished races of whole groups, over 60 blocks of races of random lengths."""
    cars = Cars(lambda car, race: int(np.random.default_rng([car, race]).integers(1, 13)))
    waiting, found, used = WaitingRaces(SIZE), [], 0
    for number in range(60):
        waiting.insert(cars.block(end), 0, number)
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
    waiting = WaitingRaces(SIZE)
    most = 0
    for number in range(200):
        waiting.insert(cars.block(), 0, number)
        waiting.drop()
        most = max(most, len(waiting.experience().pieces))
    assert most <= 2 * 41 / NUM_STEPS + 1


def test_a_collector_that_begins_anew_breaks_off_its_races() -> None:
    """Another collector's stay; what was whole stays too."""
    lengths = lambda car, _race: (3, 3, 50, 50)[car]  # noqa: E731
    waiting = WaitingRaces(SIZE)
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
        assert len(set(waiting.rows(races).floats[:, 0].tolist())) == 1
        assert [int(waiting.rows([race]).floats[0, 1]) for race in races] == [0, 0], "from their first decision on"


def test_cars_and_races_that_make_no_groups_are_refused() -> None:
    cars = Cars(lambda _car, _race: 2)
    cars.starts = EqualStarts(NUM_CARS, 1, 1)
    with pytest.raises(AgentError, match="of 2 races that should begin alike, 1 did"):
        gather(cars, 3)
    with pytest.raises(AgentError, match="blocks of 3 cars hold no groups of 2 cars"):
        WaitingRaces(2).insert(new_block(BlockSpec(2, 3, 2, 2, 2)), 0, 0)
