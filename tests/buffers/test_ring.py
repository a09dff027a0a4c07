"""The ring of blocks and the transitions read from it, against slow twins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from rulka.buffers.experience import BlockSpec, ExperienceBlock, new_block
from rulka.buffers.ring import NO_SLOT, BlockRing, find_transitions
from tests.buffers.valid import check_links

SPEC = BlockSpec(num_steps=5, num_cars=3, height=2, width=2, num_floats=4)
MakeStream = Callable[..., list[ExperienceBlock]]


def every_row(ring: BlockRing) -> np.ndarray:
    rows = np.arange(ring.num_rows)
    return rows[~ring.arrays.is_reset.reshape(-1)[rows]]


def names(ring: BlockRing, index: np.ndarray) -> np.ndarray:
    return ring.seen["floats"].numpy().reshape(-1, SPEC.num_floats)[index, 1]


def test_ring_forgets_the_oldest_and_links_survive(make_stream: MakeStream):
    """Random insertions of three collectors, some restarting: links lead to the right observation at all times."""
    rng = np.random.default_rng(0)
    ring = BlockRing(SPEC, num_slots=5)
    streams = {stream: iter(make_stream(SPEC, 40, stream)) for stream in range(3)}
    fresh, num_restarts = 3, 0
    for number in range(60):
        collector = int(rng.integers(3))
        if rng.random() < 0.15:
            streams[collector] = iter(make_stream(SPEC, 40, fresh))
            fresh, num_restarts = fresh + 1, num_restarts + 1
        ring.insert(next(streams[collector]), collector)
        check_links(ring)
        assert ring.num_blocks == min(number + 1, 5)
        assert ring.num_rows == ring.num_blocks * 15
        found = find_transitions(ring.arrays, every_row(ring), 4)
        start, end = names(ring, found.observation), names(ring, found.next_observation)
        np.testing.assert_allclose(end - start, found.num_steps, atol=1e-2)
    assert num_restarts > 3


def test_streams_that_look_alike_are_not_mixed(make_stream: MakeStream):
    """Every observation is the same here: only the streams' numbers tell which block continues which."""
    (block,) = make_stream(SPEC, 1)
    block.floats[...] = 0
    ring = BlockRing(SPEC, num_slots=2)
    for stream in (0, 1, 1):  # the third overwrites the only block of stream 0
        ring.insert(block, stream)
    assert ring.arrays.next_slot.tolist() == [NO_SLOT, 0]
    ring.insert(block, 0)
    assert ring.arrays.next_slot.tolist() == [NO_SLOT, NO_SLOT]


def test_wrong_shapes_are_refused(make_stream: MakeStream):
    ring = BlockRing(SPEC, num_slots=2)
    other = BlockSpec(num_steps=4, num_cars=3, height=2, width=2, num_floats=4)
    with pytest.raises(ValueError, match="does not fit"):
        ring.insert(make_stream(other, 1)[0], 0)
    with pytest.raises(ValueError, match="at least two"):
        BlockRing(SPEC, num_slots=1)


def test_blocks_of_actions_are_read_as_they_were_written() -> None:
    """Three actions a decision: the ring keeps [T, N, 3], a transition has the first block, whatever its length."""
    spec = BlockSpec(num_steps=4, num_cars=2, height=2, width=2, num_floats=4, decision_shape=(3,))
    ring = BlockRing(spec, 3)
    rng = np.random.default_rng(0)
    blocks = []
    for number in range(4):  # the first is overwritten by the last
        block = new_block(spec)
        block.action[:] = rng.integers(0, 12, block.action.shape)
        block.is_greedy[:] = True
        ring.insert(block, number)
        blocks.append(block.action.copy())
    assert ring.arrays.action.shape == (3, 4, 2, 3)
    rows = rng.integers(0, ring.num_rows, 50)
    found = find_transitions(ring.arrays, rows, 2)
    expected = np.stack([blocks[3], blocks[1], blocks[2]]).reshape(-1, 3)[rows]
    np.testing.assert_array_equal(found.action, expected)
    assert found.action.dtype == np.int64


