"""Replay: what is drawn, from where, by torchrl's `ReplayBuffer` with our parts, and that it is reproducible."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch

from rulka.agents.iqn import mini_race_returns
from rulka.buffers.experience import BlockSpec, Experience, ExperienceBlock, as_block, new_block
from rulka.buffers.replay import FEATURES, RaceSplit, Replay, demonstration_ring, draw_rows, make_batch
from rulka.buffers.ring import BlockRing, find_transitions, shaped_returns
from rulka.device import CPU
from tests.buffers.valid import check_links

SPEC = BlockSpec(num_steps=5, num_cars=3, height=2, width=2, num_floats=4)
PRIORITY = 0.5, 0.1
MakeStream = Callable[..., list[ExperienceBlock]]


def filled(blocks: list[ExperienceBlock], seed: int = 0, **settings: object) -> Replay:
    """A replay with room for four blocks of transitions of up to three decisions."""
    generator = torch.Generator().manual_seed(seed)
    replay = Replay(4 * SPEC.num_env_steps, 3, CPU, generator, **settings)
    for number, block in enumerate(blocks):
        replay.insert(block, 0, number * SPEC.num_env_steps)
    return replay


def test_rows_are_uniform_over_transitions(make_stream: MakeStream):
    ring = filled(make_stream(SPEC, 4)).ring
    rows = draw_rows(ring, 40_000, torch.Generator().manual_seed(0))
    is_reset = ring.arrays.is_reset.reshape(-1)[: ring.num_rows]
    counts = np.bincount(rows, minlength=ring.num_rows)
    assert is_reset.any(), "the data must hold resets"
    assert not counts[is_reset].any()
    expected = 40_000 / (~is_reset).sum()
    assert abs(counts[~is_reset] - expected).max() < 5 * np.sqrt(expected)


def test_a_ring_of_resets_is_refused():
    ring = BlockRing(SPEC, num_slots=2)
    block = new_block(SPEC)
    block.is_reset[...] = True
    ring.insert(block, 0)
    with pytest.raises(ValueError, match="no transition"):
        draw_rows(ring, 3, torch.Generator())


def test_nothing_is_drawn_before_the_first_block():
    replay = filled([])
    for draw in (replay.draw, replay.draw_held_out, replay.draw_states):
        with pytest.raises(ValueError, match="nothing was inserted"):
            draw(3)


@pytest.mark.parametrize("priority", [None, PRIORITY])
def test_transitions_belong_together(make_stream: MakeStream, priority):
    """Image, floats, action and returns of each row speak of the same transition, of the blocks not written over."""
    replay = filled(make_stream(SPEC, 6), priority=priority)
    ring = replay.ring
    assert replay.num_rows == 60, "the ring is full, the oldest blocks are written over"
    drawn = replay.draw(256)
    clock = np.arange(256) % 140
    batch = make_batch(drawn, mini_race_returns(drawn.found, clock, 0.5, 140), CPU)
    found = find_transitions(ring.arrays, drawn.row.numpy(), 3)
    flat = ring.seen["floats"].numpy().reshape(-1, 4)
    for seen, index in ((batch.floats, found.observation), (batch.next_floats, found.next_observation)):
        np.testing.assert_array_equal(seen.numpy(), flat[index])
    for image, floats in ((batch.image, batch.floats), (batch.next_image, batch.next_floats)):
        np.testing.assert_array_equal(image[:, 0, 0, 0], floats[:, 1].to(torch.int64) % 256)
    np.testing.assert_array_equal(batch.action.numpy(), found.action)
    is_over = found.is_terminal | (clock + found.num_steps >= 140)
    np.testing.assert_array_equal(batch.bootstrap_discount.numpy(), np.where(is_over, 0.0, 0.5**found.num_steps))
    assert batch.floats[:, 1].min() >= 10, "what was written over is gone"
    assert not ring.arrays.is_reset.reshape(-1)[drawn.row.numpy()].any()
    assert batch.next_guide.shape == (256, 0)


def test_same_seed_same_batch(make_stream: MakeStream):
    drawn = [filled(make_stream(SPEC, 4), seed=5).draw(16) for _ in range(2)]
    assert torch.equal(drawn[0].row, drawn[1].row)
    assert all(torch.equal(a, b) for a, b in zip(drawn[0][1:], drawn[1][1:], strict=True))


def test_demonstrations_are_drawn_from_by_themselves(make_stream: MakeStream):
    replay = filled(make_stream(SPEC, 4, stream=0))
    assert not replay.has_demonstrations()
    replay.insert_demonstrations(make_stream(SPEC, 4, stream=5))
    assert replay.has_demonstrations()
    assert (replay.draw(32).floats[:, 1] < 1000).all()
    assert (replay.draw_demonstrations(32).floats[:, 1] >= 5000).all()
    replay.clear()
    assert replay.num_rows == 0
    assert (replay.draw_demonstrations(8).floats[:, 1] >= 5000).all(), "they stay"


def test_priorities_through_torchrl(make_stream: MakeStream):
    """Errors 0.9 and 8.9 and epsilon 0.1: priorities 1 and 9, probabilities 1 to 3, weights 1 and 1 / 3."""
    replay = filled(make_stream(SPEC, 4), priority=PRIORITY)
    rows = np.flatnonzero(~replay.ring.arrays.is_reset.reshape(-1))
    errors = np.resize([0.9, -8.9], len(rows)).astype(np.float32)
    replay.update_priorities(torch.from_numpy(rows), torch.from_numpy(errors))
    drawn = replay.draw(6400)
    is_large = np.isin(drawn.row.numpy(), rows[1::2])
    num_large = len(rows[1::2])
    assert is_large.mean() == pytest.approx(3 * num_large / (2 * num_large + len(rows)), abs=0.01)
    np.testing.assert_allclose(drawn.weight.numpy(), np.where(is_large, 1 / 3, 1.0), rtol=1e-6)
    row, stored = drawn.row.numpy(), replay.ring.seen["floats"].numpy()
    np.testing.assert_array_equal(drawn.floats[:, 1].numpy(), stored[row // 15, row // 3 % 5, row % 3, 1])


@pytest.mark.parametrize("priority", [None, PRIORITY])
def test_experience_goes_on_as_before(make_stream: MakeStream, priority):
    """To the bit: rows, priorities, links between blocks, and on which side each race is."""
    blocks = make_stream(SPEC, 7)
    replay, other = (filled(some, priority=priority, split=RaceSplit(0.4, seed=0)) for some in (blocks[:6], []))
    if priority is not None:
        index = torch.unique(replay.draw(64).row)
        replay.update_priorities(index, torch.linspace(0, 3, len(index)))
    state, pieces = replay.experience()
    other.load_experience(Experience(copy.deepcopy(state), copy.deepcopy(dict(pieces))))
    drawn = []
    for one in (replay, other):
        one.insert(blocks[6], 0, 90)
        check_links(one.ring)
        one._generator.manual_seed(5)
        drawn.append((one.draw(64), one.draw_held_out(64)))
    for ours, theirs in zip(*drawn, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours[1:], theirs[1:], strict=True))
    assert other.ring.arrays.next_slot.tolist() == replay.ring.arrays.next_slot.tolist()


def test_experience_of_another_shape_is_refused(make_stream: MakeStream):
    state, pieces = filled(make_stream(SPEC, 4)).experience()
    generator = torch.Generator()
    with pytest.raises(ValueError, match="stored blocks are not the last"):
        Replay(SPEC.num_env_steps, 3, CPU, generator).load_experience(Experience(state, pieces))


def test_chunks_of_actions_are_drawn_whole():
    """Three actions a decision, all of which say in which decision they were taken."""
    spec = BlockSpec(num_steps=4, num_cars=2, height=2, width=2, num_floats=4, decision_shape=(3,))
    block = new_block(spec)
    block.action[:] = np.arange(8).reshape(4, 2, 1)
    drawn = filled([block]).draw(20)
    assert drawn.found.action.tolist() == [[row] * 3 for row in drawn.row.tolist()]


def test_held_out_transitions_are_drawn_by_who_asks_for_them_alone(make_stream: MakeStream):
    replay = filled(make_stream(SPEC, 4), split=RaceSplit(0.4, seed=0))
    is_held_out = torch.from_numpy(replay.ring.arrays.is_held_out.reshape(-1))
    assert replay.has_held_out()
    assert not is_held_out[replay.draw(64).row].any()
    assert is_held_out[replay.draw_held_out(64).row].all()


def test_features_stand_for_images_as_long_as_they_are_kept(make_stream: MakeStream):
    """In all that is drawn, own, demonstrated and held out alike; and in states."""
    replay = filled(make_stream(SPEC, 4))
    replay.insert_demonstrations(make_stream(SPEC, 1))
    replay.keep(FEATURES, lambda image, _floats: image.float().mean(dim=(2, 3)))
    for draw in (replay.draw, replay.draw_demonstrations):
        assert draw(8).image.shape == draw(8).next_image.shape == (8, 1)
    assert replay.draw_states(8)[0].shape == (8, 1)
    replay.drop(FEATURES)
    assert replay.draw(8).image.shape == replay.draw_states(8)[0].shape == (8, 1, 2, 2)


def test_states_are_those_of_decisions(make_stream: MakeStream):
    replay = filled(make_stream(SPEC, 4))
    image, floats = replay.draw_states(64)
    stored = replay.ring.seen["floats"].numpy()[:, :-1, :, 1][~replay.ring.arrays.is_reset]
    assert np.isin(floats[:, 1].numpy(), stored).all()
    np.testing.assert_array_equal(image[:, 0, 0, 0], floats[:, 1].to(torch.int64) % 256)


@pytest.mark.parametrize("lengths", [(150,), (64,), (1, 63, 65, 130)])
def test_demonstrations_of_any_length_keep_all_their_transitions(make_stream: MakeStream, lengths: tuple[int, ...]):
    blocks = []
    for number, length in enumerate(lengths):
        (block,) = make_stream(BlockSpec(length, 2, 2, 2, 4), 1, stream=number, end_share=0.0)
        block.is_greedy[...] = True
        block.terminated[-1] = True
        blocks.append(block)
    ring = demonstration_ring(blocks)
    check_links(ring)
    rows = np.flatnonzero(~ring.arrays.is_reset.reshape(-1)[: ring.num_rows])
    assert len(rows) == 2 * sum(lengths)
    found = find_transitions(ring.arrays, rows, 3)
    assert int((found.num_steps < 3).sum()) == sum(2 * min(2, length) for length in lengths), "only before the finish"
    assert int(found.is_terminal.sum()) == sum(2 * min(3, length) for length in lengths)
    single = find_transitions(ring.arrays, rows, 1)
    assert float(single.reward.sum()) == pytest.approx(sum(float(block.reward.sum()) for block in blocks), abs=1e-3)
    np.testing.assert_allclose(
        ring.seen["floats"].numpy().reshape(-1, 4)[found.next_observation, 1]
        - ring.seen["floats"].numpy().reshape(-1, 4)[found.observation, 1],
        found.num_steps,
        atol=1e-2,
    )


def test_no_demonstrations_are_refused():
    with pytest.raises(ValueError, match="no demonstrations"):
        demonstration_ring([])


def test_plain_arrays_become_a_block():
    rng = np.random.default_rng(0)
    observations = {
        "image": rng.integers(0, 255, (4, 1, 2, 2)).astype(np.uint8),
        "floats": rng.normal(size=(4, 5)).astype(np.float32),
    }
    decisions = {
        "action": np.array([3, 1, 2]),
        "reward": np.array([0.5, 1.0, 2.0], np.float32),
        "terminated": np.array([False, False, True]),
    }
    block = as_block(observations, decisions)
    np.testing.assert_array_equal(block.image[:, 0], observations["image"])
    np.testing.assert_array_equal(block.floats[:, 0], observations["floats"])
    assert block.action[:, 0].tolist() == [3, 1, 2]
    assert block.terminated[:, 0].tolist() == [False, False, True]
    assert block.is_greedy.all()
    assert not block.truncated.any()


@pytest.mark.parametrize("max_steps", [1, 3])
def test_returns_without_mini_races_agree_with_a_naive_loop(make_stream: MakeStream, max_steps: int) -> None:
    """They go on past decisions that were not greedy, and end with their race."""
    spec, gamma = BlockSpec(6, 2, 2, 2, 4), 0.9
    ring, blocks = BlockRing(spec, 8), make_stream(spec, 5)
    for block in blocks:
        ring.insert(block, 0)
    joined = {
        name: np.concatenate([getattr(block, name) for block in blocks])
        for name in ("reward", "terminated", "truncated", "is_reset", "action")
    }
    potential = np.concatenate([block.potential[:-1] for block in blocks] + [blocks[-1].potential[-1:]])
    rows = np.flatnonzero(~joined["is_reset"].reshape(-1))
    found = find_transitions(ring.arrays, rows, max_steps, past_exploring=True)
    returns = shaped_returns(found, found.num_steps, found.is_terminal, gamma)
    floats, next_floats = (ring.gather("floats", index) for index in (found.observation, found.next_observation))
    for place, row in enumerate(rows):
        step, car = divmod(int(row), 2)
        paid, count, has_ended = 0.0, 0, False
        while count < max_steps and step + count < 30 and not (count and joined["is_reset"][step + count, car]):
            paid += gamma**count * joined["reward"][step + count, car]
            count += 1
            has_ended = bool(joined["terminated"][step + count - 1, car])
            if has_ended or joined["truncated"][step + count - 1, car]:
                break
        discount = 0.0 if has_ended else gamma**count
        paid += discount * potential[step + count, car] - potential[step, car]
        assert returns.reward[place] == pytest.approx(paid, abs=1e-5)
        assert returns.discount[place] == pytest.approx(discount, abs=1e-6)
        assert found.action[place] == joined["action"][step, car]
        assert floats[place, :2].tolist() == pytest.approx([0.0, step + car / 100])
        assert next_floats[place, :2].tolist() == pytest.approx([0.0, step + count + car / 100])
