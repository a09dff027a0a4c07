import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rulka.machine.disk import check_can_hold, disk_error_of
from rulka.machine.errors import UserError
from rulka.stages.outputs import filled_folder, new_file
from rulka.stages.stage import output_folder, require
from tests.machine.test_processes import is_alive
from tests.waiting import PATIENCE_S, wait_for

ROOT = Path(__file__).parents[2]


def test_require_names_the_stage_to_run(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing"):
        with pytest.raises(UserError, match=f"{name} is missing or incomplete: run `dvc repro capture` first"):
            require(tmp_path / name, "capture")


def test_output_folder_removes_what_a_killed_run_left_and_of_its_own_alone(tmp_path: Path) -> None:
    """Whatever its name holds: glob characters, spaces, or a prefix of another one's name."""
    names = ("frames", "frames-2", "frames.new", "o[1]", "o1", "o*", "ä ö", "'x\"", "-", "\udcff")
    left = {name: tmp_path / f".{name}.new" for name in names}
    for folder in left.values():
        folder.mkdir()
    for name, folder in left.items():
        (folder / "half").touch()
        with output_folder(tmp_path / name) as beside:
            assert beside == folder
            assert list(beside.iterdir()) == []
        assert not folder.exists()
        assert (tmp_path / name).is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_a_name_that_is_too_long_is_one_clear_message(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="File name too long") as refused, output_folder(tmp_path / ("x" * 300)):
        pass
    assert str(disk_error_of(refused.value)).endswith("xxx.new: File name too long")


def test_of_a_copy_the_file_that_could_not_be_written_is_named(tmp_path: Path) -> None:
    """Python names the source first, which may lie on another disk."""

    def full(target: Path) -> OSError:
        return OSError(errno.ENOSPC, "No space left on device", "/source", None, str(target))

    said = f"written: {tmp_path / 'target'}: No space left"
    assert said in str(disk_error_of(full(tmp_path / "target")))
    with pytest.raises(UserError, match="shown cannot be written: No space"), filled_folder(tmp_path / "shown") as new:
        raise full(new / "target")
    with pytest.raises(OSError, match="No space left"), filled_folder(tmp_path / "shown"):
        raise full(tmp_path / "elsewhere")


def test_the_umask_decides_who_may_read_outputs(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with output_folder(tmp_path / "frames"), filled_folder(tmp_path / "shown") as inside:
            (inside / "deep").mkdir()
            with new_file(inside / "file") as file:
                file.touch()
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {"frames": 0o750, "shown": 0o750, "deep": 0o750, "file": 0o640}


def test_output_folder_leaves_alone_what_another_process_is_writing(tmp_path: Path) -> None:
    writer = start_stage(tmp_path, WORK)
    assert writer.stdout is not None
    child = int(writer.stdout.readline())
    beside = tmp_path / ".out.new"
    with pytest.raises(UserError, match="another process is writing"), output_folder(tmp_path / "out"):
        pass
    assert (beside / "half").exists()
    writer.kill()
    os.kill(child, signal.SIGKILL)
    writer.communicate(timeout=PATIENCE_S)
    with output_folder(tmp_path / "out"):
        assert not (beside / "half").exists()


def test_output_folder_brings_back_what_a_run_killed_between_two_renames_had_moved_aside(tmp_path: Path) -> None:
    for name in (".frames.new", ".frames.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    with output_folder(tmp_path / "frames"):
        assert [path.name for path in (tmp_path / "frames").iterdir()] == [".frames.old"]


def test_a_folder_that_is_closed_is_found_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_can_hold(Path("data"))
    check_can_hold(Path("data/deeper"))
    # The tests may run as root, so the operating system's answer is replaced.
    monkeypatch.setattr(os, "access", lambda folder, _mode: Path(folder) != tmp_path)
    with pytest.raises(UserError, match="is not writable"):
        check_can_hold(Path("data"))
    (tmp_path / "data").mkdir()
    check_can_hold(Path("data"))


# A stage as a process -------------------------------------------------------------------------------------------------

STAGE = """
import subprocess, sys, time
from pathlib import Path
from rulka.machine.errors import UserError
from rulka.stages.outputs import filled_folder, new_file
from rulka.stages.stage import output_folder, run_stage

def main():
    {body}

run_stage(main)
"""
WORK = """
    with output_folder(Path("out")) as folder:
        (folder / "half").touch()
        child = subprocess.Popen(["sleep", "600"])
        print(child.pid, flush=True)
        time.sleep(600)
"""


def start_stage(tmp_path: Path, body: str, **environment: str) -> subprocess.Popen[str]:
    """Starts a stage with this body in `tmp_path`."""
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


def ended(tmp_path: Path, body: str) -> tuple[int, str]:
    """Runs a stage to its end; returns its exit code and output."""
    _, errors = (stage := start_stage(tmp_path, body)).communicate(timeout=PATIENCE_S)
    return stage.returncode, errors


def test_a_named_error_is_one_message_and_a_defect_shows_its_traceback(tmp_path: Path) -> None:
    assert ended(tmp_path, "raise UserError('no races', hint='add some')") == (1, "error: no races\n  add some\n")
    code, errors = ended(tmp_path, "raise RuntimeError('defect')")
    assert (code, "Traceback" in errors, "defect" in errors) == (1, True, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_stage_leaves_no_output_and_no_process(tmp_path: Path, number: signal.Signals) -> None:
    stage = start_stage(tmp_path, WORK)
    assert stage.stdout is not None
    child = int(stage.stdout.readline())
    stage.send_signal(number)
    stage.send_signal(number)
    _, errors = stage.communicate(timeout=PATIENCE_S)
    assert stage.returncode == 130
    assert errors == "interrupted\n"
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("toy.py", "__pycache__")] == []
    wait_for(lambda: not is_alive(child), "the end of what the stage had started")


LAST_SIGNALS = """
    import atexit, os, signal
    atexit.register(lambda: [os.kill(os.getpid(), number) for number in (signal.SIGINT, signal.SIGTERM)])
    class Last:  # goes with the modules, after Python has put the default handlers back
        def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGTERM):
            kill(pid, number)
    sys.modules["last"] = Last()
"""


@pytest.mark.parametrize(
    ("ending", "code"),
    [("pass", 0), ("raise KeyboardInterrupt", 130), ("raise UserError('no')", 1), ("raise RuntimeError('no')", 1)],
)
def test_signals_that_come_while_python_shuts_down_change_no_exit_code(tmp_path: Path, ending: str, code: int) -> None:
    assert ended(tmp_path, f"{LAST_SIGNALS}\n    {ending}")[0] == code


def test_a_signal_while_an_error_is_reported_ends_the_stage_as_interrupted(tmp_path: Path) -> None:
    body = """
    class Wrong(UserError):
        def for_people(self):
            import os, signal
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
    raise Wrong("no")
    """
    assert ended(tmp_path, body) == (130, "interrupted\n")


def test_a_signal_while_an_output_takes_its_place_comes_after_it(tmp_path: Path) -> None:
    body = """
    import os, signal
    rename = Path.rename
    def interrupted_rename(path, target):
        os.kill(os.getpid(), signal.SIGINT)
        return rename(path, target)
    Path("out").mkdir()
    Path("out/old").touch()
    with output_folder(Path("out")) as folder:
        (folder / "new").touch()
        Path.rename = interrupted_rename
    """
    assert ended(tmp_path, body)[0] == 130
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


WRITE_TOO_MUCH = """
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    with output_folder(Path("out")) as folder:
        {}
"""


WRITERS = {
    "npy": 'import numpy; numpy.save(folder / "x.npy", numpy.zeros(200_000))',
    "npz": 'import numpy; numpy.savez(folder / "x.npz", numpy.zeros(200_000))',
    "safetensors": 'import numpy, safetensors.numpy as s; s.save_file({"x": numpy.zeros(200_000)}, folder / "x")',
    "parquet": 'import pyarrow as a, pyarrow.parquet as p; p.write_table(a.table({"x": range(200_000)}), folder / "x")',
    "png": 'from PIL import Image; Image.effect_noise((500, 500), 90).save(folder / "x.png")',
}


@pytest.mark.parametrize(
    "writing",
    [
        pytest.param('(folder / "x").write_bytes(bytes(200_000))', id="bytes"),
        *(pytest.param(code, id=name, marks=pytest.mark.slow) for name, code in WRITERS.items()),
    ],
)
def test_a_full_disk_is_one_clear_message_and_costs_nothing(tmp_path: Path, writing: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").touch()
    code, errors = ended(tmp_path, WRITE_TOO_MUCH.format(writing))
    assert code == 1
    assert errors.startswith("error: there was no room for what had to be written: "), errors
    assert errors.count("\n") == 2
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["old"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("number", ["EROFS", "EACCES", "EPERM"])
def test_a_folder_that_may_not_be_written_is_one_clear_message(tmp_path: Path, number: str) -> None:
    body = f"import errno, os; raise OSError(errno.{number}, os.strerror(errno.{number}), 'data/races')"
    code, errors = ended(tmp_path, body)
    assert code == 1
    assert errors.startswith("error: not allowed: data/races: ")
    assert errors.count("\n") == 2


def test_a_stage_ends_when_its_starter_was_killed(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as starter:
        stage = start_stage(tmp_path, WORK, RULKA_STARTED_BY=f"{os.getpid()} {starter.pid}")
        assert stage.stdout is not None
        assert stage.stdout.readline()
        assert stage.poll() is None
        starter.kill()
    stage.communicate(timeout=PATIENCE_S)
    assert stage.returncode == 130
