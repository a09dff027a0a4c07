from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from rulka.runtime.checkpoint import CheckpointError, Checkpoints, remove_unfinished


def _state(number: int) -> dict:
    return {"number": number, "tensors": {"weight": torch.arange(4.0) * number}, "none": None, "list": [1, (2.5, "x")]}


def test_round_trip(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "run")
    assert checkpoints.load_newest() is None
    checkpoints.save(7, _state(3))
    loaded = checkpoints.load_newest()
    assert loaded is not None
    assert torch.equal(loaded["tensors"]["weight"], torch.tensor([0.0, 3.0, 6.0, 9.0]))
    assert {name: loaded[name] for name in ("number", "none", "list")} == {
        "number": 3,
        "none": None,
        "list": [1, (2.5, "x")],
    }


def test_last_two_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for number in (5, 999, 10_000_000):
        checkpoints.save(number, _state(number))
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "checkpoint-000000000999.ckpt",
        "checkpoint-000010000000.ckpt",
    ]


def test_a_clock_that_was_set_back_does_not_make_an_older_one_the_newest(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(5, _state(5))
    checkpoints.save(999, _state(999))
    newest, oldest = checkpoints.files()
    os.utime(newest, (1.0, 1.0))
    assert oldest.stat().st_mtime > newest.stat().st_mtime
    loaded = checkpoints.load_newest()
    assert loaded is not None
    assert loaded["number"] == 999


@pytest.mark.parametrize("where", [0.1, 0.5, 0.999])
def test_flipped_byte_is_detected_and_the_one_before_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, where: float
) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, _state(1))
    newest = checkpoints.save(2, _state(2))
    data = bytearray(newest.read_bytes())
    data[int(where * len(data))] ^= 0x10
    newest.write_bytes(data)
    loaded = checkpoints.load_newest()
    assert loaded is not None
    assert loaded["number"] == 1
    assert "checkpoint-000000000002.ckpt is damaged" in caplog.text
    assert "trying the one before it" in caplog.text


def test_cut_off_file_is_detected(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    newest = checkpoints.save(2, _state(2))
    for length in (0, 10, 200):
        newest.write_bytes(newest.read_bytes()[:length])
        with pytest.raises(CheckpointError, match=r"all checkpoints in .* are damaged"):
            checkpoints.load_newest()


def test_code_in_a_checkpoint_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self):
            return os.system, ("echo never",)

    Checkpoints(tmp_path).save(1, {"evil": Evil()})
    with pytest.raises(CheckpointError):
        Checkpoints(tmp_path).load_newest()


def test_full_disk_leaves_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, _state(1))

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"checkpoint-000000000002.ckpt: No space left.*earlier .* untouched"):
        checkpoints.save(2, _state(2))
    loaded = checkpoints.load_newest()
    assert loaded is not None
    assert loaded["number"] == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_a_damaged_checkpoint_is_not_one_of_those_kept(tmp_path: Path) -> None:
    """Else the next save would leave one that can be read, and the one after a second damage none."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, _state(1))
    checkpoints.save(3, _state(3)).write_bytes(b"damaged")
    assert checkpoints.load_newest() is not None
    checkpoints.save(2, _state(2))
    assert [path.name for path in checkpoints.files()] == [
        "checkpoint-000000000002.ckpt",
        "checkpoint-000000000001.ckpt",
    ]
    checkpoints.clear()
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_was_writing_is_removed(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(1, _state(1))
    (tmp_path / "experience").mkdir()
    for name in ("checkpoint-000000000002.tmp", "experience/0000-000000001.tmp", "record.tmp"):
        (tmp_path / name).write_bytes(b"half")
    remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["checkpoint-000000000001.ckpt"]
