"""Checkpoints and run folders: damage, full disks, what killed runs leave."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from runtime_fakes import newest

from rulka.runtime.checkpoint import CheckpointError, Checkpoints, remove_unfinished
from rulka.runtime.experience_files import ExperienceFiles
from rulka.runtime.specs import rank_folder
from rulka.stages.graph import LockFileError, read_lock
from rulka.training.old_runs import FINAL_FOLDER, clean_up


def _state(number: int) -> dict:
    return {"number": number, "tensors": {"weight": torch.arange(4.0) * number}, "none": None, "list": [1, (2.5, "x")]}


def test_the_last_two_are_kept_whatever_the_clock_says(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.load_newest() is None
    for number in (5, 999, 10_000_000):
        checkpoints.save(number, _state(number))
    names = [path.name for path in sorted(tmp_path.iterdir())]
    assert names == ["checkpoint-000000000999.ckpt", "checkpoint-000010000000.ckpt"]
    os.utime(checkpoints.files()[0], (1.0, 1.0))
    loaded = newest(tmp_path)
    assert torch.equal(loaded.pop("tensors")["weight"], torch.arange(4.0) * 10_000_000)
    assert loaded == {"number": 10_000_000, "none": None, "list": [1, (2.5, "x")]}


@pytest.mark.parametrize("where", [0.1, 0.5, 0.999])
@pytest.mark.parametrize("is_cut", [False, True])
def test_damage_is_detected_and_the_one_before_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, where: float, is_cut: bool
) -> None:
    """A flipped byte, or a file that ends early; where both are damaged nothing is used."""
    checkpoints = Checkpoints(tmp_path)
    paths = [checkpoints.save(number, _state(number)) for number in (1, 2)]

    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        place = int(where * len(data))
        data[place] ^= 0x10
        path.write_bytes(data[:place] if is_cut else data)

    damage(paths[1])
    assert newest(tmp_path)["number"] == 1
    assert "checkpoint-000000000002.ckpt is damaged" in caplog.text
    assert "trying the one before it" in caplog.text
    damage(paths[0])
    with pytest.raises(CheckpointError, match=r"all checkpoints in .* are damaged"):
        checkpoints.load_newest()


def test_code_in_a_checkpoint_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self):
            return os.system, ("echo never",)

    Checkpoints(tmp_path).save(1, {"evil": Evil()})
    with pytest.raises(CheckpointError):
        Checkpoints(tmp_path).load_newest()


def test_a_damaged_checkpoint_is_not_one_of_those_kept(tmp_path: Path) -> None:
    """Else the next save would leave one that can be read, and the one after a second damage none."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, _state(1))
    checkpoints.save(3, _state(3)).write_bytes(b"damaged")
    assert checkpoints.load_newest() is not None
    checkpoints.save(2, _state(2))
    assert [int(path.stem[-1]) for path in checkpoints.files()] == [2, 1]
    checkpoints.clear()
    assert not list(tmp_path.iterdir())


def test_experience_stays_as_long_as_a_kept_checkpoint_names_it(tmp_path: Path) -> None:
    """Two that were written after the same number of steps are one file, and do not push the one before out."""
    files = ExperienceFiles(tmp_path, 0)

    def kept(env_steps: int, *pieces: int) -> list[str]:
        files.write({number: {"seen": np.zeros(1)} for number in pieces})
        files.forget_others(env_steps)
        return [path.stem[-1] for path in sorted(files.folder.iterdir())]

    assert kept(10, 1, 2) == ["1", "2"]
    assert kept(20, 2, 3) == ["1", "2", "3"]
    assert kept(20, 3, 4) == ["1", "2", "3", "4"]
    assert kept(30, 4) == ["3", "4"]


def test_what_a_killed_process_was_writing_is_removed(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(1, _state(1))
    (tmp_path / "experience").mkdir()
    for name in ("checkpoint-000000000002.tmp", "experience/0000-000000001.tmp", "record.tmp"):
        (tmp_path / name).write_bytes(b"half")
    remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["checkpoint-000000000001.ckpt"]


def test_what_is_another_learners_own_is_removed_too(tmp_path: Path) -> None:
    folder = tmp_path / f"ppo-{1:016x}"
    for rank in range(2):
        ExperienceFiles(rank_folder(folder, rank), 0).write({0: {"seen": np.zeros(100)}})
    checkpoint = Checkpoints(folder).save(1, _state(1))
    clean_up(tmp_path, [])
    assert len(list(folder.rglob("*.npz"))) == 2, "the newest unfinished run may be gone back to"
    (folder / FINAL_FOLDER).mkdir()
    clean_up(tmp_path, [])
    assert not list(folder.rglob("*.npz"))
    assert checkpoint.is_file()


def test_a_damaged_dvc_lock_is_a_named_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for content in (b"stages: [", b"stages:\n", b"\xff\xfe\0", b"- 1\n"):
        (tmp_path / "dvc.lock").write_bytes(content)
        with pytest.raises(LockFileError, match=r"dvc\.lock is damaged"):
            read_lock()
