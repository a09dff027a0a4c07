"""Queue of whole races for policy learners, in groups with the same start, on the device.

Environments assign starts so that the G races of a group of G cars have the same start (`rulka.envs.starts`). A group
is complete once all G races have ended, in whichever block. A block is kept while it holds a race that is kept: besides
the experience of the next update, at most the blocks that the cars fill in twice the longest possible race.
Dimensions: L frames seen at once, H x W pixels, F floats, G races of a group, K groups, R races, M their decisions, E
image features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rulka.agents.shared.rollout_queue import QueuedBlocks
from rulka.agents.shared.spec import AgentError
from rulka.buffers.experience import ExperienceBlock, StoredExperience
from rulka.machine.device import CPU, on_host


class RaceRows(NamedTuple):
    """The decisions of some races, one race after another.

    Attributes:
        image: [M, L, H, W] uint8; or image features [M, E].
        floats: [M, F] float32 raw.
        action: [M, actions of a decision] int64; float32 if decisions are continuous.
        log_prob: [M] float32 of the action under the policy that acted.
        num_decisions: [R] int64 of each race; their sum is M.
    """

    image: Tensor
    floats: Tensor
    action: Tensor
    log_prob: Tensor
    num_decisions: Tensor


@dataclass
class Race:
    """One race: its pieces as (block number, car, first row, end row), and its status."""

    pieces: list[tuple[int, int, int, int]] = field(default_factory=list)
    is_over: bool = False
    is_cut: bool = False


@dataclass
class _Group:
    """Races with the same start: their source (collector, group of cars), first floats [F], and the races."""

    source: tuple[int, int]
    first_floats: Tensor
    races: list[Race] = field(default_factory=list)


@dataclass
class _Stream:
    """State of a collector's cars.

    Attributes:
        number: of the last block.
        under_way: (group, index in the group) of each car's current race; None between races, and if its start was not
            recorded.
        newest: the newest group of races of each group of cars.
        num_broken: incomplete groups of races that were dropped, by group of cars.
    """

    number: int
    under_way: list[tuple[int, int] | None]
    newest: list[int | None]
    num_broken: list[int]


class QueuedRaces(QueuedBlocks):
    """Groups of races: some still running, others complete and waiting to be learned from once.

    Attributes:
        num_decisions: of the complete groups.
    """

    def __init__(self, races_per_start: int, device: torch.device = CPU) -> None:
        self._size, self._num_groups = races_per_start, 0
        super().__init__(device)

    def forget(self) -> None:
        """Drops everything, running races included."""
        super().forget()
        self._streams: dict[int, _Stream] = {}
        self._groups: dict[int, _Group] = {}
        self._whole: list[int] = []

    def insert(self, block: ExperienceBlock, collector: int, version: int) -> None:
        """Copies a block that `collector` recorded with weights of `version`, and assigns its races to groups.

        Raises:
            AgentError: if the cars do not divide into groups, or races of a group have different starts.
        """
        if block.spec.num_cars % self._size:
            message = f"blocks of {block.spec.num_cars} cars hold no groups of {self._size} cars with equal starts"
            raise AgentError(message)
        number, stream = self._add(block, version), self._stream(block, collector)
        goes_on_at = [0] * block.spec.num_cars
        is_last = block.terminated | block.truncated
        for step, car in np.argwhere(is_last | block.is_reset).tolist():
            if block.is_reset[step, car]:
                self._begin(stream, collector, car, block.floats[step + 1, car])
                goes_on_at[car] = step + 1
            else:
                piece = (number, car, goes_on_at[car], step + 1)
                self._end(stream, car, piece, is_cut=bool(block.truncated[step, car]))
        for car, place in enumerate(stream.under_way):
            if place is not None and goes_on_at[car] < block.spec.num_steps:
                self._race(place).pieces.append((number, car, goes_on_at[car], block.spec.num_steps))
        self._drop_unused_blocks()

    def groups(self) -> list[list[Race]]:
        """Returns the races [K][G] of all complete groups."""
        return [self._groups[group].races for group in self._whole]

    def returns(self, discount: float, cut_worth: float) -> Tensor:
        """Returns the returns [K, G] of the races of all complete groups, without shaping, in main memory.

        Args:
            discount: gamma.
            cut_worth: reward added after the last decision of a truncated race.
        """
        races = [race for group in self.groups() for race in group]
        (reward,) = on_host(torch.cat([self._column("reward", *piece) for race in races for piece in race.pieces]))
        by_race = reward.double().split([num_decisions_of(race) for race in races])
        sums = [(part * discount ** torch.arange(len(part), dtype=torch.float64)).sum() for part in by_race]
        for number, race in enumerate(races):
            if race.is_cut:
                sums[number] += cut_worth * discount ** len(by_race[number])
        return torch.stack(sums).view(-1, self._size).float()

    def rows(self, races: Sequence[Race]) -> RaceRows:
        """Returns the decisions of some races."""
        columns = {
            name: torch.cat([self._column(name, *piece) for race in races for piece in race.pieces])
            for name in ("image", "floats", "action", "log_prob")
        }
        lengths = [num_decisions_of(race) for race in races]
        return RaceRows(**columns, num_decisions=torch.tensor(lengths, device=self._device))

    def versions_behind(self, version: int) -> float:
        """Returns the mean lag behind `version` of the weights that acted, over the decisions of complete groups."""
        pieces = [piece for races in self.groups() for race in races for piece in race.pieces]
        total = sum((version - self._blocks[number].version) * (end - first) for number, _, first, end in pieces)
        return total / self.num_decisions

    def drop(self) -> None:
        """Drops the complete groups."""
        for group in self._whole:
            del self._groups[group]
        self._whole, self.num_decisions = [], 0
        self._drop_unused_blocks()

    def experience(self) -> StoredExperience:
        """Returns everything for a checkpoint; see `rulka.agents.shared.learner.Learner`."""
        state, pieces = super().experience()
        state |= {
            "num_groups": self._num_groups,
            "whole": list(self._whole),
            "streams": {collector: asdict(stream) for collector, stream in self._streams.items()},
            "groups": {number: asdict(group) for number, group in self._groups.items()},
        }
        return StoredExperience(state, pieces)

    def load_experience(self, experience: StoredExperience) -> None:
        """Resumes from an `experience`; copies it."""
        super().load_experience(experience)
        state = experience.state
        self._num_groups, self._whole = int(state["num_groups"]), list(state["whole"])
        self._streams = {collector: _Stream(**stream) for collector, stream in state["streams"].items()}
        self._groups = {
            number: _Group(**group | {"races": [Race(**race) for race in group["races"]]})
            for number, group in state["groups"].items()
        }

    def _stream(self, block: ExperienceBlock, collector: int) -> _Stream:
        """Returns the state of a collector's cars; if it (re)started, a fresh state whose races start in the block."""
        stream = self._streams.get(collector)
        if stream is not None and int(block.number) == stream.number + 1:
            stream.number += 1
            return stream
        for number, group in list(self._groups.items()):
            if group.source[0] == collector and number not in self._whole:
                del self._groups[number]  # abandoned: these races will not end
        num_cars = block.spec.num_cars
        count = num_cars // self._size
        stream = _Stream(int(block.number), [None] * num_cars, [None] * count, [0] * count)
        self._streams[collector] = stream
        for first in range(0, num_cars, self._size):
            seen = block.floats[0, first : first + self._size]
            # Cars with different observations are in mid-race, and the starts of these races are unknown.
            if (seen == seen[0]).all():
                for car in first + np.flatnonzero(~block.is_reset[0, first : first + self._size]):
                    self._begin(stream, collector, int(car), block.floats[0, car])
        return stream

    def _begin(self, stream: _Stream, collector: int, car: int, floats: NDArray[np.float32]) -> None:
        """Adds a race to the newest group of its cars, or opens a new one if that is full."""
        car_group = car // self._size
        newest = stream.newest[car_group]
        group = None if newest is None else self._groups.get(newest)
        if group is not None and len(group.races) < self._size and not np.array_equal(group.first_floats, floats):
            self._break(stream, car_group)
            group = None
        if group is None or len(group.races) == self._size:
            newest, self._num_groups = self._num_groups, self._num_groups + 1
            group = self._groups[newest] = _Group((collector, car_group), torch.tensor(floats))
            stream.newest[car_group] = newest
        assert newest is not None
        group.races.append(Race())
        stream.under_way[car] = newest, len(group.races) - 1

    def _break(self, stream: _Stream, car_group: int) -> None:
        """Drops the newest group of some cars, whose first races were not recorded; a second time is an error."""
        newest = stream.newest[car_group]
        assert newest is not None
        num_races = len(self._groups.pop(newest).races)
        stream.under_way = [None if place is not None and place[0] == newest else place for place in stream.under_way]
        stream.num_broken[car_group] += 1
        if stream.num_broken[car_group] > 1:
            message = f"of {self._size} races that should begin alike, {num_races} did"
            hint = "Groups of races need an environment that deals equal starts, see `races_per_start`."
            raise AgentError(message, hint=hint)

    def _end(self, stream: _Stream, car: int, piece: tuple[int, int, int, int], *, is_cut: bool) -> None:
        place, stream.under_way[car] = stream.under_way[car], None
        if place is None:
            return
        race, group = self._race(place), self._groups[place[0]]
        race.pieces.append(piece)
        race.is_over, race.is_cut = True, is_cut
        if len(group.races) == self._size and all(one.is_over for one in group.races):
            self._whole.append(place[0])
            self.num_decisions += sum(num_decisions_of(one) for one in group.races)

    def _race(self, place: tuple[int, int]) -> Race:
        return self._groups[place[0]].races[place[1]]

    def _drop_unused_blocks(self) -> None:
        """Drops blocks that no race needs."""
        needed = {piece[0] for group in self._groups.values() for race in group.races for piece in race.pieces}
        self._blocks = {number: block for number, block in self._blocks.items() if number in needed}

    def _column(self, name: str, number: int, car: int, first: int, end: int) -> Tensor:
        return getattr(self._blocks[number].segment, name)[first:end, car]


def num_decisions_of(race: Race) -> int:
    """Returns the number of decisions of a race."""
    return sum(end - first for _, _, first, end in race.pieces)
