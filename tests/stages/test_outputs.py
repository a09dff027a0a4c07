"""Outputs of commands: missing parent folders are never created."""

from __future__ import annotations

import errno
import os
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from rulka.machine.errors import UserError
from rulka.stages.outputs import check_file, check_folder, filled_folder, has_content, locked_folder, new_file


@pytest.mark.parametrize(
    ("check", "name", "message"),
    [
        (check_file, "none/a.png", "a.png cannot be written: there is no folder .*none"),
        (check_file, "file/a.png", "there is no folder .*file"),
        (check_file, ".", "is a folder, and a file is to be written"),
        (check_folder, "none/report", "there is no folder .*none"),
        (check_folder, "file", "is a file, and a folder is to be written into"),
    ],
)
def test_what_cannot_be_written_is_named(tmp_path: Path, check, name: str, message: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match=message):
        check(tmp_path / name)


@pytest.mark.parametrize(("check", "name"), [(check_file, "a.png"), (check_folder, "new"), (check_folder, ".")])
def test_a_folder_that_is_closed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check, name: str) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(UserError, match=f"{tmp_path} is not writable"):
        check(tmp_path / name)


@pytest.mark.parametrize("name", ["lap", "lap.gif", "mp4"])
def test_another_ending_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"must end in \.mp4 or \.mkv"):
        check_file(tmp_path / name, ".mp4", ".mkv")


def half_written(opened: AbstractContextManager[Path], error: BaseException) -> None:
    """Writes part of an output, then raises `error`."""
    with opened as beside:
        (beside / "b.txt" if beside.is_dir() else beside).write_text("half")
        raise error


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "Make room there"),
        (OSError(errno.EACCES, "Permission denied"), "Allow writing to it"),
        (KeyboardInterrupt(), ""),
    ],
)
def test_what_was_there_stays_until_all_is_written(tmp_path: Path, error: BaseException, hint: str) -> None:
    (tmp_path / "a.txt").write_text("old")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "b.txt").write_text("old")
    expected = UserError if isinstance(error, OSError) else KeyboardInterrupt
    for opened in (new_file(tmp_path / "a.txt"), *(filled_folder(tmp_path / name) for name in ("folder", "new"))):
        with pytest.raises(expected) as refused:
            half_written(opened, error)
        assert hint in getattr(refused.value, "hint", "")
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    assert files == {"a.txt", "folder", "folder/b.txt"}
    assert (tmp_path / "a.txt").read_text() == (tmp_path / "folder" / "b.txt").read_text() == "old"


def test_what_a_killed_process_left_is_no_content_and_goes(tmp_path: Path) -> None:
    for name in (".new-dead", ".new-alive"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").touch()
    assert not has_content(tmp_path)
    assert not has_content(tmp_path / "missing")
    with locked_folder(tmp_path / ".new-alive"), filled_folder(tmp_path) as new:
        assert {path.name for path in tmp_path.iterdir()} == {".new-alive", new.name}
        with filled_folder(tmp_path):
            assert new.exists(), "another process writes there"
        (new / "whole").touch()
    assert {path.name for path in tmp_path.iterdir()} == {".new-alive", "whole"}
    assert has_content(tmp_path)


def test_what_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), new_file(tmp_path / "a.txt"):
        (tmp_path / "missing").read_text()
    writing = new_file(tmp_path / "a.txt", may_replace=False)
    writing.__enter__().write_text("mine")
    (tmp_path / "a.txt").write_text("somebody else's, meanwhile")
    with pytest.raises(UserError, match=r"a\.txt exists"):
        writing.__exit__(None, None, None)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text().startswith("somebody")
    # Otherwise root, writing to /dev/null, would replace the device by a file.
    with pytest.raises(UserError, match="/dev/null is a device"), new_file(Path("/dev/null")):
        pytest.fail("nothing is to be written")
