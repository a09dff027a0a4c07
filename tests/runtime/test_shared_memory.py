"""Weights and blocks in shared memory; within one process, as attaching twice is the same."""

from __future__ import annotations

import multiprocessing
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from runtime_fakes import FakeNetwork, fake_run, memory_of

from rulka.buffers.experience import BlockSpec
from rulka.machine.errors import UserError
from rulka.runtime import shared as shared_module
from rulka.runtime.central import InferenceClient
from rulka.runtime.collectors import CollectorProcesses
from rulka.runtime.messages import Response
from rulka.runtime.shared import NO_VERSION, POISON, SharedBlocks, SharedWeights, check_written, layout_of

SPEC = BlockSpec(num_steps=4, num_cars=2, height=3, width=5, num_floats=6)
TENSORS = {
    "weight": torch.arange(15.0).reshape(3, 5),
    "half": torch.arange(7.0).to(torch.bfloat16),
    "count": torch.tensor(9),
    "flags": torch.tensor([True, False, True]),
}


@pytest.fixture
def blocks() -> SharedBlocks:
    return SharedBlocks(SPEC, 3)


@pytest.fixture
def weights() -> SharedWeights:
    return SharedWeights(layout_of(TENSORS))


def test_what_one_writes_the_other_reads_and_slots_do_not_overlap(blocks: SharedBlocks) -> None:
    other = SharedBlocks(SPEC, 3, blocks._memory)
    for slot in range(3):
        for number, name in enumerate(SPEC.layout()):
            getattr(other[slot], name)[...] = (10 * slot + number) % 2 if "is_" in name else 10 * slot + number
    for slot in range(3):
        np.testing.assert_array_equal(blocks[slot].floats, np.full((5, 2, 6), 10 * slot + 1))
        np.testing.assert_array_equal(blocks[slot].log_prob, np.full((4, 2), 10 * slot + 9))
        np.testing.assert_array_equal(blocks[slot].image, np.full((5, 2, 1, 3, 5), 10 * slot))


NUMBERS = BlockSpec(1, num_cars=2, height=3, width=5, num_floats=6, decision_size=2, continuous=True)


@pytest.mark.parametrize(
    ("spec", "name", "size"),
    [
        *((SPEC, name, 8) for name in ("reward", "action", "is_reset", "log_prob")),
        (SPEC, "potential", 10),
        (SPEC, "floats", 60),
        (SPEC, "number", 1),
        (NUMBERS, "action", 4),  # what says of an index that nobody wrote it is a number like any other
    ],
)
def test_every_missing_part_is_noticed(spec: BlockSpec, name: str, size: int) -> None:
    block = SharedBlocks(spec, 1)[0]
    for part in spec.layout():
        assert (getattr(block, part).reshape(-1).view(np.uint8) == POISON).all()
        getattr(block, part)[...] = 0
    if spec.continuous:
        block.action[...] = POISON
    check_written(block)
    getattr(block, name).reshape(-1).view(np.uint8)[: getattr(block, name).itemsize] = POISON  # its first number
    with pytest.raises(RuntimeError, match=rf"1 of {size} numbers of '{name}'"):
        check_written(block)


def test_central_inference_answers_with_numbers() -> None:
    blocks, (ours, theirs) = SharedBlocks(NUMBERS, 1), multiprocessing.Pipe()
    decided = np.array([[0.5, -1.25], [2.75, 0.125]], np.float32)
    blocks[0].action[0] = decided
    theirs.send(Response(1, 7))
    image, floats = torch.zeros(2, 1, 3, 5, dtype=torch.uint8), torch.zeros(2, 6)
    decision = InferenceClient(blocks, ours, 0, lambda: None).act(image, floats)
    blocks[0].action[0] = 0.0
    np.testing.assert_array_equal(decision.action, decided)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weight": torch.zeros(2, 5)}, r"'weight' has shape \(2, 5\), agreed was \(3, 5\)"),
        ({"more": torch.zeros(1)}, "nobody agreed on: \\['more'\\]"),
        ({"half": None}, "'half' has shape None"),
    ],
)
def test_wrong_tensors_are_refused(weights: SharedWeights, change: dict, words: str) -> None:
    tensors = {name: tensor for name, tensor in (TENSORS | change).items() if tensor is not None}
    with pytest.raises(RuntimeError, match=words):
        weights.publish(1, tensors)


def test_weights_of_any_dtype_come_through(weights: SharedWeights) -> None:
    reader = SharedWeights(weights._layout, memory=weights._memory)
    assert reader.version == NO_VERSION
    weights.publish(5, TENSORS)
    version, read = reader.read()
    assert version == reader.version == 5
    for name, tensor in TENSORS.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


def test_torn_copy_is_never_returned(weights: SharedWeights, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte that does not belong to the version is found, whichever copy is read."""
    monkeypatch.setattr(shared_module, "READ_TIMEOUT_S", 0.02)
    for version in (1, 2, 3):
        weights.publish(version, TENSORS)
        current = int(weights._newest[0])
        weights._copies[current][8] ^= 0xFF
        with pytest.raises(RuntimeError, match="no whole weights"):
            weights.read()


def test_versions_that_are_kept_can_be_read_and_others_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_module, "READ_TIMEOUT_S", 0.02)
    weights = SharedWeights(layout_of({"a": torch.zeros(3)}), num_copies=4)
    for version in range(1, 7):
        weights.publish(version, {"a": torch.full((3,), float(version))}, kept={1, 2})
    assert [weights.read(version).tensors["a"][0].item() for version in (None, 6, 5, 2, 1)] == [6.0, 6.0, 5.0, 2.0, 1.0]
    weights.publish(7, {"a": torch.zeros(3)}, kept={2})
    assert weights.read(2).version == 2
    for gone in (1, 3):
        with pytest.raises(RuntimeError, match=f"no whole weights of version {gone} could be read"):
            weights.read(gone)


def test_too_little_shared_memory_is_refused_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker gives 64 MiB; without a word to the contrary, writing beyond that ends a process with SIGBUS."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100_000))
    tensors = FakeNetwork().state_dict()
    before = memory_of()
    with pytest.raises(UserError, match=r"needs 1 MiB more, and 0 MiB are free") as refused:
        CollectorProcesses(fake_run(tmp_path, num_collectors=2), tensors, env_steps=0, num_starts=0)
    assert "--shm-size" in refused.value.hint
    assert memory_of() <= before


def test_memory_that_others_have_taken_meanwhile_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: torch.Tensor) -> None:
        message = "unable to allocate shared memory(shm) for file </torch_1_2_3>: No space left on device (28)"
        raise RuntimeError(message)

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    for create in (lambda: SharedBlocks(SPEC, 3), lambda: SharedWeights(layout_of(TENSORS))):
        with pytest.raises(UserError, match="others have taken it"):
            create()
