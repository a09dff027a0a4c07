"""Prioritised rows: probabilities, importance weights, overwriting, held-out races."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from rulka.buffers.experience import BlockSpec, ExperienceBlock
from rulka.buffers.priorities import Priorities
from rulka.buffers.replay import RaceSplit, draw_rows
from rulka.buffers.ring import BlockRing

SPEC = BlockSpec(num_steps=5, num_cars=3, height=2, width=2, num_floats=4)
MakeStream = Callable[..., list[ExperienceBlock]]


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def filled(make_stream: MakeStream, num_blocks: int = 4, alpha: float = 0.5) -> tuple[BlockRing, Priorities]:
    ring = BlockRing(SPEC, num_slots=4)
    priorities = Priorities(ring, alpha, epsilon=0.1)
    for block in make_stream(SPEC, num_blocks):
        priorities.enter(ring.insert(block, 0))
    return ring, priorities


def is_reset(ring: BlockRing) -> np.ndarray:
    return ring.arrays.is_reset.reshape(-1)[: ring.num_rows]


def test_probabilities_and_weights_by_their_formulas(make_stream: MakeStream):
    """Errors 0.9, 2.4, 6.2 and epsilon 0.1 are priorities 1, 2.5, 6.3; P = p^alpha / sum, w = (min P / P)^beta."""
    ring, priorities = filled(make_stream)
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
    np.testing.assert_allclose(drawn.weight, (share[position] / share.min()) ** -0.7, rtol=1e-5)
    assert drawn.weight.max() == 1.0


def test_the_first_priority_is_gone_once_errors_are_measured(make_stream: MakeStream):
    """Errors around 0.01: what waits to be measured has the largest of them, not 1, which no error ever reaches."""
    ring, priorities = filled(make_stream, alpha=1.0)
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
    ring, priorities = filled(make_stream)
    rows = np.flatnonzero(~is_reset(ring))
    first = rows[rows < ring.rows_per_slot]
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
    assert not held_out[draw_rows(ring, 500, seeded())].any()
    assert not held_out[priorities.draw(500, 1.0, seeded()).row].any()
    tested = draw_rows(ring, 500, seeded(), from_held_out=True)
    assert held_out[tested].all()
    assert not is_reset(ring)[tested].any()
    assert set(tested) == set(np.flatnonzero(held_out & ~is_reset(ring)))


def slow_draw(weights: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """The twin: walk along all rows until the mass is used up."""
    total, drawn = weights.sum(), []
    for stratum, u in enumerate(uniform):
        mass, row = (stratum + u) / len(uniform) * total, 0
        while mass >= weights[row]:
            mass -= weights[row]
            row += 1
        drawn.append(row)
    return np.array(drawn)


def test_random_draws_against_the_twin(make_stream: MakeStream):
    """Whole numbers as weights: sums are exact in any order, so both must agree on every draw."""
    _, priorities = filled(make_stream)
    rng = np.random.default_rng(0)
    for number in range(60):
        priorities.weights[:] = rng.integers(0, 5, len(priorities.weights)) * (rng.random() < 0.9)
        priorities.weights[rng.integers(len(priorities.weights))] = 2.0
        uniform = torch.rand(17, generator=torch.Generator().manual_seed(number), dtype=torch.float64).numpy()
        drawn = priorities.draw(17, 0.0, torch.Generator().manual_seed(number))
        np.testing.assert_array_equal(drawn.row, slow_draw(priorities.weights, uniform))


@pytest.mark.parametrize("uniform", [0.0, np.nextafter(1.0, 0.0)])
def test_rows_of_no_weight_are_never_drawn(make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch, uniform: float):
    """Not at the ends of strata either, where sums round."""
    _, priorities = filled(make_stream)
    rng = np.random.default_rng(0)
    monkeypatch.setattr(torch, "rand", lambda count, **_: torch.full((count,), uniform, dtype=torch.float64))
    for _ in range(200):
        weights = 10.0 ** rng.uniform(-9, 9, len(priorities.weights)) * (rng.random(len(priorities.weights)) < 0.3)
        priorities.weights[:] = weights
        assert (weights[priorities.draw(100, 0.0, seeded()).row] > 0).all()


def test_bad_input_is_refused(make_stream: MakeStream):
    with pytest.raises(ValueError, match="no transition"):
        Priorities(BlockRing(SPEC, 2), 0.5, 0.1).draw(3, 1.0, seeded())
    ring, priorities = filled(make_stream)
    before = priorities.weights.copy()
    for error in (np.nan, np.inf):
        with pytest.raises(ValueError, match="finite"):
            priorities.update(np.flatnonzero(~is_reset(ring))[:1], np.array([error], np.float32))
    np.testing.assert_array_equal(priorities.weights, before)
