"""What killed runs leave in folders that nobody goes on with, and when DVC writes its record."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rulka.errors import UserError
from rulka.runtime.experience_files import ExperienceFiles
from rulka.runtime.run_lock import RunInUseError, locked
from rulka.runtime.specs import rank_folder
from rulka.training.run_folder import clean_up, dvc_record, forget_run


def test_a_folder_has_one_user_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path / "run"):
        with pytest.raises(RunInUseError, match=f"process {os.getpid()} trains there"), locked(tmp_path / "run"):
            pass
        with locked(tmp_path / "another"):
            pass
    with locked(tmp_path / "run"):
        pass


def test_what_is_another_learners_own_is_removed_too(tmp_path: Path) -> None:
    folder = tmp_path / f"ppo-{1:016x}"
    for rank in range(2):
        ExperienceFiles(rank_folder(folder, rank), 0).write({0: {"seen": np.zeros(100)}})
    clean_up(tmp_path, [])
    assert len(list(folder.rglob("*.npz"))) == 2, "the newest unfinished run may be gone back to"
    assert forget_run(folder) > 2 * 800
    assert not list(folder.rglob("*.npz"))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A DVC project whose stage `train` writes something else each time, or kills DVC and itself where `die` is."""
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").write_text(
        "[core]\n    no_scm = true\n    analytics = false\n    check_update = false\n"
    )
    (tmp_path / "toy.py").write_text(
        "import os, pathlib, signal, time\n"
        "pathlib.Path('agent').write_text(str(time.time_ns()))\n"
        "if pathlib.Path('die').exists():\n"
        "    os.killpg(0, signal.SIGKILL)\n"
    )
    stage = f"stages:\n  train:\n    cmd: '{sys.executable} toy.py'\n    outs:\n    - agent:\n        persist: true\n"
    (tmp_path / "dvc.yaml").write_text(stage)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def repro(*options: str) -> int:
    command = [sys.executable, "-m", "dvc", "repro", *options, "train"]
    return subprocess.run(command, capture_output=True, start_new_session=True, check=False).returncode


def test_dvc_changes_its_record_when_a_stage_has_ended_and_not_before(project: Path) -> None:
    """This is what tells a run that DVC has its output; a stage killed at its end leaves the record as it was."""
    records = [dvc_record()]
    for options in ((), ("--force",)):
        (project / "die").touch()
        assert repro(*options) == -signal.SIGKILL
        assert dvc_record() == records[-1]
        (project / "die").unlink()
        assert repro(*options) == 0
        assert dvc_record() not in records
        records.append(dvc_record())
    assert records[0] is None


def test_a_damaged_dvc_lock_is_a_named_error(project: Path) -> None:
    for content in (b"stages: [", b"stages:\n", b"\xff\xfe\0", b"- 1\n"):
        (project / "dvc.lock").write_bytes(content)
        with pytest.raises(UserError, match=r"dvc\.lock is damaged"):
            dvc_record()
