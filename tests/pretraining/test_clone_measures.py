"""Measures of a cloned policy, by hand and by slow twins; pictures of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.image import imread

import rulka.pretraining.clone_measures as clone_measures
from models.actor_critic import ClonePolicy, CloningHeads
from models.encoders.config import ConvConfig
from models.torso import InputShape
from rulka.actions import action_table
from rulka.datasets.frames import Decided, FrameDataset, FrameRace, frames_of
from rulka.observation import reference_normalisation
from rulka.pretraining.clone_measures import Habits, action_before, calibration, measure, timelines
from rulka.pretraining.clone_plots import draw_calibration, draw_timelines
from rulka.pretraining.cloning import Measured

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


def test_habits_by_hand() -> None:
    """Two races: 0 0 1 1 2 and 1 0 2, "forward" (0) before each. 2 is never left: what most changes end in follows."""
    action, race = np.array([0, 0, 1, 1, 2, 1, 0, 2]), np.array([4, 4, 4, 4, 4, 9, 9, 9])
    share = np.eye(4)[action] + [0.0, 0.0, 0.5, 0.0]
    decided = Decided(action[:, None], share[:, None].astype(np.float32))
    train: Any = SimpleNamespace(race_index=race, decided=lambda numbers: Decided(*(x[numbers] for x in decided)))
    habits = Habits.of(train, np.arange(8), 4)
    # Follow 0: 0, 0, 1, 1, 2. Follow 1: 1, 2, 0. Changed to: 1, 1, 2, 2, 0 in all.
    assert habits.majority == 2, "by its share, not by how often it is the longest"
    np.testing.assert_array_equal(habits.likeliest_next, [0, 0, 0, 0])
    np.testing.assert_array_equal(habits.likeliest_change, [1, 0, 1, 1])


def test_calibration_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bins of 0.5 and 0.6, right half of the time, and of 0.8, 0.9 and 1, right once: (2 * 0.05 + 3 * 0.5667) / 5."""
    monkeypatch.setattr(clone_measures, "CALIBRATION_BINS", 2)
    confidence = np.array([0.9, 0.5, 0.8, 0.6, 1.0], np.float32)
    found = calibration(confidence, np.array([True, False, False, True, False]))
    sizes = [(each["num_frames"], round(each["confidence"], 5)) for each in found["bins"]]
    assert sizes == [(3, 0.63333), (2, 0.95)], "the first bins hold one more where numbers do not divide"
    expected = (3 * abs(0.6333333 - 1 / 3) + 2 * abs(0.95 - 0.5)) / 5
    assert found["expected_calibration_error"] == pytest.approx(expected)


def test_fewer_frames_than_bins_are_a_bin_each() -> None:
    found = calibration(np.array([0.7, 1.0], np.float32), np.array([True, True]))
    assert [each["num_frames"] for each in found["bins"]] == [1, 1]
    assert found["expected_calibration_error"] == pytest.approx(0.15)


def test_timelines_by_hand() -> None:
    time_ms, action = np.array([0, 50, 100, 0, 50]), np.array([0, 0, 3, 1, 1])
    frames: Any = SimpleNamespace(
        time_ms=time_ms, decided=lambda rows: Decided(action[rows][:, None], np.zeros((len(rows), 1, 12), np.float32))
    )
    races = [
        FrameRace("late", "driver", "m", "validation", 3, 2),
        FrameRace("early", "driver", "m", "validation", 0, 3),
    ]
    assert timelines(frames, races, np.array([1, 2, 0, 3, 3, 7]), action_table(5)) == [
        {"race_id": "late", "end_ms": 50, "driver": [[0, 1]], "policy": [[0, 1], [50, 2]]},
        {"race_id": "early", "end_ms": 100, "driver": [[0, 0], [100, 3]], "policy": [[0, 0], [50, 3]]},
    ]


def test_a_timeline_of_chunks_changes_within_decisions() -> None:
    """Two decisions of 20 ms, of two actions each: 0 3, 3 1 and, by the policy, 2 2, 2 0."""
    action = np.array([[0, 3], [3, 1]])
    frames: Any = SimpleNamespace(
        time_ms=np.array([0, 20]), decided=lambda rows: Decided(action[rows], np.zeros((2, 2, 12), np.float32))
    )
    race = FrameRace("one", "driver", "m", "validation", 0, 2)
    assert timelines(frames, [race], np.array([2, 2, 2, 0]), action_table(2, 2)) == [
        {"race_id": "one", "end_ms": 30, "driver": [[0, 0], [10, 3], [30, 1]], "policy": [[0, 2], [30, 0]]},
    ]


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
    assert place["likeliest_change_accuracy"] > 0.3
    for name, column in (("loss", 2), ("accuracy", 3)):
        assert place[name] == pytest.approx(np.mean([row[column] for row in changes]), rel=1e-4)
        assert found[name] == pytest.approx(np.mean([row[column] for row in rows]), rel=1e-4)
        for each in found["per_action"][:3]:
            own = [row[column] for row in rows if row[0] == each["action"]]
            assert each[name] == pytest.approx(np.mean(own), rel=1e-4)
    for each in found["per_action"]:
        assert each["num_changes"] == sum(row[0] == each["action"] for row in changes)
        assert (each["accuracy_where_action_changes"] is None) == (each["num_changes"] == 0)


def test_pictures_show_what_was_measured(
    measured: tuple[dict[str, Any], ClonePolicy, FrameDataset], tmp_path: Path
) -> None:
    found = measured[0]
    assert [row["race_id"] for row in found["timelines"]] == [race.race_id for race in measured[2].races[:2]]
    for name, figure in (
        ("calibration", draw_calibration(found["calibration"])),
        ("timelines", draw_timelines(found["timelines"])),
    ):
        figure.savefig(tmp_path / f"{name}.png")
        assert imread(tmp_path / f"{name}.png")[..., :3].std() > 0.01
    (line, *_), curves = draw_calibration(found["calibration"]).axes[0].lines, found["calibration"]
    np.testing.assert_array_equal(line.get_xydata(), [[0, 0], [1, 1]])
    drawn = np.asarray(draw_calibration(curves).axes[0].lines[2].get_ydata())
    assert drawn.tolist() == [each["accuracy"] for each in curves["own_actions"]["bins"]]


def test_keys_are_held_from_one_change_to_the_next() -> None:
    """0 is gas, 1 gas and left: from 1 s to the end at 3 s left is held."""
    timeline = {"race_id": "one", "end_ms": 3000, "driver": [[0, 0], [1000, 1]], "policy": [[0, 6]]}
    axes = draw_timelines([timeline]).axes[0]
    extents = [bar.get_datalim(axes.transData) for bar in axes.collections if bar.get_paths()]
    found = {(round(box.y0, 2), round(box.x0, 3), round(box.x1, 3)) for box in extents}
    assert found == {(0.1, 0.0, 3.0), (2.1, 1.0, 3.0), (1.48, 0.0, 3.0)}
