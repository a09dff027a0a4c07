"""Replay: what is drawn, from where, by torchrl's `ReplayBuffer` with our parts, and that it is reproducible."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from rulka.buffers.demonstrations import demonstration_ring
from rulka.buffers.experience import BlockSpec, ExperienceBlock, StoredExperience
from rulka.buffers.replay import FEATURES, Batch, Replay, Source, draw_rows
from rulka.buffers.transitions import find_transitions, shaped_rewards
from rulka.machine.device import CPU
from tests.buffers.conftest import check_links

SPEC = BlockSpec(num_steps=5, num_cars=3, height=2, width=2, num_floats=4)
MakeStream = Callable[..., list[ExperienceBlock]]


def filled(blocks: list[ExperienceBlock], seed: int = 0, **settings: object) -> Replay:
    """A replay with room for four blocks of transitions of up to three decisions."""
    generator = torch.Generator().manual_seed(seed)
    replay = Replay(4 * SPEC.num_env_steps, 3, CPU, generator, **settings)
    for number, block in enumerate(blocks):
        replay.insert(block, 0, number * SPEC.num_env_steps)
    return replay


def draw(source: Source, count: int) -> Batch:
    """Draws a batch without a discount."""
    found = source.sample(count)
    return source.batch(found, *shaped_rewards(found, found.num_steps, found.is_terminal, 1.0))


def test_rows_are_uniform_over_transitions(make_stream: MakeStream):
    ring = filled(make_stream(SPEC, 4)).ring
    rows = draw_rows(ring, torch.Generator().manual_seed(0), 40_000)[0]
    is_reset = ring.arrays.is_reset.reshape(-1)[: ring.num_rows]
    counts = np.bincount(rows, minlength=ring.num_rows)
    assert is_reset.any(), "the data must hold resets"
    assert not counts[is_reset].any()
    expected = 40_000 / (~is_reset).sum()
    assert abs(counts[~is_reset] - expected).max() < 5 * np.sqrt(expected)


def test_nothing_is_drawn_before_the_first_block():
    replay = filled([])
    for sample in (lambda: replay.own, lambda: replay.held_out, lambda: replay.sample_states(3)):
        with pytest.raises(ValueError, match="nothing was inserted"):
            sample()


def test_demonstrations_stay_when_experience_is_forgotten(make_stream: MakeStream):
    replay = filled(make_stream(SPEC, 4, stream=0))
    replay.insert_demonstrations(make_stream(SPEC, 4, stream=5))
    replay.clear()
    assert replay.num_rows == 0
    assert (draw(replay.demonstrations, 8).floats[:, 1] >= 5000).all()


def test_experience_of_another_shape_is_refused(make_stream: MakeStream):
    state, pieces = filled(make_stream(SPEC, 4)).experience()
    generator = torch.Generator()
    with pytest.raises(ValueError, match="stored blocks are not the last"):
        Replay(SPEC.num_env_steps, 3, CPU, generator).load_experience(StoredExperience(state, pieces))


def test_features_stand_for_images_as_long_as_they_are_kept(make_stream: MakeStream):
    """In all that is drawn, own, demonstrated and held out alike; and in states."""
    replay = filled(make_stream(SPEC, 4))
    replay.insert_demonstrations(make_stream(SPEC, 1))
    replay.store_derived(FEATURES, lambda image, _floats: image.float().mean(dim=(2, 3)))
    for source in (replay.own, replay.demonstrations):
        assert draw(source, 8).image.shape == draw(source, 8).next_image.shape == (8, 1)
    assert replay.sample_states(8)[0].shape == (8, 1)
    replay.drop_derived(FEATURES)
    assert draw(replay.own, 8).image.shape == replay.sample_states(8)[0].shape == (8, 1, 2, 2)


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
        ring.observations["floats"].numpy().reshape(-1, 4)[found.next_observation, 1]
        - ring.observations["floats"].numpy().reshape(-1, 4)[found.observation, 1],
        found.num_steps,
        atol=1e-2,
    )