def with_frames(blocks: list[ExperienceBlock], frames: int) -> list[ExperienceBlock]:
    """Returns the same blocks with frames that were seen at once, put together decision by decision."""
    stacked, seen = [], np.repeat(blocks[0].image[0], frames, axis=1)
    for block in blocks:
        wider = new_block(replace(block.spec, frames=frames))
        for name in block.spec.layout():
            if name != "image":
                getattr(wider, name)[...] = getattr(block, name)
        wider.image[0] = seen
        for step in range(block.spec.num_steps):
            seen = np.concatenate([seen[:, 1:], block.image[step + 1]], axis=1)
            first = block.is_reset[step]
            seen[first] = block.image[step + 1][first]
            wider.image[step + 1] = seen
        stacked.append(wider)
    return stacked


@pytest.mark.parametrize("frames", [2, 4, 8])
def test_several_frames_are_stored_once_and_seen_as_they_were(make_stream: MakeStream, frames: int) -> None:
    """More frames than a block has decisions too; races that end and begin anywhere, the ring wraps around."""
    streams = [with_frames(make_stream(SPEC, 7, stream, end_share=0.15), frames) for stream in (0, 1)]
    for blocks in streams:  # the images of one race differ in every decision
        for block in blocks:
            assert block.is_reset.any() or block.num_transitions == block.is_reset.size
    ring = BlockRing(streams[0][0].spec, 6)
    ring.keep("mean", lambda image, _floats: image.float().mean(dim=(1, 2, 3))[:, None])
    slots = {}
    for pair in zip(*streams, strict=True):
        for stream, block in enumerate(pair):
            slots[ring.insert(block, stream)] = block
    assert ring.seen["image"].shape == (6, SPEC.num_steps + frames, SPEC.num_cars, 4)
    rows = SPEC.num_cars * (SPEC.num_steps + 1)
    for slot, block in slots.items():
        index = slot * rows + np.random.default_rng(0).permutation(rows)
        out = ring.gather("image", index)
        expected = torch.from_numpy(block.image.reshape(rows, frames, 2, 2)[index - slot * rows])
        assert torch.equal(out, expected)
        kept = ring.gather("mean", index)
        torch.testing.assert_close(kept[:, 0], expected.float().mean(dim=(1, 2, 3)))
    other = BlockRing(ring.spec, 6)
    other.load_ring(ring.ring_state(), {number: ring.block_arrays(number) for number in ring.numbers()})
    assert torch.equal(other.seen["image"], ring.seen["image"])


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_kept_in_the_place_of_images_is_what_was_made_of_them(
    make_stream: MakeStream, frames: int, dtype: torch.dtype
) -> None:
    """Beside a ring that has the images; it goes on to the bit, and its images take no memory."""
    blocks = make_stream(SPEC, 7, end_share=0.15)
    blocks = blocks if frames == 1 else with_frames(blocks, frames)

    def derive(image: torch.Tensor, floats: torch.Tensor) -> torch.Tensor:
        return torch.stack([image.float().mean(dim=(1, 2, 3)), floats[:, 1]], dim=1).to(dtype)

    full, lean = BlockRing(blocks[0].spec, 4), BlockRing(blocks[0].spec, 4, with_images=False)
    for ring in (full, lean):
        ring.keep("made", derive)
        for block in blocks:
            ring.insert(block, 0)
    assert "image" in full.seen
    assert "image" not in lean.seen
    assert torch.equal(lean.seen["made"], full.seen["made"])
    assert len(lean.seen["made"].unique()) > 2

    resumed = BlockRing(lean.spec, 4, with_images=False)
    resumed.keep("made", derive)
    resumed.load_ring(lean.ring_state(), {number: lean.block_arrays(number) for number in lean.numbers()})
    assert torch.equal(resumed.seen["made"], lean.seen["made"])
    np.testing.assert_array_equal(resumed.arrays.action, lean.arrays.action)


def test_images_that_are_not_stored_are_not_asked_for(make_stream: MakeStream) -> None:
    full, lean = BlockRing(SPEC, 4), BlockRing(SPEC, 4, with_images=False)
    for ring in (full, lean):
        ring.insert(make_stream(SPEC, 1)[0], 0)
    with pytest.raises(ValueError, match="images of what is stored are not"):
        lean.keep("mean", lambda image, _floats: image.float().mean(dim=(1, 2, 3))[:, None])
    pieces = {number: full.block_arrays(number) for number in full.numbers()}
    other = BlockRing(SPEC, 4, with_images=False)
    other.keep("mean", lambda image, _floats: image.float().mean(dim=(1, 2, 3))[:, None])
    with pytest.raises(ValueError, match=r"stored are images, wanted are \['mean'\]"):
        other.load_ring(full.ring_state(), pieces)
