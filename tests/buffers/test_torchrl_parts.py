"""Our parts inside torchrl's own `ReplayBuffer`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torchrl.data import ReplayBuffer

from rulka.buffers.experience import BlockSpec, ExperienceBlock, new_block
from rulka.buffers.mini_race import ClockRule
from rulka.buffers.prioritised import Priorities
from rulka.buffers.sampler import BatchMemory
from rulka.buffers.storage import BlockBuffer
from rulka.buffers.torchrl_parts import (
    BlockStorage,
    BlockWriter,
    MiniRaceCollate,
    PrioritisedRows,
    StreamedBlock,
    UniformRows,
)
from rulka.buffers.transitions import find_transitions

SPEC = BlockSpec(num_steps=5, num_cars=3, height=2, width=2, num_floats=4)
RULE = ClockRule(140, 40, 5)
MakeStream = Callable[..., list[ExperienceBlock]]


def build(*, prioritised: bool, batch_size: int = 64) -> ReplayBuffer:
    storage = BlockStorage(BlockBuffer(SPEC, num_slots=4))
    memory = BatchMemory((1, 2, 2), 4, batch_size)
    return ReplayBuffer(
        storage=storage,
        sampler=PrioritisedRows(storage, Priorities(storage.blocks, 0.5, 0.1)) if prioritised else UniformRows(),
        writer=BlockWriter(),
        collate_fn=MiniRaceCollate(storage, memory, RULE, 3, torch.Generator().manual_seed(1)),
        batch_size=batch_size,
        generator=torch.Generator().manual_seed(0),
    )


def stored(buffer: ReplayBuffer) -> BlockStorage:
    assert isinstance(buffer.storage, BlockStorage)
    return buffer.storage


@pytest.mark.parametrize("prioritised", [False, True])
def test_extend_sample_and_length(make_stream: MakeStream, prioritised: bool):
    """Batches hold the transitions that their indices point to."""
    buffer = build(prioritised=prioritised)
    blocks = make_stream(SPEC, 6)
    index = buffer.extend([StreamedBlock(block, 0) for block in blocks[:3]])
    assert index.tolist() == list(range(45))
    assert len(buffer) == 45
    buffer.add(StreamedBlock(blocks[3], 0))
    buffer.extend([StreamedBlock(blocks[4], 0), StreamedBlock(blocks[5], 0)])
    assert len(buffer) == 60, "the ring is full, the oldest blocks are written over"
    assert buffer.write_count == 90
    batch, info = buffer.sample(return_info=True)
    arrays = stored(buffer).blocks.arrays
    found = find_transitions(arrays, info["index"].numpy(), 3)
    np.testing.assert_array_equal(batch.action.numpy(), found.action)
    names = arrays.floats.reshape(-1, 4)[found.observation, 1]
    np.testing.assert_array_equal(batch.floats[:, 1].numpy(), names)
    assert names.min() >= 10, "what was written over is gone"
    assert not arrays.is_reset.reshape(-1)[info["index"].numpy()].any()
    stored(buffer).blocks.check_valid()


def test_priorities_through_torchrl(make_stream: MakeStream):
    """Errors 0.9 and 8.9 and epsilon 0.1: priorities 1 and 9, probabilities 1 to 3, weights 1 and 1 / 3."""
    buffer = build(prioritised=True, batch_size=6400)
    buffer.extend([StreamedBlock(block, 0) for block in make_stream(SPEC, 4)])
    rows = np.flatnonzero(~stored(buffer).blocks.arrays.is_reset.reshape(-1))
    errors = np.resize([0.9, -8.9], len(rows)).astype(np.float32)
    buffer.update_priority(torch.from_numpy(rows), torch.from_numpy(errors))
    _, info = buffer.sample(return_info=True)
    is_large = np.isin(info["index"].numpy(), rows[1::2])
    num_large = len(rows[1::2])
    assert is_large.mean() == pytest.approx(3 * num_large / (2 * num_large + len(rows)), abs=0.01)
    np.testing.assert_allclose(info["_weight"].numpy(), np.where(is_large, 1 / 3, 1.0), rtol=1e-6)


@pytest.mark.parametrize("prioritised", [False, True])
def test_state_goes_on_as_before(make_stream: MakeStream, prioritised: bool, tmp_path: Path):
    blocks = make_stream(SPEC, 7)
    buffer = build(prioritised=prioritised)
    buffer.extend([StreamedBlock(block, 0) for block in blocks[:6]])
    if prioritised:
        index = torch.unique(buffer.sample(return_info=True)[1]["index"])
        buffer.update_priority(index, torch.linspace(0, 3, len(index)))
    other, third = build(prioritised=prioritised), build(prioritised=prioritised)
    other.load_state_dict(buffer.state_dict())
    buffer.dumps(tmp_path)
    third.loads(tmp_path)
    for one in (buffer, other, third):
        one.extend([StreamedBlock(blocks[6], 0)])
        stored(one).blocks.check_valid()
        one.set_rng(torch.Generator().manual_seed(5))
        one._collate_fn.generator.manual_seed(6)
    batches = [one.sample() for one in (buffer, other, third)]
    for batch in batches[1:]:
        assert all(torch.equal(a, b) for a, b in zip(batches[0], batch, strict=True))
    assert stored(other).blocks.arrays.next_slot.tolist() == stored(buffer).blocks.arrays.next_slot.tolist()


def test_another_shape_of_state_is_refused(make_stream: MakeStream):
    buffer = build(prioritised=False)
    buffer.extend([StreamedBlock(block, 0) for block in make_stream(SPEC, 4)])
    with pytest.raises(ValueError, match="does not fit"):
        BlockStorage(BlockBuffer(SPEC, num_slots=2)).load_state_dict(buffer.storage.state_dict())


def test_emptied_buffers_begin_anew(make_stream: MakeStream):
    buffer = build(prioritised=True)
    blocks = make_stream(SPEC, 5)
    buffer.extend([StreamedBlock(block, 0) for block in blocks[:4]])
    buffer.empty()
    assert len(buffer) == 0
    buffer.extend([StreamedBlock(blocks[4], 0)])
    assert len(buffer) == 15
    _, info = buffer.sample(return_info=True)
    assert int(info["index"].max()) < 15


def test_blocks_of_actions_are_collated():
    """Three actions a decision, all of which say in which decision they were taken."""
    spec = BlockSpec(num_steps=4, num_cars=2, height=2, width=2, num_floats=4, decision_shape=(3,))
    storage = BlockStorage(BlockBuffer(spec, 2))
    block = new_block(spec)
    block.action[:] = np.arange(8).reshape(4, 2, 1)
    storage.blocks.insert(block, 0)
    collate = MiniRaceCollate(storage, BatchMemory((1, 2, 2), 4, 3, (3,)), RULE, 2, torch.Generator())
    batch = collate(np.array([5, 0, 7]))
    assert batch.action.tolist() == [[5] * 3, [0] * 3, [7] * 3]


def test_weights_and_rows_belong_to_the_observations(make_stream: MakeStream):
    """Importance weights are those of the rows that the observations come from."""
    buffer = build(prioritised=True, batch_size=12)
    buffer.extend([StreamedBlock(block, 0) for block in make_stream(SPEC, 4)])
    sampler, arrays = buffer.sampler, stored(buffer).blocks.arrays
    sampler.beta = 0.5
    rows = np.flatnonzero(~arrays.is_reset.reshape(-1))
    buffer.update_priority(torch.from_numpy(rows), torch.from_numpy(np.resize([0.0, 3.0], len(rows))))
    batch, info = buffer.sample(return_info=True)
    row = info["index"].numpy()
    weights = sampler.priorities.tree.weights[row]
    np.testing.assert_allclose(info["_weight"].numpy(), (weights / weights.min()) ** -0.5, rtol=1e-5)
    np.testing.assert_array_equal(batch.floats[:, 1].numpy(), arrays.floats[row // 15, row // 3 % 5, row % 3, 1])


def test_held_out_transitions_are_drawn_by_who_asks_for_them_alone(make_stream: MakeStream):
    buffer = build(prioritised=False)
    (block,) = make_stream(SPEC, 1)
    is_held_out = np.zeros(block.is_reset.shape, np.bool_)
    is_held_out[:, 1] = True
    buffer.extend([StreamedBlock(block, 0, is_held_out)])
    for from_held_out in (False, True):
        buffer.sampler.from_held_out = from_held_out
        _, info = buffer.sample(return_info=True)
        assert ((info["index"] % 3 == 1) == from_held_out).all()
