"""Measures of cloning by hand, and inputs disturbed only as said."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rulka.datasets.frames import FrameDataset
from rulka.observation import FLOATS, NUM_FLOATS, reference_normalisation
from rulka.pretraining.cloning import (
    Disturbance,
    confusion_matrix,
    disturb,
    forget_previous_actions,
    frames_of_fastest,
    hide_previous_actions,
    label_entropy,
    measure,
    repeat_last_action,
)

PREVIOUS = FLOATS["previous_actions"]
MEAN, STD = (torch.from_numpy(part) for part in (reference_normalisation().mean, reference_normalisation().std))


def test_repeat_last_action_by_hand() -> None:
    action = np.array([3, 3, 1, 2, 2, 5])
    race = np.array([0, 0, 0, 7, 7, 7])
    np.testing.assert_array_equal(repeat_last_action(action, race), [0, 3, 3, 0, 2, 2])


def test_label_entropy_by_hand() -> None:
    share = np.array([[1.0, 0.0], [0.5, 0.5]], np.float32)
    assert label_entropy(share) == pytest.approx(math.log(2) / 2)


def test_confusion_by_hand() -> None:
    matrix = confusion_matrix(np.array([0, 0, 1, 2]), np.array([0, 2, 1, 0]), 3)
    np.testing.assert_array_equal(matrix, [[1, 0, 1], [0, 1, 0], [1, 0, 0]])


def test_dropout_hides_the_asked_share_and_nothing_else() -> None:
    floats = torch.full((2000, NUM_FLOATS), 7.0)
    disturbed = disturb(floats, MEAN, STD, Disturbance(0.25, 0.0), torch.Generator().manual_seed(0))
    is_hidden = (disturbed[:, PREVIOUS] == MEAN[PREVIOUS]).all(dim=1)
    is_kept = (disturbed[:, PREVIOUS] == 7.0).all(dim=1)
    assert (is_hidden | is_kept).all()
    assert 0.21 < is_hidden.float().mean() < 0.29
    disturbed[:, PREVIOUS] = 7.0
    assert torch.equal(disturbed, floats)
    assert (floats == 7.0).all()


def test_noise_is_in_units_of_the_normalisation() -> None:
    floats = torch.zeros(4000, NUM_FLOATS)
    noisy = disturb(floats, MEAN, STD, Disturbance(0.0, 0.5), torch.Generator().manual_seed(0))
    torch.testing.assert_close(noisy.std(dim=0), 0.5 * STD, rtol=0.1, atol=0)


def test_hidden_previous_actions_are_zeros_after_normalisation() -> None:
    hidden = hide_previous_actions(torch.ones(3, NUM_FLOATS), MEAN)
    assert ((hidden - MEAN) / STD)[:, PREVIOUS].abs().max() == 0
    assert (hidden[:, PREVIOUS.stop :] == 1).all()


def test_a_float_head_can_forget_the_previous_actions() -> None:
    head = nn.Sequential(nn.Linear(NUM_FLOATS, 4), nn.ReLU())
    forget_previous_actions(head)
    floats = torch.randn(5, NUM_FLOATS)
    changed = floats.clone()
    changed[:, PREVIOUS] = 9.0
    assert torch.equal(head(floats), head(changed))
    changed[:, PREVIOUS.stop] = 9.0
    assert not torch.equal(head(floats), head(changed))


class Copycat(nn.Module):
    """Repeats the last of the previous actions, told apart by its keys; "brake" (6) if it has none of three."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("float_mean", MEAN)

    def forward(self, image: Tensor, floats: Tensor) -> Tensor:
        keys = floats[:, PREVIOUS.stop - 4 : PREVIOUS.stop]
        known = torch.tensor([[1.0, 0, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]])
        is_same = (keys[:, None] == known).all(dim=2).float()
        logits = torch.zeros(len(image), 12)
        logits[:, :3] = 20 * is_same
        logits[:, 6] = 10
        return logits


def test_a_copycat_scores_as_the_baseline_and_is_unmasked(write_frames: Callable[..., tuple[Path, object]]) -> None:
    folder, _ = write_frames()
    train, validation = FrameDataset(folder, "train"), FrameDataset(folder, "validation")
    with torch.no_grad():
        result = measure(Copycat(), train, validation, 12)
    action, race = validation.action[:].astype(int), validation.race_index[:]
    repeats = np.mean([a == b for a, b, r, s in zip(action[1:], action, race[1:], race, strict=False) if r == s])
    assert result["accuracy"] == result["repeat_last_action_accuracy"] == pytest.approx(repeats, abs=0.03)
    assert result["accuracy_where_action_changes"] == 0.0
    assert result["accuracy_without_previous_actions"] == 0.0
    majority = np.bincount(train.action[:]).argmax()
    assert result["majority_accuracy"] == pytest.approx(np.mean(action == majority))
    assert result["label_entropy"] == pytest.approx(-0.8 * math.log(0.8) - 0.2 * math.log(0.2), rel=1e-4)
    assert sum(row["num_frames"] for row in result["per_action"]) == len(validation)
    assert np.array(result["confusion"]).sum() == len(validation)
    assert result["per_action"][11]["accuracy"] is None


def test_the_fastest_races_are_those_with_fewest_frames(write_frames: Callable[..., tuple[Path, object]]) -> None:
    folder, _ = write_frames(num_races=5, num_frames=20, validation_fraction=0.0)  # 20, 21, 22, 23 and 24 frames
    train = FrameDataset(folder, "train")

    def names(share: float) -> list[str]:
        numbers = np.unique(train.race_index[frames_of_fastest(train, share)])
        return [train.index.races[number].race_id for number in numbers]

    assert names(0.4) == ["race-0", "race-1"]
    assert names(0.0) == ["race-0"]
    assert len(frames_of_fastest(train, 1.0)) == len(train)
    batches = list(train.iterate_batches(seed=1, epoch=0, batch_size=16, frames=frames_of_fastest(train, 0.4)))
    chosen = np.sort(np.concatenate([batch.floats[:, 0].numpy() for batch in batches]))
    np.testing.assert_array_equal(chosen, np.sort(train.floats[:41][:, 0]))
