"""The frame dataset: what is written is read back, in the order asked for, and other versions are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from rulka.contracts.actions import action_table
from rulka.contracts.artifacts import observation_contract
from rulka.contracts.observation import NUM_FLOATS, num_floats
from rulka.datasets.card import card, examples, maps_of, write_card
from rulka.datasets.formats.checksums import checksums_of, sealed
from rulka.datasets.formats.frames import INDEX_FILE, FrameDataset, FrameIndex, FrameWriter, check_contract, read_index
from rulka.datasets.formats.split import SPLITS
from rulka.machine.errors import UserError
from tests.conftest import sees, synthetic_race

Write = Callable[..., tuple[Path, FrameIndex]]


def test_every_race_lies_whole_in_one_split_in_time_order(write_frames: Write) -> None:
    folder, index = write_frames(num_races=7, num_frames=40, shard_frames=90, test_fraction=0.1)
    assert len(index.shards["train"]) > 1
    seen = {}
    for split in SPLITS:
        frames = FrameDataset(folder, split)
        assert frames.split == split
        for race in frames.races:
            part = slice(race.start, race.start + race.num_frames)
            np.testing.assert_array_equal(frames.time_ms[part], 50 * np.arange(race.num_frames))
            names = {index.races[number].race_id for number in frames.race_index[part]}
            assert names == {race.race_id}
            seen[race.race_id] = race.num_frames
    assert seen == {f"race-{number}": 40 + number for number in range(7)}


def test_values_survive(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    share = rng.dirichlet(np.ones(12), 5).astype(np.float32)
    race = replace(
        synthetic_race("bad", 5, seed=0),
        map_uid="m",
        floats=rng.normal(size=(5, NUM_FLOATS)).astype(np.float32),
        action=share.argmax(axis=1).astype(np.uint8),
        action_share=share,
        controls=rng.uniform(-1, 1, (5, 3)).astype(np.float32),
    )
    writer = one_race_writer(tmp_path)
    writer.add(race)
    index = writer.close()
    assert asdict(read_index(tmp_path)) == asdict(index)
    frames = FrameDataset(tmp_path, "train")
    for name in ("floats", "action", "action_share", "tick_actions", "controls", "time_ms", "along_m"):
        stored = getattr(frames, name)[:]
        np.testing.assert_array_equal(stored, getattr(race, name))
        assert stored.dtype == getattr(race, name).dtype
    np.testing.assert_array_equal(frames.images[:], race.image)
    assert len(FrameDataset(tmp_path, "validation")) == len(FrameDataset(tmp_path, "test")) == 0
    assert frames.index.statistics["num_frames"] == {"train": 5, "validation": 0, "test": 0}
    np.testing.assert_allclose(frames.index.statistics["action_share"], share.mean(axis=0), atol=1e-6)


def test_an_epoch_has_every_frame_once_and_depends_on_nothing_else(write_frames: Write) -> None:
    folder, _ = write_frames()

    def times(seed: int, epoch: int) -> list[np.ndarray]:
        frames = FrameDataset(folder, "train")
        return [batch.floats.numpy() for batch in frames.iterate_batches(seed=seed, epoch=epoch, batch_size=32)]

    frames = FrameDataset(folder, "train")
    order = {"seed": 3, "epoch": 2, "batch_size": 32}
    for images, batch in zip(frames.iterate_images(**order), frames.iterate_batches(**order), strict=True):
        np.testing.assert_array_equal(images.image.numpy(), batch.image.numpy())
    first = np.concatenate(times(1, 0))
    assert len(first) == len(frames)
    np.testing.assert_array_equal(np.sort(first[:, 0]), np.sort(frames.floats[:][:, 0]))
    np.testing.assert_array_equal(first, np.concatenate(times(1, 0)))
    for other in (times(1, 1), times(2, 0)):
        assert not np.array_equal(first, np.concatenate(other))
    assert [len(batch) for batch in times(1, 0)][:-1] == [32] * (len(frames) // 32)


def test_later_images_are_of_the_same_race(write_frames: Write) -> None:
    """Every frame that has one comes once with the image of the third decision after it."""
    folder, _ = write_frames()
    frames = FrameDataset(folder, "train")
    batches = list(frames.iterate_images(seed=3, epoch=2, batch_size=32, later=3))
    found = np.concatenate([batch.image.numpy() for batch in batches])
    assert len(frames.races) > 1
    pairs = [
        np.stack([frames.images[start : end - 3], frames.images[start + 3 : end]], axis=1)
        for start, end in ((race.start, race.start + race.num_frames) for race in frames.races)
    ]
    as_rows = [each.reshape(len(each), -1) for each in (found, np.concatenate(pairs))]
    np.testing.assert_array_equal(*(np.unique(rows, axis=0) for rows in as_rows))
    assert len(found) == sum(map(len, pairs))


def test_decisions_of_several_actions_are_made_of_ticks(write_frames: Write) -> None:
    """An action for each tick; before a frame those of the five before it, of the same race, then "forward"."""
    folder, _ = write_frames()
    single, chunks = FrameDataset(folder, "train"), FrameDataset(folder, "train", parts=5)
    rows, ticks = np.arange(len(single)), single.tick_actions[:]
    decided = chunks.decided(rows)
    np.testing.assert_array_equal(decided.action, ticks)
    np.testing.assert_array_equal(decided.share.argmax(axis=2), ticks)
    np.testing.assert_array_equal(decided.share.sum(axis=2), 1.0)
    floats, keys = chunks.floats_seen(rows), action_table(1).keys()
    race = single.races[1]
    for number in (race.start, race.start + 2, race.start + 9):
        before = [ticks[k] if k >= race.start else np.zeros(5, int) for k in range(number - 5, number)]
        np.testing.assert_array_equal(floats[number, 1:101], keys[np.concatenate(before)].ravel())
    np.testing.assert_array_equal(floats[:, 101:], single.floats[:][:, 21:])


def test_a_longer_action_is_labelled_by_the_longest_held(write_frames: Write) -> None:
    """Offsets 0, 10 and 30 ms: ticks 0, 1 to 2 and 3 to 4. The tie of two ticks goes to the earlier one."""
    folder, _ = write_frames()
    frames = FrameDataset(folder, "train", parts=(0, 10, 30))
    frames.tick_actions = np.array([[4, 1, 2, 0, 0], [0, 3, 3, 5, 6]])
    decided = frames.decided(slice(None))
    np.testing.assert_array_equal(decided.action, [[4, 1, 0], [0, 3, 5]])
    assert decided.share.shape == (2, 3, 12)
    assert decided.share[0, 1, [1, 2]].tolist() == [0.5, 0.5]
    assert decided.share[1, 1, 3] == 1.0
    assert FrameDataset(folder, "train", parts=(0, 10, 30)).floats_seen(slice(0, 2)).shape == (2, num_floats(3))
    with pytest.raises(ValueError, match="50 does not"):
        FrameDataset(folder, "train", parts=(0, 50)).decided(slice(0, 2))


def test_a_lost_shard_is_noticed(write_frames: Write) -> None:
    folder, index = write_frames()
    path = folder / index.shards["train"][0] / "image.npy"
    np.save(path, np.load(path)[:-1])
    seal_again(folder)
    with pytest.raises(UserError, match="the index says otherwise"):
        FrameDataset(folder, "train")


def seal_again(folder: Path) -> None:
    """Makes what lies in a folder, changed as it is, pass for what was written."""
    content = json.loads((folder / INDEX_FILE).read_text())
    content["checksums"] = checksums_of(folder, content["checksums"])
    (folder / INDEX_FILE).write_text(json.dumps(sealed(content)))


def test_damage_is_named_before_anything_is_read(write_frames: Write) -> None:
    folder, index = write_frames()
    file = folder / index.shards["train"][-1] / "along_m.npy"
    whole = file.read_bytes()
    file.write_bytes(whole[:6] + b"\xff" + whole[7:])  # in its header
    with pytest.raises(UserError, match=re.escape("along_m.npy is damaged or was changed")) as caught:
        FrameDataset(folder, "train")
    assert "dvc repro capture" in caught.value.hint
    assert len(FrameDataset(folder, "validation")) > 0, "the other split is as it was"


def test_an_index_that_is_not_as_it_was_written_is_named(write_frames: Write) -> None:
    folder, index = write_frames()
    text = (folder / INDEX_FILE).read_text()
    for path in (("races", 0, "split"), ("shards",), ("checksums",), ("statistics", "num_races")):
        content = json.loads(text)
        inner = content
        for part in path[:-1]:
            inner = inner[part]
        del inner[path[-1]]
        (folder / INDEX_FILE).write_text(json.dumps(content))
        with pytest.raises(UserError, match=r"index.json is damaged or was changed"):
            FrameDataset(folder, "train")
    for version, age in ((3, "older"), (99, "newer")):
        (folder / INDEX_FILE).write_text(json.dumps(json.loads(text) | {"schema_version": version}))
        with pytest.raises(UserError, match=age) as caught:
            FrameDataset(folder, "train")
        assert "dvc repro capture" in caught.value.hint
    (folder / INDEX_FILE).write_text(text)
    (folder / index.shards["train"][0] / "action.npy").unlink()
    with pytest.raises(UserError, match=re.escape("action.npy cannot be read: No such file")):
        FrameDataset(folder, "train")
    (folder / INDEX_FILE).unlink()
    with pytest.raises(UserError, match=re.escape("index.json is missing")):
        FrameDataset(folder, "train")


def test_what_no_frame_holds_is_not_written(tmp_path: Path) -> None:
    rows = {
        "race bad: floats of frame 3 holds what cannot be": ("floats", np.nan),
        "controls of frame 3": ("controls", np.inf),
        "action_share of frame 3": ("action_share", -0.1),
        "action of frame 3 holds what cannot be: 12": ("action", 12),
        "tick_actions of frame 3": ("tick_actions", 12),
        "time_ms of frame 3": ("time_ms", -50),
    }
    writer = one_race_writer(tmp_path)
    for message, (name, value) in rows.items():
        race = synthetic_race("bad", 10, seed=0)
        getattr(race, name)[3] = value
        with pytest.raises(UserError, match=message):
            writer.add(race)
    race = synthetic_race("bad", 10, seed=0)
    with pytest.raises(UserError, match="10 images and 9 rows of floats"):
        writer.add(replace(race, floats=race.floats[:-1]))
    writer.add(replace(race, map_uid="elsewhere"))
    with pytest.raises(UserError, match="no frame to learn from was captured on the main track m"):
        writer.close()
    assert not (tmp_path / INDEX_FILE).exists()


def one_race_writer(folder: Path) -> FrameWriter:
    contract = observation_contract(sees(64, 64))
    return FrameWriter(
        folder, observation=contract, actions=action_table(5), main_track="m", splits={"bad": "train"}, shard_frames=3
    )


def test_a_contract_that_differs_is_named(write_frames: Write) -> None:
    _, index = write_frames()
    contract = observation_contract(sees(64, 64))
    check_contract(index, contract, action_table(5))
    with pytest.raises(UserError, match=r"observation.width 64, expected 32"):
        check_contract(index, replace(contract, width=32), action_table(5))
    with pytest.raises(UserError, match=r"actions.ticks_per_action 5, expected 1"):
        check_contract(index, contract, action_table(1))


def test_card_lists_maps_with_the_main_track_first(write_frames: Write) -> None:
    """Four races of 30 to 33 frames on the main track, then three of 34 to 36."""
    folder, index = write_frames(num_races=7, num_frames=30, num_elsewhere=3, validation_fraction=0.0)
    assert maps_of(index) == ["synthetic", "elsewhere"]
    assert maps_of(replace(index, main_track="elsewhere")) == ["elsewhere", "synthetic"]
    text = card(index)
    assert "races on 2 maps" in text
    assert "| `synthetic` | 126 | 4 | 4 | 0 | 0 |\n| `elsewhere` | 105 | 3 | 3 | 0 | 0 |" in text
    assert "| 3 | none | 20.0 % |" in text  # one fifth of every synthetic decision
    assert "Rendered" not in text, "an index alone does not tell"
    write_card(folder, index, "simulator")
    assert "embedded simulator's camera" in (folder / "README.md").read_text()
    height, width = imread(folder / "contact_sheet.png").shape[:2]
    assert (height, width) == (6 * 66 + 2, 10 * 66 + 2), "three rows of ten for each of two maps"
    train = FrameDataset(folder, "train")
    shown = [train.index.races[number].map_uid for number in train.race_index[examples(train)]]
    assert shown == 30 * ["synthetic"] + 30 * ["elsewhere"]


@pytest.mark.parametrize("frames", [1, 5])
def test_what_is_seen_at_once_never_comes_from_another_race(write_frames: Write, frames: int) -> None:
    """Frame by frame: the one so many decisions before, or the first of the race."""
    folder, _ = write_frames(num_races=3, num_frames=6)
    dataset = FrameDataset(folder, "train", frames)
    images, races = dataset.images[:], dataset.race_index[:]
    numbers = np.random.default_rng(0).permutation(len(dataset))
    seen = dataset.frame_stacks(numbers)
    assert seen.shape == (len(dataset), frames, *images.shape[2:])
    for number, stack in zip(numbers, seen, strict=True):
        first = int(np.flatnonzero(races == races[number])[0])
        for back in range(frames):
            assert np.array_equal(stack[frames - 1 - back], images[max(first, number - back), 0])
    assert np.array_equal(dataset.frame_stacks(slice(2, 7)), dataset.frame_stacks(np.arange(2, 7)))
    assert np.array_equal(dataset.batch(numbers).image.numpy(), seen)
