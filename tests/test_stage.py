import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rulka.errors import UserError
from rulka.stage import StageInputError, output_folder, require

ROOT = Path(__file__).parents[1]


def test_require_returns_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "frames").mkdir()
    (tmp_path / "frames" / "index.json").touch()
    assert require(tmp_path / "frames", "capture") == tmp_path / "frames"


@pytest.mark.parametrize("is_empty_folder", [True, False])
def test_require_names_the_stage_to_run(tmp_path: Path, is_empty_folder: bool) -> None:
    if is_empty_folder:
        (tmp_path / "frames").mkdir()
    with pytest.raises(StageInputError, match="frames is missing or incomplete: run `dvc repro capture` first"):
        require(tmp_path / "frames", "capture")


def test_output_folder_replaces_the_old_one_whole(tmp_path: Path) -> None:
    out = tmp_path / "data" / "frames"
    out.mkdir(parents=True)
    (out / "old").touch()
    with output_folder(out) as folder:
        (folder / "new").touch()
        assert [path.name for path in out.iterdir()] == ["old"]
    assert [path.name for path in out.iterdir()] == ["new"]
    assert [path.name for path in out.parent.iterdir()] == ["frames"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_output_folder_keeps_the_old_one_after_any_exception(tmp_path: Path, error: type[BaseException]) -> None:
    out = tmp_path / "frames"
    out.mkdir()
    (out / "old").touch()

    def write_half() -> None:
        with output_folder(out) as folder:
            (folder / "half").touch()
            raise error

    with pytest.raises(error):
        write_half()
    assert [path.name for path in tmp_path.iterdir()] == ["frames"]
    assert [path.name for path in out.iterdir()] == ["old"]


def test_output_folder_removes_what_a_killed_run_left(tmp_path: Path) -> None:
    left = tmp_path / ".frames-abc"
    left.mkdir()
    other = tmp_path / ".encoder-abc"
    other.mkdir()
    with output_folder(tmp_path / "frames"):
        assert not left.exists()
    assert other.exists()


def test_user_error_says_what_to_do() -> None:
    assert UserError("no port").for_people() == "no port"
    assert UserError("no port", hint="choose one").for_people() == "no port\n  choose one"


# A stage as a process -------------------------------------------------------------------------------------------------

STAGE = """
import subprocess, sys, time
from pathlib import Path
from rulka.errors import UserError
from rulka.stage import output_folder, run_stage

def main():
    {body}

run_stage(main)
"""
WORK = """
    with output_folder(Path("out")) as folder:
        (folder / "half").touch()
        child = subprocess.Popen(["sleep", "60"])
        print(child.pid, flush=True)
        time.sleep(60)
"""


def start_stage(tmp_path: Path, body: str, **environment: str) -> subprocess.Popen[str]:
    """Runs a stage with this body in `tmp_path`."""
    (tmp_path / "toy.py").write_text(STAGE.format(body=body))
    paths = os.pathsep.join((str(tmp_path), str(ROOT)))
    return subprocess.Popen(
        [sys.executable, "-m", "toy"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until_gone(pid: int, timeout_s: float = 5.0) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_a_named_error_is_one_message_without_traceback(tmp_path: Path) -> None:
    _, errors = (stage := start_stage(tmp_path, "raise UserError('no races', hint='add some')")).communicate(timeout=30)
    assert stage.returncode == 1
    assert errors == "error: no races\n  add some\n"


def test_an_unknown_error_shows_its_traceback(tmp_path: Path) -> None:
    _, errors = (stage := start_stage(tmp_path, "raise RuntimeError('defect')")).communicate(timeout=30)
    assert stage.returncode == 1
    assert "Traceback" in errors
    assert "defect" in errors


def test_a_stage_that_ends_well_writes_how_long_it_took(tmp_path: Path) -> None:
    stage = start_stage(tmp_path, "pass")
    stage.communicate(timeout=30)
    assert stage.returncode == 0
    line = json.loads((tmp_path / "runs" / "stage_durations.jsonl").read_text())
    assert line["stage"] == "toy"
    assert 0 <= line["seconds"] < 30
    assert 1 < line["peak_rss_mb"] < 1000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_stage_leaves_no_output_and_no_process(tmp_path: Path, number: signal.Signals) -> None:
    stage = start_stage(tmp_path, WORK)
    assert stage.stdout is not None
    child = int(stage.stdout.readline())
    stage.send_signal(number)
    stage.send_signal(number)
    _, errors = stage.communicate(timeout=30)
    assert stage.returncode == 130
    assert errors == "interrupted\n"
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("toy.py", "__pycache__")] == []
    assert wait_until_gone(child)


def test_a_stage_ends_when_its_starter_was_killed(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as starter:
        stage = start_stage(tmp_path, WORK, RULKA_STARTED_BY=f"{os.getpid()} {starter.pid}")
        assert stage.stdout is not None
        assert stage.stdout.readline()
        assert stage.poll() is None
        starter.kill()
    stage.communicate(timeout=30)
    assert stage.returncode == 130
