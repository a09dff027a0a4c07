"""Measures of a cloned policy by a slow twin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.actor_critic import ClonePolicy, CloningHeads
from models.encoders.config import ConvConfig
from models.torso import InputShape
from rulka.actions import action_table
from rulka.datasets.frames import FrameDataset, frames_of
from rulka.observation import reference_normalisation
from rulka.pretraining.cloning import Measured, action_before, measure

Write = Callable[..., tuple[Path, object]]
MEAN, STD = (torch.from_numpy(part) for part in (reference_normalisation().mean, reference_normalisation().std))


@pytest.fixture
def measured(write_frames: Write) -> tuple[dict[str, Any], ClonePolicy, FrameDataset]:
    """What a policy with random weights is like on held-out races, and on which frames."""
    folder, _ = write_frames(num_races=8)
    torch.manual_seed(3)
    policy = ClonePolicy(InputShape(64, 64, MEAN, STD), ConvConfig(kind="conv", adaptive_pool=0), 8, 8, 12)
    torch.nn.init.normal_(policy.policy_head.weight, std=1.0)
    train, validation = FrameDataset(folder, "train"), FrameDataset(folder, "validation")
    with torch.no_grad():
        heads = CloningHeads(policy.num_hidden, 12, [])
        found = measure(
            policy, heads, train, frames_of(train.races), Measured(validation, validation.races), action_table(5)
        )
    return found, policy, validation


def test_the_slow_twin_where_the_action_changes_and_by_action(
    measured: tuple[dict[str, Any], ClonePolicy, FrameDataset],
) -> None:
    found, policy, frames = measured
    batch = frames.batch(slice(None))
    with torch.no_grad():
        log_probs = policy(batch.image, batch.floats).log_softmax(dim=1).double().numpy()
    action = frames.action[:].astype(int)
    before = action_before(action[:, None], frames.race_index[:])
    rows = [
        (done, done != previous, -float((share * row).sum()), int(row.argmax()) == done)
        for done, previous, share, row in zip(action, before, frames.action_share[:], log_probs, strict=True)
    ]
    changes = [row for row in rows if row[1]]
    place = found["where_action_changes"]
    assert 0 < len(changes) < len(rows)
    assert place["share"] == pytest.approx(len(changes) / len(rows))
    assert place["repeat_last_action_accuracy"] == 0.0
    for name, column in (("loss", 2), ("accuracy", 3)):
        assert place[name] == pytest.approx(np.mean([row[column] for row in changes]), rel=1e-4)
        assert found[name] == pytest.approx(np.mean([row[column] for row in rows]), rel=1e-4)
        for each in found["per_action"][:3]:
            own = [row[column] for row in rows if row[0] == each["action"]]
            assert each[name] == pytest.approx(np.mean(own), rel=1e-4)
    for each in found["per_action"]:
        assert each["num_changes"] == sum(row[0] == each["action"] for row in changes)
        assert (each["accuracy_where_action_changes"] is None) == (each["num_changes"] == 0)
