"""The ring of blocks, the transitions read from it, and prioritised rows, against slow twins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from rulka.buffers.experience import BlockSpec, ExperienceBlock, new_block
from rulka.buffers.held_out import RaceSplit
from rulka.buffers.priorities import Priorities
from rulka.buffers.replay import draw_rows
from rulka.buffers.ring import NO_SLOT, BlockRing, Derive

SPEC = BlockSpec(num_steps=5, num_cars=3, height=2, width=2, num_floats=4)
MakeStream = Callable[..., list[ExperienceBlock]]


def test_what_looks_alike_is_linked_by_its_number_alone(make_stream: MakeStream):
    """Every observation is the same here, as of an environment whose races begin alike and show little."""
    (block,) = make_stream(SPEC, 1)
    block.floats[...], block.image[...] = 0, 0
    ring = BlockRing(SPEC, num_slots=2)
    for stream, number in ((0, 5), (1, 6), (1, 7)):  # the third overwrites the only block of stream 0
        block.number[...] = number
        ring.insert(block, stream)
    assert ring.arrays.next_slot.tolist() == [NO_SLOT, 0]
    block.number[...] = 6
    ring.insert(block, 0)
    assert ring.arrays.next_slot.tolist() == [NO_SLOT, NO_SLOT], "what it continues is overwritten"
    resumed = BlockRing(SPEC, num_slots=2)
    resumed.load_ring(ring.ring_state(), {number: ring.block_arrays(number) for number in ring.numbers()})
    for each in (ring, resumed):
        block.number[...] = 7
        each.insert(block, 0)
        assert each.arrays.next_slot.tolist() == [NO_SLOT, 0]
        block.number[...] = 90  # begun anew
        each.insert(block, 0)
        assert each.arrays.next_slot.tolist() == [NO_SLOT, NO_SLOT]


def test_wrong_shapes_are_refused(make_stream: MakeStream):
    ring = BlockRing(SPEC, num_slots=2)
    other = BlockSpec(num_steps=4, num_cars=3, height=2, width=2, num_floats=4)
    with pytest.raises(ValueError, match="does not fit"):
        ring.insert(make_stream(other, 1)[0], 0)
    with pytest.raises(ValueError, match="at least two"):
        BlockRing(SPEC, num_slots=1)


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
    ring, slots = BlockRing(streams[0][0].spec, 6), {}
    for pair in zip(*streams, strict=True):
        for stream, block in enumerate(pair):
            slots[ring.insert(block, stream)] = block
    assert ring.observations["image"].shape == (6, SPEC.num_steps + frames, SPEC.num_cars, 4)
    rows = SPEC.num_cars * (SPEC.num_steps + 1)
    for slot, block in slots.items():
        order = np.random.default_rng(0).permutation(rows)
        expected = torch.from_numpy(block.image.reshape(rows, frames, 2, 2)[order])
        assert torch.equal(ring.gather("image", slot * rows + order), expected)


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

    full, lean = (BlockRing(blocks[0].spec, 4, with_images=has, derived={"made": derive}) for has in (True, False))
    for ring in (full, lean):
        for block in blocks:
            ring.insert(block, 0)
    assert "image" in full.observations
    assert "image" not in lean.observations
    assert torch.equal(lean.observations["made"], full.observations["made"])
    assert len(lean.observations["made"].unique()) > 2

    resumed = BlockRing(lean.spec, 4, with_images=False, derived={"made": derive})
    resumed.load_ring(lean.ring_state(), {number: lean.block_arrays(number) for number in lean.numbers()})
    assert torch.equal(resumed.observations["made"], lean.observations["made"])
    np.testing.assert_array_equal(resumed.arrays.action, lean.arrays.action)


def test_images_that_are_not_stored_are_not_asked_for(make_stream: MakeStream) -> None:
    derived: dict[str, Derive] = {}
    full, lean = BlockRing(SPEC, 4), BlockRing(SPEC, 4, with_images=False, derived=derived)
    for ring in (full, lean):
        ring.insert(make_stream(SPEC, 1)[0], 0)
    derived["mean"] = lambda image, _floats: image.float().mean(dim=(1, 2, 3))[:, None]
    with pytest.raises(ValueError, match="images of what is stored are not"):
        lean.update_derived()
    pieces = {number: full.block_arrays(number) for number in full.numbers()}
    other = BlockRing(SPEC, 4, with_images=False, derived=derived)
    with pytest.raises(ValueError, match=r"stored are images, wanted are \['mean'\]"):
        other.load_ring(full.ring_state(), pieces)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def filled_ring(make_stream: MakeStream, num_blocks: int = 4, alpha: float = 0.5) -> tuple[BlockRing, Priorities]:
    ring = BlockRing(SPEC, num_slots=4)
    priorities = Priorities(ring, alpha, epsilon=0.1)
    for block in make_stream(SPEC, num_blocks):
        priorities.enter(ring.insert(block, 0))
    return ring, priorities


def is_reset(ring: BlockRing) -> np.ndarray:
    return ring.arrays.is_reset.reshape(-1)[: ring.num_rows]


def test_probabilities_and_weights_by_their_formulas(make_stream: MakeStream):
    """Errors 0.9, 2.4, 6.2 and epsilon 0.1 are priorities 1, 2.5, 6.3; P = p^alpha / sum, w = (min P / P)^beta."""
    ring, priorities = filled_ring(make_stream)
    rows = np.flatnonzero(~is_reset(ring))
    errors = np.resize([0.9, -2.4, 6.2], len(rows)).astype(np.float32)
    priorities.update(rows, errors)
    drawn = priorities.draw(20_000, beta=0.7, generator=seeded())
    share = (np.abs(errors) + 0.1) ** 0.5
    share /= share.sum()
    counts = np.bincount(drawn.row, minlength=ring.num_rows) / 20_000
    np.testing.assert_allclose(counts[rows], share, atol=2 / 20_000)
    assert not counts[is_reset(ring)].any()
    position = np.searchsorted(rows, drawn.row)
    np.testing.assert_allclose(drawn.importance, (share[position] / share.min()) ** -0.7, rtol=1e-5)
    assert drawn.importance.max() == 1.0


def test_importance_over_two_rings_by_hand(make_stream: MakeStream):
    """P^-beta, the unit that ranks compare: their sums differ, and so do weights, but not probabilities.

    Beta 0.5. Two rows of the same weight have P = 1 / 2 each, whatever the weight: sqrt(2). Weights 1 and 15 have
    P = 1 / 16 for the rarer row: 4.
    """
    _, priorities = filled_ring(make_stream)
    for weights, largest in (((1.0, 1.0), 2.0**0.5), ((7.0, 7.0), 2.0**0.5), ((1.0, 15.0), 4.0)):
        priorities.weights[:] = 0.0
        priorities.weights[:2] = weights
        drawn = priorities.draw(16, 0.5, seeded())
        assert drawn.row.min() == 0
        assert drawn.largest == pytest.approx(largest)


def test_the_first_priority_is_gone_once_errors_are_measured(make_stream: MakeStream):
    """Errors around 0.01: what waits to be measured has the largest of them, not 1, which no error ever reaches."""
    ring, priorities = filled_ring(make_stream, alpha=1.0)
    rows = np.flatnonzero(~is_reset(ring))
    priorities.update(rows[:0], np.zeros(0, np.float32))
    assert priorities.largest == 1.0
    priorities.update(rows[:2], np.array([-0.02, 0.01], np.float32))
    expected = np.full(len(rows), 0.12)
    expected[1] = 0.11
    np.testing.assert_allclose(priorities.weights[rows], expected, rtol=1e-6)
    assert not priorities.weights[: ring.num_rows][is_reset(ring)].any()


def test_the_largest_priority_falls_with_the_errors(make_stream: MakeStream):
    """9 is measured, then measured anew as 2, then written over: new transitions get what is largest by then."""
    ring, priorities = filled_ring(make_stream)
    rows = np.flatnonzero(~is_reset(ring))
    first = rows[rows < ring.spec.num_env_steps]
    priorities.update(rows, np.full(len(rows), 0.4, np.float32))
    priorities.update(first[:1], np.array([8.9], np.float32))
    assert priorities.largest == pytest.approx(9.0)
    priorities.update(first[:1], np.array([1.9], np.float32))
    assert priorities.largest == pytest.approx(2.0)
    slot = ring.insert(make_stream(SPEC, 1, stream=7)[0], 1)
    assert slot == 0
    priorities.enter(slot)
    assert priorities.largest == pytest.approx(0.5)
    assert priorities.weights[:15].max() == pytest.approx(0.5**0.5)


def test_whole_races_are_held_out(make_stream: MakeStream):
    """Each race lies wholly on one side, about the share of them is held out, and chance repeats."""
    blocks = make_stream(SPEC, 400)
    halves = [RaceSplit(0.3, seed=1), RaceSplit(0.3, seed=1)]
    sides, again = (np.concatenate([s.split(b, 0, 15 * k) for k, b in enumerate(blocks)]) for s in halves)
    np.testing.assert_array_equal(sides, again)
    resets = np.concatenate([block.is_reset for block in blocks])
    changes = sides[1:] != sides[:-1]
    assert not (changes & ~resets[1:]).any(), "a race changes sides"
    assert sides[resets].mean() == pytest.approx(0.3, abs=0.06)
    assert not np.array_equal(sides, np.concatenate([RaceSplit(0.3, 2).split(b, 0, 0) for b in blocks]))


def test_held_out_races_are_never_learned_from(make_stream: MakeStream):
    ring, split = BlockRing(SPEC, num_slots=8), RaceSplit(0.4, seed=0)
    priorities = Priorities(ring, 1.0, 0.1)
    for number, block in enumerate(make_stream(SPEC, 12)):
        priorities.enter(ring.insert(block, 0, split.split(block, 0, 15 * number)))
    held_out = ring.arrays.is_held_out.reshape(-1)
    assert held_out.any()
    assert not held_out[draw_rows(ring, seeded(), 500)[0]].any()
    assert not held_out[priorities.draw(500, 1.0, seeded()).row].any()
    tested = draw_rows(ring, seeded(), 500, from_held_out=True)[0]
    assert held_out[tested].all()
    assert not is_reset(ring)[tested].any()
    assert set(tested) == set(np.flatnonzero(held_out & ~is_reset(ring)))


@pytest.mark.parametrize("uniform", [0.0, np.nextafter(1.0, 0.0)])
def test_rows_of_no_weight_are_never_drawn(make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch, uniform: float):
    """Not at the ends of strata either, where sums round."""
    _, priorities = filled_ring(make_stream)
    rng = np.random.default_rng(0)
    monkeypatch.setattr(torch, "rand", lambda count, **_: torch.full((count,), uniform, dtype=torch.float64))
    for _ in range(200):
        weights = 10.0 ** rng.uniform(-9, 9, len(priorities.weights)) * (rng.random(len(priorities.weights)) < 0.3)
        priorities.weights[:] = weights
        assert (weights[priorities.draw(100, 0.0, seeded()).row] > 0).all()


def test_bad_input_is_refused(make_stream: MakeStream):
    with pytest.raises(ValueError, match="no transition"):
        Priorities(BlockRing(SPEC, 2), 0.5, 0.1).draw(3, 1.0, seeded())
    ring, priorities = filled_ring(make_stream)
    before = priorities.weights.copy()
    for error in (np.nan, np.inf):
        with pytest.raises(ValueError, match="finite"):
            priorities.update(np.flatnonzero(~is_reset(ring))[:1], np.array([error], np.float32))
    np.testing.assert_array_equal(priorities.weights, before)
