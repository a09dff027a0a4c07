"""Decisions that are numbers, on their way through shared memory."""

from __future__ import annotations

from multiprocessing import Pipe

import numpy as np
import pytest
import torch

from rulka.buffers.experience import BlockSpec
from rulka.runtime.central import InferenceClient
from rulka.runtime.messages import Response
from rulka.runtime.shared import POISON, IncompleteBlockError, SharedBlocks, check_written

SPEC = BlockSpec(1, num_cars=2, height=3, width=5, num_floats=6, decision_shape=(2,), continuous=True)


@pytest.fixture
def blocks() -> SharedBlocks:
    blocks = SharedBlocks(SPEC, 1)
    for part in SPEC.layout():
        getattr(blocks[0], part)[...] = 0
    return blocks


def test_a_number_that_was_never_written_is_noticed(blocks: SharedBlocks) -> None:
    """What says of an index that nobody wrote it is a number like any other."""
    blocks[0].action[...] = POISON
    check_written(blocks[0])
    blocks.poison(0)
    for part in SPEC.layout():
        if part != "action":
            getattr(blocks[0], part)[...] = 0
    blocks[0].action[0, 0] = 1.5
    with pytest.raises(IncompleteBlockError, match="2 of 4 numbers of 'action'"):
        check_written(blocks[0])


def test_central_inference_answers_with_numbers(blocks: SharedBlocks) -> None:
    ours, theirs = Pipe()
    client = InferenceClient(blocks, ours, 0, lambda: None)
    decided = np.array([[0.5, -1.25], [2.75, 0.125]], np.float32)
    blocks[0].action[0] = decided
    theirs.send(Response(1, 7))
    image, floats = torch.zeros(2, 1, 3, 5, dtype=torch.uint8), torch.zeros(2, 6)
    client.ask(image, floats)
    decision = client.answer()
    blocks[0].action[0] = 0.0
    np.testing.assert_array_equal(decision.action, decided)
