"""Frames that a policy met, drawn from beside recorded ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.actor_critic import ClonePolicy, CloningHeads
from models.encoders.config import ConvConfig
from models.torso import InputShape
from rulka.contracts.actions import action_table
from rulka.contracts.artifacts import observation_contract
from rulka.contracts.observation import NUM_FLOATS
from rulka.datasets.formats.frames import FrameDataset, frames_of
from rulka.evaluation.closed_loop import ClosedLoop
from rulka.evaluation.dagger import Visit
from rulka.pretraining.cloning import CloningTask, Labels
from rulka.pretraining.dagger_frames import Visited
from tests.conftest import sees, synthetic_race

DRIVEN = ClosedLoop(2, 0.5, 10.0, None, None, 1.0, None)


def empty(folder: Path) -> Visited:
    return Visited(folder, observation_contract(sees(64, 64)), action_table(5), 1, "soft")


def test_rounds_are_drawn_from_as_often_as_recorded_frames(write_frames: Callable[..., Any], tmp_path: Path) -> None:
    """Every frame keeps its own image, floats and label, by its number; a run that goes on draws the same."""
    train = FrameDataset(write_frames(num_races=3)[0], "train")
    imitated, known, visited = frames_of(train.races), len(train), empty(tmp_path / "visited")
    order: dict[str, int] = {"seed": 3, "epoch": 2, "batch_size": 32}
    recorded = train.iterate_batches(**order, frames=imitated[5:90])
    alone = visited.batches(train, imitated[5:90], **order, keep=True, epoch_frames=9)
    for ours, theirs in zip(alone, recorded, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True)), "without rounds"
    races = [[synthetic_race(f"met-{k}-{n}", 30 + n, 10 * k + n) for n in range(2)] for k in range(2)]
    for epoch, met in enumerate(races):
        visited.add(epoch, Visit(DRIVEN, met))
    assert [each["num_frames"] for each in visited.rounds] == [61, 61]
    every = [race for met in races for race in met]
    images = np.concatenate([train.images[:], *(race.image for race in every)])
    shares = np.concatenate([train.action_share[:], *(race.action_share for race in every)])
    inputs = InputShape(64, 64, torch.zeros(NUM_FLOATS), torch.ones(NUM_FLOATS))
    policy = ClonePolicy(inputs, ConvConfig(kind="conv", adaptive_pool=0), 4, 4, 12)
    task = CloningTask(policy, CloningHeads(4, 12, []), Labels.of(train, "soft"), action_table(5))
    labels = visited.with_visited_labels(task).labels
    assert len(labels.now) == len(images)
    seen: list[int] = []
    size: dict[str, int] = {"batch_size": 16, "epoch_frames": len(imitated)}
    for batch in visited.batches(train, imitated, seed=1, epoch=0, keep=True, **size):
        assert len(batch.image) <= 16
        numbers = batch.number.numpy()
        assert np.array_equal(batch.image.numpy(), images[numbers])
        assert np.array_equal(labels.now[batch.number].numpy(), shares[numbers])
        seen += numbers.tolist()
    assert len(seen) == len(set(seen)) == len(imitated)
    share = np.mean(np.array(seen) >= known)
    assert abs(share - 122 / (122 + len(imitated))) < 0.12
    last = known + 60
    assert int(labels.num_left[last]) == 0, "a race ends with its round"
    left = visited.batches(train, imitated, seed=1, epoch=0, keep=False, **size)
    assert min(int(batch.number.min()) for batch in left) >= known
    for epoch_frames in (50, 122, 1000):  # of 122 visited ones
        chosen = list(
            visited.batches(train, imitated, seed=1, epoch=0, keep=False, **size | {"epoch_frames": epoch_frames})
        )
        assert sum(len(batch.image) for batch in chosen) == min(epoch_frames, 122)
    again = empty(tmp_path / "visited")
    again.load_state_dict(visited.state_dict())
    each = (rounds.batches(train, imitated, seed=1, epoch=4, keep=True, **size) for rounds in (visited, again))
    for ours, theirs in zip(*each, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_takeovers_are_drawn_from_beside_all_others_without_what_led_to_them(
    write_frames: Callable[..., Any], tmp_path: Path
) -> None:
    """Recorded frames stay until the first round; what a person drove stays for good."""
    train = FrameDataset(write_frames(num_races=3)[0], "train")
    imitated, known, visited = frames_of(train.races), len(train), empty(tmp_path / "visited")
    visited.add_takeovers([])
    assert visited.num_takeover_frames == 0
    stretches = [(synthetic_race("a-0", 12, 1), 5), (synthetic_race("a-7", 9, 2), 2)]
    visited.add_takeovers(stretches)
    assert visited.num_takeover_frames == 14
    taught = known + np.r_[5:12, 14:21]

    def drawn(rounds: Visited, *, keep: bool) -> list[int]:
        order: dict[str, int] = {"seed": 1, "epoch": 0, "batch_size": 16, "epoch_frames": 10_000}
        batches = list(rounds.batches(train, imitated, keep=keep, **order))
        for batch in batches:
            number = batch.number.numpy() - known - 12
            is_second = (number >= 0) & (number < 9)
            assert np.array_equal(batch.image.numpy()[is_second], stretches[1][0].image[number[is_second]])
        return sorted(number for batch in batches for number in batch.number.tolist())

    assert drawn(visited, keep=False) == drawn(visited, keep=True) == sorted([*imitated, *taught])
    visited.add(0, Visit(DRIVEN, [synthetic_race("met", 4, 3)]))
    met = known + 21 + np.arange(4)
    assert drawn(visited, keep=False) == [*taught, *met]
    again = empty(tmp_path / "visited")
    again.add_takeovers(stretches)
    again.load_state_dict(visited.state_dict())
    assert drawn(again, keep=True) == drawn(visited, keep=True) == sorted([*imitated, *taught, *met])
