"""Batches: what is drawn, from where, and that it is reproducible."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torchrl.data import ReplayBuffer

from rulka.buffers.demonstrations import as_block, demonstration_buffer
from rulka.buffers.experience import BlockSpec, ExperienceBlock, new_block
from rulka.buffers.mini_race import ClockRule
from rulka.buffers.sampler import Batch, BatchMemory, collate_returns, draw_rows, empty_batch
from rulka.buffers.storage import BlockBuffer
from rulka.buffers.torchrl_parts import BlockStorage, BlockWriter, MiniRaceCollate, UniformRows
from rulka.buffers.transitions import find_transitions

SPEC = BlockSpec(num_steps=5, num_cars=3, height=2, width=2, num_floats=4)
RULE = ClockRule(140, 40, 5)
MakeStream = Callable[..., list[ExperienceBlock]]


def filled(make_stream: MakeStream, num_blocks: int = 4, stream: int = 0) -> BlockBuffer:
    buffer = BlockBuffer(SPEC, num_slots=6)
    for block in make_stream(SPEC, num_blocks, stream):
        buffer.insert(block, 0)
    return buffer


def drawn(
    buffer: BlockBuffer,
    size: int,
    gamma: float,
    generator: torch.Generator,
    memory: BatchMemory | None = None,
    rows=None,
) -> Batch:
    """A batch of transitions of up to three decisions; or some rows of one in a memory."""
    storage = BlockStorage(buffer)
    collate = MiniRaceCollate(storage, memory or BatchMemory((1, 2, 2), 4, size), RULE, 3, generator)
    collate.gamma, collate.rows = gamma, rows or collate.rows
    parts = {"sampler": UniformRows(), "writer": BlockWriter(), "collate_fn": collate, "generator": generator}
    return ReplayBuffer(storage=storage, **parts).sample(size)


def test_rows_are_uniform_over_transitions(make_stream: MakeStream):
    buffer = filled(make_stream)
    rows = draw_rows(buffer, 40_000, torch.Generator().manual_seed(0))
    is_reset = buffer.arrays.is_reset.reshape(-1)[: buffer.num_rows]
    counts = np.bincount(rows, minlength=buffer.num_rows)
    assert is_reset.any(), "the data must hold resets"
    assert not counts[is_reset].any()
    expected = 40_000 / (~is_reset).sum()
    assert abs(counts[~is_reset] - expected).max() < 5 * np.sqrt(expected)


def test_a_buffer_of_resets_is_refused():
    buffer = BlockBuffer(SPEC, num_slots=2)
    block = new_block(SPEC)
    block.is_reset[...] = True
    buffer.insert(block, 0)
    with pytest.raises(ValueError, match="no transition"):
        draw_rows(buffer, 3, torch.Generator())


def test_batch_belongs_together(make_stream: MakeStream):
    """Image, floats, clock and target of each row speak of the same transition."""
    buffer = filled(make_stream)
    batch = drawn(buffer, 256, 0.5, torch.Generator().manual_seed(0))
    names = {}
    rows = np.flatnonzero(~buffer.arrays.is_reset.reshape(-1)[: buffer.num_rows])
    found = find_transitions(buffer.arrays, rows, 3)
    flat = buffer.arrays.floats.reshape(-1, 4)
    for i in range(len(rows)):
        names[float(flat[found.observation[i], 1])] = i
    for b in range(256):
        i = names[float(batch.floats[b, 1])]
        length, clock = int(found.num_steps[i]), float(batch.floats[b, 0])
        assert float(batch.next_floats[b, 1]) == flat[found.next_observation[i], 1]
        assert float(batch.next_floats[b, 0]) - clock == length
        assert int(batch.image[b, 0, 0, 0]) == int(batch.floats[b, 1]) % 256
        assert int(batch.next_image[b, 0, 0, 0]) == int(batch.next_floats[b, 1]) % 256
        assert int(batch.action[b]) == found.action[i]
        is_over = bool(found.is_terminal[i]) or clock + length >= 140
        assert float(batch.discount[b]) == (0.0 if is_over else 0.5**length)
    assert len(set(batch.floats[:, 0].tolist())) > 30, "clocks differ"


def test_same_seed_same_batch(make_stream: MakeStream):
    buffer = filled(make_stream)
    batches = []
    for _ in range(2):
        batches.append(drawn(buffer, 16, 0.9, torch.Generator().manual_seed(5)))
    assert all(torch.equal(a, b) for a, b in zip(*batches, strict=True))


def test_buffers_share_the_memory_of_one_batch(make_stream: MakeStream):
    own, shown = filled(make_stream, stream=0), filled(make_stream, stream=5)
    memory, generator = BatchMemory((1, 2, 2), 4, 8), torch.Generator().manual_seed(0)
    drawn(own, 6, 0.9, generator, memory, slice(0, 6))
    drawn(shown, 2, 0.9, generator, memory, slice(6, 8))
    assert (memory.batch.floats[:6, 1] < 1000).all()
    assert (memory.batch.floats[6:, 1] >= 5000).all()


@pytest.mark.parametrize("lengths", [(150,), (64,), (1, 63, 65, 130)])
def test_demonstrations_of_any_length_keep_all_their_transitions(make_stream: MakeStream, lengths: tuple[int, ...]):
    blocks = []
    for number, length in enumerate(lengths):
        (block,) = make_stream(BlockSpec(length, 2, 2, 2, 4), 1, stream=number, end_share=0.0)
        block.is_greedy[...] = True
        block.terminated[-1] = True
        blocks.append(block)
    buffer = demonstration_buffer(blocks)
    buffer.check_valid()
    rows = np.flatnonzero(~buffer.arrays.is_reset.reshape(-1)[: buffer.num_rows])
    assert len(rows) == 2 * sum(lengths)
    found = find_transitions(buffer.arrays, rows, 3)
    assert int((found.num_steps < 3).sum()) == sum(2 * min(2, length) for length in lengths), "only before the finish"
    assert int(found.is_terminal.sum()) == sum(2 * min(3, length) for length in lengths)
    single = find_transitions(buffer.arrays, rows, 1)
    assert float(single.reward.sum()) == pytest.approx(sum(float(block.reward.sum()) for block in blocks), abs=1e-3)
    np.testing.assert_allclose(
        buffer.arrays.floats.reshape(-1, 4)[found.next_observation, 1]
        - buffer.arrays.floats.reshape(-1, 4)[found.observation, 1],
        found.num_steps,
        atol=1e-2,
    )


def test_no_demonstrations_are_refused():
    with pytest.raises(ValueError, match="no demonstrations"):
        demonstration_buffer([])


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
    """They go on past decisions that were not greedy, end with their race, and see the clock as it was stored."""
    spec, gamma = BlockSpec(6, 2, 2, 2, 4), 0.9
    buffer, blocks = BlockBuffer(spec, 8), make_stream(spec, 5)
    for block in blocks:
        buffer.insert(block, 0)
    joined = {
        name: np.concatenate([getattr(block, name) for block in blocks])
        for name in ("reward", "terminated", "truncated", "is_reset", "action")
    }
    potential = np.concatenate([block.potential[:-1] for block in blocks] + [blocks[-1].potential[-1:]])
    rows = np.flatnonzero(~joined["is_reset"].reshape(-1))
    batch = empty_batch((1, 2, 2), 4, len(rows))
    collate_returns(batch, buffer, rows, max_steps, gamma)
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
        assert batch.reward[place].item() == pytest.approx(paid, abs=1e-5)
        assert batch.discount[place].item() == pytest.approx(discount, abs=1e-6)
        assert batch.action[place].item() == joined["action"][step, car]
        assert batch.floats[place, :2].tolist() == pytest.approx([0.0, step + car / 100])
        assert batch.next_floats[place, :2].tolist() == pytest.approx([0.0, step + count + car / 100])
