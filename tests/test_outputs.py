"""One rule for what commands write: nothing is made on the way to it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rulka import cli
from rulka.outputs import OutputError, check_file, check_folder


def test_what_can_be_written_is_returned(tmp_path: Path) -> None:
    (tmp_path / "old.png").write_bytes(b"")
    for name in ("new.png", "old.png"):
        assert check_file(tmp_path / name) == tmp_path / name
    for folder in (tmp_path, tmp_path / "new"):
        assert check_folder(folder) == folder
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old.png"], "nothing is made"


def test_a_bare_name_lies_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert check_file(Path("a.png")) == Path("a.png")


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
    with pytest.raises(OutputError, match=message):
        check(tmp_path / name)


@pytest.mark.parametrize(("check", "name"), [(check_file, "a.png"), (check_folder, "new"), (check_folder, ".")])
def test_a_folder_that_may_not_be_written_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check, name: str
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(OutputError, match=f"{tmp_path} is not writable"):
        check(tmp_path / name)


@pytest.mark.parametrize(
    "arguments",
    [
        ["track", "show", "copper-oval", "--out", "none/a.png"],
        ["track", "show", "--campaign", "--out", "none/a.png"],
        ["watch", "copper-oval", "--out", "none/a.mp4"],
        ["reference", "copper-oval", "--out", "none/a.txt"],
        ["export", "recording-1", "none/a.txt"],
        ["calibrate", "recordings", "--out", "none/report"],
        ["frames", "export", "none/hub"],
        ["frames", "import", "hub", "--frames", "none/frames"],
        ["fetch", "--maps", "1", "--out", "none/recordings"],
    ],
    ids=" ".join,
)
def test_every_command_keeps_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["rulka", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert "cannot be written: there is no folder none\n  Make the folder first" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["lap.MP4", "lap.mp4"])
def test_an_ending_counts_in_either_case(tmp_path: Path, name: str) -> None:
    assert check_file(tmp_path / name, ".mp4") == tmp_path / name


@pytest.mark.parametrize("name", ["lap", "lap.gif", "mp4"])
def test_another_ending_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OutputError, match=r"must end in \.mp4 or \.mkv"):
        check_file(tmp_path / name, ".mp4", ".mkv")
