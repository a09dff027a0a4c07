"""Replay against a naive twin that keeps whole blocks in a dictionary, in any order of what learners do."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rulka.buffers.experience import BlockSpec, ExperienceBlock, StoredExperience, new_block
from rulka.buffers.held_out import RaceSplit
from rulka.buffers.replay import Batch, Replay, Source
from rulka.buffers.transitions import shaped_rewards
from rulka.machine.device import CPU
from tests.buffers.conftest import check_links

SPEC = BlockSpec(num_steps=3, num_cars=2, height=1, width=1, num_floats=1)
NUM_BLOCKS, ALPHA, EPSILON, BETA, GAMMA = 3, 0.6, 0.1, 0.5, 0.9
SEEDS = st.integers(0, 1 << 32)


class Place(NamedTuple):
    """A decision: the number of its block since the ring was empty, the step in it, and the car."""

    block: int
    step: int
    car: int


def draw(source: Source) -> Batch:
    found = source.sample(16)
    return source.batch(found, *shaped_rewards(found, found.num_steps, found.is_terminal, GAMMA))


class ReplayAgainstTwin(RuleBasedStateMachine):
    """Blocks of three streams, each of which goes on or begins anew; every observation has a number of its own."""

    @initialize(
        is_prioritised=st.booleans(),
        past_exploring=st.booleans(),
        share=st.sampled_from([0.0, 0.4, 1.0]),
        max_steps=st.integers(1, 7),
    )
    def begin(self, is_prioritised: bool, past_exploring: bool, share: float, max_steps: int) -> None:
        self.is_prioritised, self.past_exploring = is_prioritised, past_exploring
        self.share, self.max_steps = share, max_steps
        self.newest: dict[int, ExperienceBlock] = {}
        self.num_seen = self.num_inserted = 0
        self.replay = self.make()
        self.forget()

    def make(self) -> Replay:
        options: dict[str, Any] = {"past_exploring": self.past_exploring}
        options |= {"priority": (ALPHA, EPSILON)} if self.is_prioritised else {}
        options |= {"split": RaceSplit(self.share, seed=0)} if self.share else {}
        return Replay(NUM_BLOCKS * SPEC.num_env_steps, self.max_steps, CPU, torch.Generator(), **options)

    # What learners do ------------------------------------------------------------------------------------------------

    @rule(stream=st.integers(0, 2), is_anew=st.booleans(), seed=SEEDS)
    def insert(self, stream: int, is_anew: bool, seed: int) -> None:
        before = self.newest.get(stream)
        block = self.random_block(None if is_anew else before, np.random.default_rng(seed))
        for replay in (self.replay, self.saved) if self.saved else (self.replay,):
            replay.insert(block, stream, self.num_inserted * SPEC.num_env_steps)
        if self.saved is not None:  # what it did not say shows in what follows
            for name in ("is_held_out", "next_slot"):
                np.testing.assert_array_equal(
                    *(getattr(each.ring.arrays, name)[: each.ring.num_blocks] for each in (self.replay, self.saved))
                )
            self.saved = None
        self.num_inserted, self.newest[stream] = self.num_inserted + 1, block
        number = max(self.blocks, default=-1) + 1
        self.blocks[number] = stream, copy.deepcopy(block)
        if number >= NUM_BLOCKS:
            del self.blocks[number - NUM_BLOCKS]
        self.measured = {place: each for place, each in self.measured.items() if place.block in self.blocks}
        self.largest = max(self.measured.values(), default=self.largest)
        self.priority = {place: each for place, each in self.priority.items() if place.block in self.blocks}
        self.priority |= {place: self.largest for place in self.places() if place.block == number}

    @rule()
    def forget(self) -> None:
        self.replay.clear()
        self.saved: Replay | None = None
        self.blocks: dict[int, tuple[int, ExperienceBlock]] = {}
        self.measured: dict[Place, float] = {}
        self.priority: dict[Place, float] = {}
        self.largest = 1.0

    @precondition(lambda self: self.blocks)
    @rule(is_held_out=st.booleans())
    def sample(self, is_held_out: bool) -> None:
        source, places = (self.replay.own, self.replay.held_out)[is_held_out], self.places(is_held_out)
        if not places:
            with pytest.raises(ValueError, match="no transition"):
                source.sample(16)
            return
        self.replay.beta = BETA
        batch, place_at = draw(source), {self.state(place): place for place in places}
        drawn = [place_at[float(state)] for state in batch.floats]
        assert batch.row.tolist() == [self.row(place) for place in drawn]
        for k, place in enumerate(drawn):
            reward, discount, after = self.worth(place)
            assert float(batch.reward[k]) == pytest.approx(reward, rel=1e-5, abs=1e-5)
            assert float(batch.discount[k]) == pytest.approx(discount)
            assert (float(batch.next_floats[k]), int(batch.next_image[k])) == (after, after % 256)
            assert (int(batch.image[k]), int(batch.action[k])) == (
                self.state(place) % 256,
                int(self.at("action", place)[0]),
            )
        chance = {place: 1.0 / len(drawn) for place in drawn}
        if self.is_prioritised and not is_held_out:
            total = sum(each**ALPHA for each in self.priority.values())
            chance = {place: self.priority[place] ** ALPHA / total for place in drawn}
            assert source.largest_importance == pytest.approx(min(chance.values()) ** -BETA)
        rarest = min(chance.values())
        np.testing.assert_allclose(batch.importance, [(chance[place] / rarest) ** -BETA for place in drawn], rtol=1e-5)

    @precondition(lambda self: self.priority and self.is_prioritised)
    @rule(seed=SEEDS)
    def measure(self, seed: int) -> None:
        rng, places = np.random.default_rng(seed), [*self.priority]
        places = [places[k] for k in rng.permutation(len(places))[: rng.integers(0, 5)]]
        errors = rng.normal(size=len(places)).astype(np.float32)
        assert self.replay.priorities is not None
        self.saved = None
        self.replay.priorities.update(np.array([self.row(place) for place in places], np.int64), errors)
        is_first = not self.measured
        self.measured |= {place: abs(float(error)) + EPSILON for place, error in zip(places, errors, strict=True)}
        self.largest = max(self.measured.values(), default=self.largest)
        if is_first:
            self.priority = dict.fromkeys(self.priority, self.largest)
        self.priority |= self.measured

    @rule(seed=SEEDS)
    def save_and_load(self, seed: int) -> None:
        """To the bit: both draw the same, and go on alike."""
        state, pieces = self.replay.experience()
        resumed = self.make()
        resumed.load_experience(StoredExperience(copy.deepcopy(state), copy.deepcopy(dict(pieces))))
        resumed.beta = self.replay.beta  # a schedule of the learner, set before each draw
        for source in ("own", "held_out"):
            if self.places(source == "held_out"):
                drawn = []
                for replay in (self.replay, resumed):
                    replay._generator.manual_seed(seed)
                    drawn.append(draw(getattr(replay, source)))
                assert all(torch.equal(*columns) for columns in zip(*drawn, strict=True))
        self.saved, self.replay = self.replay if self.blocks else None, resumed

    # What holds at any time ------------------------------------------------------------------------------------------

    @invariant()
    def blocks_are_the_newest(self) -> None:
        assert self.replay.num_rows == len(self.blocks) * SPEC.num_env_steps
        assert self.replay.has_states() == bool(self.places() or self.places(is_held_out=True))
        if self.blocks:
            check_links(self.replay.ring)
            assert self.replay.has_held_out() == bool(self.places(is_held_out=True))

    @invariant()
    def a_race_is_on_one_side(self) -> None:
        for place in self.places(is_held_out=self.share < 1.0):
            assert 0.0 < self.share < 1.0, "all or none"
            path = self.path(place, past_exploring=True)
            assert all(self.is_held_out(each) for each in path)

    @invariant()
    def priorities_are_those_of_the_twin(self) -> None:
        if self.replay.priorities is not None:
            expected = np.zeros(NUM_BLOCKS * SPEC.num_env_steps)
            for place, priority in self.priority.items():
                expected[self.row(place)] = priority**ALPHA
            np.testing.assert_allclose(self.replay.priorities.weights, expected, rtol=1e-6)

    # The twin --------------------------------------------------------------------------------------------------------

    def random_block(self, before: ExperienceBlock | None, rng: np.random.Generator) -> ExperienceBlock:
        block, was_over = new_block(SPEC), np.zeros(SPEC.num_cars, np.bool_)
        block.number[...] = 1000 * self.num_inserted
        size = block.potential.size
        block.floats[..., 0] = self.num_seen + np.arange(size).reshape(block.potential.shape)
        self.num_seen += size
        for name in ("potential", "reward"):
            getattr(block, name)[...] = rng.normal(size=getattr(block, name).shape)
        block.action[...] = rng.integers(0, 12, block.action.shape)
        block.is_greedy[...] = rng.random(block.is_greedy.shape) < 0.7
        if before is not None:
            block.number[...] = before.number + 1
            block.floats[0], block.potential[0] = before.floats[-1], before.potential[-1]
            was_over = before.terminated[-1] | before.truncated[-1]
        block.image[...] = (block.floats[..., 0] % 256).astype(np.uint8)[:, :, None, None, None]
        for step, ends in enumerate(rng.random((SPEC.num_steps, SPEC.num_cars))):
            block.is_reset[step] = was_over
            block.terminated[step] = (ends < 0.15) & ~was_over
            block.truncated[step] = (ends > 0.85) & ~was_over
            was_over = block.terminated[step] | block.truncated[step]
        return block

    def at(self, field: str, place: Place) -> Any:
        return getattr(self.blocks[place.block][1], field)[place.step, place.car]

    def state(self, place: Place) -> int:
        return int(self.at("floats", place)[0])

    def row(self, place: Place) -> int:
        return (place.block % NUM_BLOCKS * SPEC.num_steps + place.step) * SPEC.num_cars + place.car

    def is_held_out(self, place: Place) -> bool:
        return bool(self.replay.ring.arrays.is_held_out[place.block % NUM_BLOCKS, place.step, place.car])

    def places(self, is_held_out: bool = False) -> list[Place]:
        """All transitions on one side of the split."""
        steps = [(block, *place) for block in self.blocks for place in np.ndindex(SPEC.num_steps, SPEC.num_cars)]
        places = [Place(*each) for each in steps]
        return [
            each for each in places if not self.at("is_reset", each) and self.is_held_out(each) == bool(is_held_out)
        ]

    def following(self, place: Place) -> Place | None:
        """The same car's next decision, if it is stored."""
        if place.step + 1 < SPEC.num_steps:
            return place._replace(step=place.step + 1)
        stream, block = self.blocks[place.block]
        for number, (other, later) in self.blocks.items():
            if number > place.block and other == stream and later.number == block.number + 1:
                return Place(number, 0, place.car)
        return None

    def path(self, place: Place, *, past_exploring: bool) -> list[Place]:
        """The decisions of a transition."""
        path = [place]
        while len(path) < self.max_steps and not (self.at("terminated", path[-1]) or self.at("truncated", path[-1])):
            following = self.following(path[-1])
            if following is None or self.at("is_reset", following):
                break
            if not (past_exploring or self.at("is_greedy", following)):
                break
            path.append(following)
        return path

    def worth(self, place: Place) -> tuple[float, float, int]:
        """The shaped reward of the transition from a place, its discount, and the state after it."""
        path = self.path(place, past_exploring=self.past_exploring)
        last = path[-1]._replace(step=path[-1].step + 1)  # a block has one observation more than decisions
        discount = 0.0 if self.at("terminated", path[-1]) else GAMMA ** len(path)
        paid = sum(GAMMA**count * float(self.at("reward", each)) for count, each in enumerate(path))
        shaping = discount * float(self.at("potential", last)) - float(self.at("potential", place))
        return paid + shaping, discount, self.state(last)


test_replay_is_its_twin = ReplayAgainstTwin.TestCase
