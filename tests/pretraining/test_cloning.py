"""Measures of cloning by hand, and inputs disturbed only as said."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.actor_critic import ClonePolicy, CloningHeads
from models.encoders.config import ConvConfig
from models.torso import InputShape
from rulka.contracts.actions import action_table
from rulka.contracts.observation import FLOATS, NUM_FLOATS, reference_normalisation
from rulka.datasets.formats.frames import FrameDataset, frames_of
from rulka.datasets.formats.sharded import ShardedArray
from rulka.datasets.formats.split import SPLITS, Split
from rulka.params import reference_params
from rulka.pretraining.cloning import (
    CloningTask,
    Labels,
    Measured,
    action_before,
    augment_floats,
    confusion_matrix,
    disconnect,
    hide,
    label_entropy,
    measure,
    measured_races,
    predict_own,
    races_of,
)
from rulka.pretraining.params import CloneParams, ImitatedMaps, LabelKind
from tests.conftest import write_synthetic_frames

Write = Callable[..., tuple[Path, object]]
CONV = ConvConfig(kind="conv", adaptive_pool=0)
PREVIOUS = FLOATS["previous_actions"]
MEAN, STD = (torch.from_numpy(part) for part in (reference_normalisation().mean, reference_normalisation().std))


def test_action_before_by_hand() -> None:
    action = np.array([3, 3, 1, 2, 2, 5])
    race = np.array([0, 0, 0, 7, 7, 7])
    np.testing.assert_array_equal(action_before(action[:, None], race), [0, 3, 3, 0, 2, 2])
    np.testing.assert_array_equal(action_before(np.array([[3, 1], [2, 2], [4, 5]]), race[1:4]), [0, 3, 1, 2, 0, 4])


def test_labels_of_two_data_sets_by_hand() -> None:
    """A race of two frames in each: what comes a decision later is in the same race, or there is none."""
    parts = [Labels(torch.arange(first, first + 2.0)[:, None], torch.tensor([1, 0])) for first in (0.0, 10.0)]
    later, is_known = Labels.joined(parts).ahead(torch.arange(4), 1)
    assert later[:, 0].tolist() == [1.0, 1.0, 11.0, 11.0]
    assert is_known.tolist() == [True, False, True, False]


def test_entropy_and_confusion_by_hand() -> None:
    share = np.array([[1.0, 0.0], [0.5, 0.5]], np.float32)
    assert label_entropy(share) == pytest.approx(math.log(2) / 2)
    matrix = confusion_matrix(np.array([0, 0, 1, 2]), np.array([0, 2, 1, 0]), 3)
    np.testing.assert_array_equal(matrix, [[1, 0, 1], [0, 1, 0], [1, 0, 0]])


def disturbing(previous_action_dropout: float, float_noise: float) -> CloneParams:
    clone = reference_params().clone
    return clone.model_copy(update={"previous_action_dropout": previous_action_dropout, "float_noise": float_noise})


def test_dropout_hides_the_asked_share_and_nothing_else_but_the_clock() -> None:
    floats = torch.full((2000, NUM_FLOATS), 7.0)
    disturbed = augment_floats(floats, MEAN, STD, disturbing(0.25, 0.0), torch.Generator().manual_seed(0))
    is_hidden = (disturbed[:, PREVIOUS] == MEAN[PREVIOUS]).all(dim=1)
    is_kept = (disturbed[:, PREVIOUS] == 7.0).all(dim=1)
    assert (is_hidden | is_kept).all()
    assert 0.21 < is_hidden.float().mean() < 0.29
    assert (disturbed[:, FLOATS["clock"]] == MEAN[FLOATS["clock"]]).all()
    disturbed[:, PREVIOUS] = 7.0
    disturbed[:, FLOATS["clock"]] = 7.0
    assert torch.equal(disturbed, floats)
    assert (floats == 7.0).all()


def test_noise_is_in_units_of_the_normalisation() -> None:
    noisy = augment_floats(
        torch.zeros(4000, NUM_FLOATS), MEAN, STD, disturbing(0.0, 0.5), torch.Generator().manual_seed(0)
    )
    expected = 0.5 * STD
    expected[FLOATS["clock"]] = 0.0
    torch.testing.assert_close(noisy.std(dim=0), expected, rtol=0.1, atol=0)


def test_what_is_hidden_is_zero_and_can_be_disconnected() -> None:
    for part in ("previous_actions", "clock"):
        hidden = hide(torch.ones(3, NUM_FLOATS), MEAN, part)
        assert ((hidden - MEAN) / STD)[:, FLOATS[part]].abs().max() == 0
        hidden[:, FLOATS[part]] = 1
        assert (hidden == 1).all()
        head = nn.Sequential(nn.Linear(NUM_FLOATS, 4), nn.ReLU())
        disconnect(head, part)
        floats = torch.randn(5, NUM_FLOATS)
        changed = floats.clone()
        changed[:, FLOATS[part]] = 9.0
        assert torch.equal(head(floats), head(changed))
        changed[:, FLOATS[part].stop] = 9.0
        assert not torch.equal(head(floats), head(changed))


class Copycat(ClonePolicy):
    """Repeats one of the five previous actions, told apart by its keys; "brake" (6) if it has none of three."""

    def __init__(self, oldest: int = 4) -> None:
        super().__init__(InputShape(64, 64, MEAN, STD), CONV, 1, 1, 12)
        self.at = PREVIOUS.start + 4 * oldest

    def encode(self, image: Tensor) -> Tensor:
        return torch.zeros(len(image), 1)

    def hidden(self, encoded: Tensor, floats: Tensor) -> Tensor:
        keys = floats[:, self.at : self.at + 4]
        known = torch.tensor([[1.0, 0, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]])
        is_same = (keys[:, None] == known).all(dim=2).float()
        logits = torch.zeros(len(floats), 12)
        logits[:, :3] = 20 * is_same
        logits[:, 6] = 10
        return logits

    def read_out(self, hidden: Tensor) -> Tensor:
        return hidden


NO_HEADS = CloningHeads(8, 12, [])


def test_a_copycat_scores_as_the_baseline_and_is_unmasked(write_frames: Write) -> None:
    folder, _ = write_frames()
    train, validation = FrameDataset(folder, "train"), FrameDataset(folder, "validation")
    with torch.no_grad():
        everything = frames_of(train.races)
        result = measure(
            Copycat(), NO_HEADS, train, everything, Measured(validation, validation.races), action_table(5)
        )
    action, race = validation.action[:].astype(int), validation.race_index[:]
    repeats = np.mean([a == b for a, b, r, s in zip(action[1:], action, race[1:], race, strict=False) if r == s])
    assert result["accuracy"] == result["repeat_last_action_accuracy"] == pytest.approx(repeats, abs=0.03)
    assert result["where_action_changes"]["accuracy"] == 0.0
    assert result["accuracy_without_previous_actions"] == 0.0
    # Its races begin after "forward" (0), which it repeats to their end where it sees what it did itself.
    assert result["accuracy_with_own_actions"] == pytest.approx(np.mean(action == 0))
    assert result["loss_with_own_actions"] > result["loss"] + 2
    majority = np.bincount(train.action[:]).argmax()
    assert result["majority_accuracy"] == pytest.approx(np.mean(action == majority))
    assert result["label_entropy"] == pytest.approx(-0.8 * math.log(0.8) - 0.2 * math.log(0.2), rel=1e-4)
    assert np.array(result["confusion"]).sum() == len(validation)


def test_own_actions_move_from_newest_to_oldest_in_every_race_by_itself(
    write_frames: Write,
) -> None:
    """A policy that repeats what it did five decisions ago: each race repeats the five actions before its start."""
    folder, _ = write_frames(num_races=3, num_frames=12, validation_fraction=0.0)  # 12, 13 and 14 frames
    train = FrameDataset(folder, "train")
    floats, before = train.floats[:], [[0, 1, 2, 0, 1], [2, 2, 1, 0, 0], [1, 0, 2, 2, 1]]
    for race, actions in zip(train.races, before, strict=True):
        floats[race.start, PREVIOUS] = action_table(5).keys()[actions].ravel()
    train.floats = ShardedArray([floats])
    races = [train.races[2], train.races[0], train.races[1]]
    predicted = predict_own(Copycat(oldest=0), train, races, action_table(5)).predicted
    expected = [np.resize(before[train.races.index(race)], race.num_frames) for race in races]
    np.testing.assert_array_equal(predicted, np.concatenate(expected))


def test_races_that_chose_nothing_are_measured_on_where_there_are_some(tmp_path: Path) -> None:
    """One race is elsewhere; of three, two are on the main track: they train and validate."""
    cases: tuple[tuple[int, float, float, ImitatedMaps, Split], ...] = (
        (4, 0.1, 0.1, "main", "test"),
        (4, 0.1, 0.0, "main", "validation"),
        (4, 0.0, 0.0, "main", "train"),
        (3, 0.1, 0.1, "all", "validation"),
        (6, 0.1, 0.1, "all", "test"),
        (4, 0.1, 0.1, "others", "test"),
        (4, 0.0, 0.0, "others", "train"),
    )
    for number, (num_races, validation, test, maps, expected) in enumerate(cases):
        folder = tmp_path / str(number)
        write_synthetic_frames(folder, num_races, 40, 100, validation, test, 1)
        splits: dict[Split, FrameDataset] = {name: FrameDataset(folder, name) for name in SPLITS}
        measured = measured_races(splits, maps)
        assert measured.frames.split == expected
        assert measured.races == races_of(splits[expected], "main" if maps == "others" else maps)
        own, others, both = (races_of(splits["train"], each) for each in ("main", "others", "all"))
        assert own
        assert {race.map_uid for race in own}.isdisjoint(race.map_uid for race in others)
        assert sorted(race.race_id for race in own + others) == sorted(race.race_id for race in both)


def test_the_slow_twin_of_the_whole_loss(write_frames: Write) -> None:
    """Races of 4 and 5 frames: two decisions ahead the last two of each have no label, three ahead the last three."""
    folder, _ = write_frames(num_races=2, num_frames=4, validation_fraction=0.0)
    train = FrameDataset(folder, "train")
    torch.manual_seed(1)
    policy = ClonePolicy(InputShape(64, 64, MEAN, STD), CONV, 8, 8, 12).eval()
    heads = CloningHeads(8, 12, (2, 3))
    for head in (policy.policy_head, *heads.ahead_heads.values()):
        nn.init.normal_(head.weight)  # pyright: ignore[reportArgumentType]
    batch = train.batch(np.array([8, 2, 0, 5, 3, 4, 1]))
    shares: dict[LabelKind, np.ndarray] = {"soft": train.action_share[:], "hard": np.eye(12)[train.action[:]]}
    found: dict[str, float] = {}
    with torch.no_grad():
        for kind in shares:
            labels = Labels.of(train, kind)
            found[kind] = float(CloningTask(policy, heads, labels, action_table(5)).loss(batch, batch.floats))
        hidden = policy.hidden(policy.encode(batch.image), batch.floats)
        logits = {0: policy.read_out(hidden)} | heads.ahead(hidden)
    for kind, share in shares.items():
        total = 0.0
        for offset, of_offset in logits.items():
            terms = []
            for number, row in zip(batch.number.tolist(), of_offset.softmax(dim=1).tolist(), strict=True):
                end = next(end for end in (4, 9) if number < end)
                if number + offset < end:
                    terms.append(sum(-s * math.log(p) for s, p in zip(share[number + offset], row, strict=True)))
            assert len(terms) == {0: 7, 2: 4, 3: 3}[offset]
            total += sum(terms) / len(terms) / 3
        assert found[kind] == pytest.approx(total, rel=1e-5)
