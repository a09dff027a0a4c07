import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from flows.supervisor import MAX_RESTARTS, Part, PartError, Supervisor, rotate
from tests.test_processes import is_alive
from tests.waiting import wait_for

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
PARENT = [
    sys.executable,
    "-c",
    "import subprocess, time\n"
    "print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True)\n"
    "time.sleep(600)",
]


def pid_of(part: Part) -> int:
    assert part._process is not None
    return part._process.pid


def wait_for_end(part: Part) -> None:
    wait_for(lambda: part.exit_code is not None, f"the end of the {part.name}")


def test_a_part_that_ends_is_started_again(tmp_path: Path) -> None:
    said: list[str] = []
    deaths: list[int] = []
    part = Part("worker", SLEEP, os.environ, log_file=tmp_path / "log", on_death=lambda: deaths.append(1))
    with Supervisor(said.append) as supervisor:
        supervisor.start(part)
        supervisor.check()
        first = pid_of(part)
        os.kill(first, signal.SIGKILL)
        wait_for_end(part)
        supervisor.check()
        assert pid_of(part) != first
        assert deaths == [1]
        last = pid_of(part)
    assert said == ["the worker ended with exit code -9; starting it again", "stopping the worker"]
    assert not psutil.pid_exists(last)


def test_a_part_that_does_not_stay_up_is_given_up() -> None:
    part = Part("server", [sys.executable, "-c", "raise SystemExit(7)"], os.environ)

    def watch() -> None:
        while True:
            wait_for_end(part)
            supervisor.check()

    with Supervisor(lambda _: None) as supervisor:
        supervisor.start(part)
        with pytest.raises(
            PartError,
            match=f"the server was started again {MAX_RESTARTS} times within 300 s and ended with exit code 7",
        ):
            watch()


@pytest.mark.parametrize("is_killed", [True, False])
def test_what_a_part_started_elsewhere_ends_with_it(tmp_path: Path, is_killed: bool) -> None:
    log = tmp_path / "log"
    part = Part("worker", PARENT, os.environ, log_file=log)
    part.start()
    wait_for(lambda: log.read_text().endswith("\n"), "the process that the part starts")
    child = int(log.read_text())
    part.look()
    if is_killed:
        os.kill(pid_of(part), signal.SIGKILL)
        wait_for_end(part)
    assert psutil.pid_exists(child)
    part.stop()
    wait_for(lambda: not is_alive(child), "the end of what the part started")


@pytest.mark.skipif(sys.platform != "linux", reason="only the Linux kernel offers it")
def test_parts_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        "import os, sys, time, pathlib\n"
        "from flows.supervisor import Part\n"
        f"part = Part('server', {SLEEP!r}, os.environ, log_file=pathlib.Path({str(log)!r}))\n"
        "part.start()\n"
        "print(part._process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    outer = Part("outer", [sys.executable, "-c", code], os.environ, log_file=tmp_path / "outer")
    outer.start()
    wait_for(lambda: (tmp_path / "outer").read_text().endswith("\n"), "the part of the other supervisor")
    inner = int((tmp_path / "outer").read_text())
    os.kill(pid_of(outer), signal.SIGKILL)
    wait_for_end(outer)
    wait_for(lambda: not is_alive(inner), "the end of its part")


def test_a_part_that_hangs_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A stopped process hears no interrupt, so it is killed after this long.
    monkeypatch.setattr("flows.supervisor.SAVE_GRACE_S", 0.5)
    said: list[str] = []
    answering = [True]
    part = Part(
        "server", SLEEP, os.environ, log_file=tmp_path / "log", answers=lambda: answering[0], hang_timeout_s=0.3
    )
    with Supervisor(said.append) as supervisor:
        supervisor.start(part)
        supervisor.check()
        first = pid_of(part)
        os.kill(first, signal.SIGSTOP)
        answering[0] = False
        wait_for(lambda: supervisor.check() or pid_of(part) != first, "another process")
        # It may take longer to start than to answer.
        supervisor.check()
        assert len(said) == 1
    assert said == ["the server does not answer any more; starting it again", "stopping the server"]
    assert not psutil.pid_exists(first)


def test_a_part_that_hangs_again_and_again_is_given_up(tmp_path: Path) -> None:
    part = Part("server", SLEEP, os.environ, answers=iter([True, False] * 99).__next__, hang_timeout_s=-1.0)

    def watch() -> None:
        while True:
            supervisor.check()

    with Supervisor(lambda _: None) as supervisor:
        supervisor.start(part)
        with pytest.raises(
            PartError, match=f"the server was started again {MAX_RESTARTS} times within 300 s and hangs"
        ):
            watch()


def test_a_long_log_is_put_aside_while_it_is_written(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with log.open("a") as writer:
        writer.write("old\n" * 10)
        writer.flush()
        rotate(log, max_bytes=40)
        assert log.read_text() == "old\n" * 10
        rotate(log, max_bytes=39)
        writer.write("new\n")
        writer.flush()
    assert (tmp_path / "server.log.1").read_text() == "old\n" * 10
    assert log.read_text() == "server.log.1 holds what was before\nnew\n"
