import os
import shlex
import shutil
import subprocess
from contextlib import chdir
from pathlib import Path

import pytest

from flows import dvc as module
from flows.dvc import DvcError, Outcome, changed_stages, reproduce_stage
from rulka.cli.projects import make_project
from rulka.machine.errors import UserError
from rulka.operations import doctor
from rulka.operations.doctor import State, findings_of
from rulka.operations.versions import keep_by_dvc
from rulka.stages.folders import DATA
from rulka.stages.graph import LockFileError, check_names, read_lock
from tests.flows.conftest import DVC, ROOT, TOY_GRAPH, change_command, dvc
from tests.waiting import PATIENCE_S, wait_for


def reproduce(stage: str, said: list[str] | None = None, *, force: bool = False) -> Outcome:
    return reproduce_stage(stage, force=force, say=(said if said is not None else []).append, timeout_s=PATIENCE_S)


def test_what_came_of_a_stage_is_what_dvc_says(toy_project: Path) -> None:
    said: list[str] = []
    assert reproduce("races", said) is Outcome.RAN
    assert "racing" in said
    assert reproduce("races") is Outcome.UNCHANGED
    assert reproduce("races", force=True) is Outcome.RAN
    assert reproduce("capture") is Outcome.RAN
    shutil.rmtree("data/frames")
    assert reproduce("capture") is Outcome.RESTORED
    assert Path("data/frames/x").read_text() == "1\n"


@pytest.fixture
def full_cache(toy_project: Path) -> Path:
    """A link to nowhere where DVC's cache would hold "1", whose writing fails as on a full disk: DVC succeeds."""
    blocked = Path(".dvc/cache/files/md5/b0")
    blocked.parent.mkdir(parents=True)
    blocked.symlink_to("nowhere")
    return blocked


def test_a_stage_whose_output_is_not_stored_has_failed(full_cache: Path) -> None:
    with pytest.raises(DvcError, match=r"data/races is finished, but not stored: .*\.dvc/cache") as caught:
        reproduce("races")
    assert "`dvc commit -f races`" in caught.value.hint
    full_cache.unlink()
    dvc("commit", "-f", "races")
    assert reproduce("races") is Outcome.UNCHANGED


def test_a_demo_that_is_not_stored_has_failed(full_cache: Path) -> None:
    Path("dvc.yaml").write_text(TOY_GRAPH.partition("  capture:")[0])
    Path(".venv/bin").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt"):
        Path(name).touch()
    Path(".venv/.ready").write_text(f"{Path.cwd() / '.venv'}\n")
    Path(".venv/bin/dvc").write_text(f'#!/bin/sh\nexec {shlex.join(DVC)} "$@"\n')
    Path(".venv/bin/dvc").chmod(0o755)
    demo = ["make", "--makefile", str(ROOT / "Makefile"), "demo"]
    made = subprocess.run(demo, capture_output=True, text=True, check=False)
    assert made.returncode != 0
    assert "not in cache:       data/races" in made.stdout
    assert 'error: what is "not in cache" is not stored' in made.stderr
    assert "The agent has raced" not in made.stdout
    full_cache.unlink()
    dvc("commit", "-f")
    assert "The agent has raced" in subprocess.run(demo, capture_output=True, text=True, check=True).stdout


def test_a_version_that_is_not_stored_is_none(full_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("data/agents").mkdir(parents=True)
    Path("data/agents/x").write_text("1\n")
    with pytest.raises(UserError, match=r"promoted, but DVC has not taken in data/agents: ERROR: failed to transfer"):
        keep_by_dvc([Path("data/agents")], "promoted")
    full_cache.unlink()
    keep_by_dvc([Path("data/agents")], "promoted")
    assert "under DVC: data/agents" in capsys.readouterr().err


def test_a_frozen_stage_is_kept_and_said_to_be(toy_project: Path) -> None:
    """What was imported is recorded; by force, too, nothing says that it was made from the inputs of today."""
    dvc("repro")
    dvc("freeze", "capture")
    Path("data/frames/x").write_text("imported\n")
    assert reproduce("capture") is Outcome.FROZEN
    recorded = read_lock()["capture"]
    change_command("races", "mkdir -p data/races && echo 2 > data/races/x")
    assert reproduce("races") is Outcome.RAN
    assert reproduce("capture", force=True) is Outcome.FROZEN
    assert read_lock()["capture"] == recorded
    assert reproduce("evaluate") is Outcome.RAN
    assert Path("data/evaluation/x").read_text() == "imported\n"


def test_a_name_that_dvc_cannot_read_is_named(toy_project: Path) -> None:
    """DVC says what it cannot decode, but not where that is."""
    Path("data/recordings").mkdir(parents=True, exist_ok=True)
    Path("data/recordings/caf\u00e9.Gbx").touch()
    check_names(DATA)
    Path(os.fsdecode(b"data/recordings/\xff.Gbx")).touch()
    for ask in (lambda: reproduce("races"), lambda: check_names(DATA)):
        with pytest.raises(UserError, match=r"the name of data/recordings/\\xff.Gbx is not UTF-8"):
            ask()
    assert findings_of("dvc", doctor.dvc)[0].state is State.WRONG
    inside = Path(os.fsdecode(b"\xfe"))
    inside.mkdir()
    for ask in (lambda: make_project(inside / "new"), lambda: make_project(inside)):
        with pytest.raises(UserError, match=r"\\xfe.* is not UTF-8"):
            ask()
    assert list(inside.iterdir()) == []
    with chdir(inside), pytest.raises(UserError, match=r"\\xfe/data is not UTF-8"):
        check_names(DATA)


def test_stages_with_changes_are_named_and_so_is_a_damaged_lock_file(toy_project: Path) -> None:
    assert changed_stages() == {"races", "capture", "evaluate"}
    dvc("repro")
    assert changed_stages() == set()
    change_command("races", "mkdir -p data/races && echo 2 > data/races/x")
    assert changed_stages() == {"races"}
    Path("dvc.lock").write_text("stages: {x: [")
    with pytest.raises(LockFileError, match=r"dvc\.lock is damaged") as caught:
        changed_stages()
    assert "Take it back from git" in caught.value.hint


def test_a_stage_waits_for_a_dvc_in_a_terminal(toy_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASK_AGAIN_S", 0.1)
    change_command(
        "races", "touch started && until test -e go; do sleep 0.1; done && mkdir -p data/races && touch data/races/x"
    )
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("waiting "):
            Path("go").touch()

    with subprocess.Popen([*DVC, "repro", "races"], stdout=subprocess.PIPE, text=True) as terminal:
        wait_for(lambda: Path("started").exists() or terminal.poll() is not None, "the stage")
        assert terminal.poll() is None
        assert reproduce_stage("capture", force=False, say=say, timeout_s=PATIENCE_S) is Outcome.RAN
        terminal.communicate()
    assert terminal.returncode == 0
    assert any(str(terminal.pid) in line for line in said), "DVC names whom it waits for"
