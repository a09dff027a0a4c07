"""Hashes of inputs change when, and only when, the inputs do."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from rulka.operations import doctor
from rulka.operations.doctor import State
from rulka.simulator.race_params import LineStartParams
from rulka.stages.graph import code_files, hash_code
from rulka.stages.provenance import current_commit, hash_json, hash_path, is_dirty, provenance


def test_hashes_of_a_folder_and_of_json(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one").write_bytes(b"1")
    (tmp_path / "two").write_bytes(b"2")
    expected = hashlib.sha256(b"a/one\x001two\x002").hexdigest()
    assert hash_path(tmp_path) == expected
    (tmp_path / "two").rename(tmp_path / "three")
    assert hash_path(tmp_path) != expected
    (tmp_path / "three").rename(tmp_path / "two")
    (tmp_path / "a" / "one").write_bytes(b"0")
    assert hash_path(tmp_path) != expected
    assert hash_json({"a": 1, "b": [2]}) == hash_json({"b": [2], "a": 1})
    assert hash_json({"a": 1}) != hash_json({"a": 2})


def test_no_commit_outside_a_repository_or_in_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert current_commit() is None
    assert is_dirty() is None
    subprocess.run(["git", "init", "-q"], check=True)
    assert current_commit() is None
    monkeypatch.setenv("PATH", "")
    assert current_commit() is None
    assert not caplog.records, "nothing is wrong"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1", "dubious ownership"),
        ("GIT_DIR", "/nowhere/.git", "not a git repository: '/nowhere/.git'"),
    ],
)
def test_a_repository_that_git_refuses_is_no_missing_one(
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    value: str,
    said: str,
) -> None:
    """As in a container whose user does not own the folder."""
    assert current_commit() is not None
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("LC_ALL", "C")  # the doctor forwards git's message, in the user's language
    assert (current_commit(), is_dirty()) == (None, None)
    assert all("the commit is not noted" in record.message for record in caplog.records)
    assert said in caplog.text
    finding = doctor.git()
    assert (finding.state, said in finding.text) == (State.UNKNOWN, True)


@pytest.mark.parametrize("head", ["", "ref: "])
def test_a_damaged_repository_is_no_missing_one(repository: Path, caplog: pytest.LogCaptureFixture, head: str) -> None:
    (repository / ".git" / "HEAD").write_text(head)
    assert (current_commit(), is_dirty()) == (None, None)
    assert all("the commit is not noted" in record.message for record in caplog.records)
    assert caplog.records


def test_provenance_is_plain_json(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    limits = LineStartParams(start_lateral_m=1.0, start_heading_deg=2.0)
    made = provenance("pretrain", {"section": limits}, {"input": tmp_path / "file"})
    assert json.loads(json.dumps(made)) == made
    assert made["parameters"] == {"section": {"start_lateral_m": 1.0, "start_heading_deg": 2.0}}
    assert made["inputs_sha256"] == {"input": hashlib.sha256(b".\0x").hexdigest()}
    assert made["versions"]["torch"].startswith("2.")
    assert made["code_sha256"] == hash_code(code_files("pretrain"))
    assert made["is_dirty"] == is_dirty()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a commit, as the working directory."""
    for path in ("params.yaml", "dvc.lock", "rulka/code.py", ".gitignore"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("*.log\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (None, False),
        ("params.yaml", True),
        ("rulka/code.py", True),
        ("rulka/new.py", True),
        ("rulka/new.log", False),
        ("notes.txt", False),
        ("dvc.lock", False),
    ],
)
def test_a_folder_that_differs_from_its_commit_is_dirty(repository: Path, path: str | None, expected: bool) -> None:
    if path is not None:
        (repository / path).write_text("changed\n")
    assert is_dirty() == expected
