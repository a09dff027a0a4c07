"""Frames in the layout of the Hugging Face Hub: everything survives the way there and back."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from rulka import cli
from rulka.datasets import hugging_face
from rulka.datasets.formats.frames import INDEX_FILE, FrameDataset, FrameIndex, Split
from rulka.datasets.hugging_face import SPLITS, export_frames, import_frames, stage_writing
from rulka.machine.errors import UserError

Write = Callable[..., tuple[Path, FrameIndex]]
ROOT = Path(__file__).parents[2]
ARRAYS = ("images", "floats", "action", "action_share", "tick_actions", "controls", "time_ms", "along_m", "race_index")


@pytest.fixture
def exported(write_frames: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A frame dataset and its export after a killed one; its files are so short that races cross them."""
    monkeypatch.setattr(hugging_face, "ROWS_PER_FILE", 70)
    frames, _ = write_frames(num_races=7, num_elsewhere=2, test_fraction=0.1)
    out = tmp_path / "hub"
    (out / ".new-killed").mkdir(parents=True)
    export_frames(frames, out, licence="cc-by-4.0")
    assert not (out / ".new-killed").exists()
    return frames, out


def test_there_and_back_nothing_changes(exported: tuple[Path, Path], tmp_path: Path) -> None:
    frames, out = exported
    assert len(list((out / "data").glob("train-*.parquet"))) > 1
    again = tmp_path / "again"
    index = import_frames(out, again, shard_frames=100)
    assert asdict(index) == asdict(FrameDataset(frames, "train").index)
    for split in SPLITS:
        before, after = FrameDataset(frames, split), FrameDataset(again, split)
        for name in ARRAYS:
            np.testing.assert_array_equal(getattr(before, name)[:], getattr(after, name)[:], err_msg=name)


def test_card_says_what_the_hub_reads(exported: tuple[Path, Path]) -> None:
    _, out = exported
    text = (out / "README.md").read_text(encoding="utf-8")
    head = yaml.safe_load(text.split("---")[1])
    assert head["license"] == "cc-by-4.0"
    assert {entry["split"] for entry in head["configs"][0]["data_files"]} == set(SPLITS)
    assert "contact_sheet" not in text


def test_players_are_named_only_on_demand(write_frames: Write, tmp_path: Path) -> None:
    frames, _ = write_frames(num_races=3)
    players = {f"race-{number}": f"somebody {number}" for number in range(3)}
    export_frames(frames, tmp_path / "anonymous", licence="other")
    export_frames(frames, tmp_path / "named", licence="other", players=players)
    assert "somebody" not in "".join(path.read_text("latin-1") for path in (tmp_path / "anonymous").rglob("*.*"))
    table = pq.read_table(next((tmp_path / "named" / "data").glob("train-*.parquet")))
    assert table["player"][0].as_py() == players[table["race_id"][0].as_py()]


def test_what_is_damaged_is_refused_by_name(exported: tuple[Path, Path], tmp_path: Path) -> None:
    frames, out = exported
    index, file = out / INDEX_FILE, sorted((out / "data").glob("train-*.parquet"))[-1]
    text, data = index.read_text(), file.read_bytes()
    changed = bytearray(data)
    changed[len(data) // 2] ^= 1
    other = json.dumps(json.loads(text) | {"schema_version": 99})
    damages = [
        (index, text[:100].encode(), "index.json cannot be read"),
        (index, other.encode(), "has frame schema 99, newer than"),
        (file, data[:-40], "is damaged or was changed"),
        (file, bytes(changed), "is damaged or was changed"),
    ]
    for path, content, message in damages:
        whole = path.read_bytes()
        path.write_bytes(content)
        with pytest.raises(UserError, match=message):
            import_frames(out, tmp_path / "again", shard_frames=100)
        path.write_bytes(whole)
    with pytest.raises(UserError, match="not empty"):
        export_frames(frames, out, licence="other")
    for path in (file, index):
        path.unlink()
        with pytest.raises(UserError, match=r"cannot be read|is missing"):
            import_frames(out, tmp_path / "again", shard_frames=100)


def test_the_datasets_library_reads_it(exported: tuple[Path, Path], tmp_path: Path) -> None:
    frames, out = exported
    loaded = datasets.load_dataset(str(out), cache_dir=str(tmp_path / "cache"))
    splits: tuple[Split, ...] = SPLITS
    for split in splits:
        ours, theirs = FrameDataset(frames, split), loaded[split]
        assert len(ours) == len(theirs)
        np.testing.assert_array_equal(np.asarray(theirs[3]["image"]), ours.images[3:4][0, 0])
        np.testing.assert_allclose(theirs[3]["floats"], ours.floats[3:4][0], rtol=1e-6)
        race = ours.index.races[ours.race_index[3:4][0]]
        assert (theirs[3]["race_id"], theirs[3]["map_uid"]) == (race.race_id, race.map_uid)


def test_who_imports_frames_where_a_stage_writes_is_advised_to_freeze_it(
    exported: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    for file in ("dvc.yaml", "params.yaml"):
        shutil.copy(ROOT / file, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["rulka", "frames", "import", str(exported[1])])
    cli.main()
    assert "stage capture writes there too: `dvc freeze capture` keeps these" in capsys.readouterr().out
    assert len(FrameDataset(Path("data/frames"), "train")) > 0
    assert stage_writing(Path("data/mine")) is None
    Path("dvc.yaml").unlink()
    assert stage_writing(Path("data/frames")) is None
