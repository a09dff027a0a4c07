"""Processes end with their parent, and their children with them; restarts are limited."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing.synchronize import Event
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from rulka.machine import processes
from rulka.machine.processes import (
    RestartBudget,
    descendants,
    end_group,
    ending_of,
    group_members,
    interrupts_blocked,
    start_group,
)
from tests.waiting import PATIENCE_S, wait_for

ROOT = Path(__file__).parents[2]
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="only the Linux kernel offers it")

STUBBORN = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""
FAMILY = f"""
import subprocess, sys, time
near = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], stdout=subprocess.PIPE)
far = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], stdout=subprocess.PIPE, start_new_session=True)
near.stdout.readline(), far.stdout.readline()
print(near.pid, far.pid, flush=True)
time.sleep(600)
"""
POOL = """
import multiprocessing, os, sys, time
from rulka.machine.processes import end_with_parent

def hold_the_interpreter():
    end_with_parent()
    print(os.getpid(), flush=True)
    sum(range(10**12))  # one call: no other thread of this process has a turn

if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=hold_the_interpreter).start()
    time.sleep(600)
"""
GROUP = """
import os, sys, time
from rulka.machine.processes import start_group
print(start_group(["sleep", "600"], os.environ, None).pid, flush=True)
time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def first_words(output: Path) -> list[int]:
    wait_for(lambda: output.read_text().endswith("\n"), f"a line in {output}")
    return [int(word) for word in output.read_text().split()]


def start(code: str, output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return start_group([sys.executable, "-c", code], os.environ, file)


def test_a_script_that_is_imported_by_what_it_started_says_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing\n"
        "from rulka.machine.processes import check_is_guarded, ending_of\n"
        "check_is_guarded()\n"
        "process = multiprocessing.get_context('spawn').Process(target=print)\n"
        "process.start(); process.join(); print(ending_of(process.exitcode))\n"
    )
    path = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    answer = subprocess.run([sys.executable, script], env=path, capture_output=True, text=True, check=False)
    assert 'below `if __name__ == "__main__":`' in answer.stderr.splitlines()[-1]
    assert answer.stderr.count("Traceback") == 1
    assert (ending_of(-9), ending_of(3)) == ("was ended by signal 9", "ended with exit code 3")


@needs_linux
@pytest.mark.parametrize("code", [POOL, GROUP], ids=["function", "program"])
def test_a_parent_killed_by_minus_nine_takes_its_children_along(tmp_path: Path, code: str) -> None:
    script = tmp_path / "parent.py"
    script.write_text(code)
    command = [sys.executable, str(script)]
    with (tmp_path / "pids").open("wb") as file:
        parent = subprocess.Popen(command, stdout=file, env={**os.environ, "PYTHONPATH": str(ROOT)})
    (child,) = first_words(tmp_path / "pids")
    assert is_alive(child)
    parent.kill()
    parent.wait()
    wait_for(lambda: not is_alive(child), "the end of the child")


def nap(naps: Event) -> None:
    processes.end_with_parent()
    naps.set()
    time.sleep(600)


def test_without_a_kernel_that_does_it_a_child_ends_with_its_parent_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []

    class Parent:
        def join(self) -> None:
            """Returns at once: the parent is gone."""

    monkeypatch.setattr(processes, "parent_process", Parent)
    monkeypatch.setattr(os, "_exit", ended.append)
    processes._wait_for_parent()
    assert ended == [1]


def test_children_leave_interrupts_to_their_parent_from_their_first_moment_on() -> None:
    context = multiprocessing.get_context("spawn")
    naps = context.Event()
    with interrupts_blocked():
        child = context.Process(target=nap, args=(naps,))
        child.start()
    assert child.pid is not None
    os.kill(child.pid, signal.SIGINT)  # before it has imported anything
    wait_for(lambda: naps.is_set() or not child.is_alive(), "the child to have passed its first moments")
    assert child.is_alive()
    child.kill()
    child.join()


def test_a_group_that_does_not_listen_is_killed_with_strays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = start(FAMILY, tmp_path / "pids")
    near, far = first_words(tmp_path / "pids")
    assert set(group_members(leader)) == {leader.pid, near}

    def monotonic() -> float:
        """Stands still until the leader has exited, however long that takes on a busy machine."""
        return 0.0 if leader.poll() is None else time.monotonic()

    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep))
    end_group(leader, grace_s=0.3)
    assert not any(map(is_alive, (leader.pid, near, far)))
    assert leader.returncode == -signal.SIGTERM, "who listens is not killed"


def test_what_a_dead_leader_had_started_elsewhere_is_ended(tmp_path: Path) -> None:
    leader = start(FAMILY, tmp_path / "pids")
    near, far = first_words(tmp_path / "pids")
    strays = descendants(leader)
    assert {stray.pid for stray in strays} == {near, far}
    leader.kill()
    leader.wait()
    assert descendants(leader) == []
    end_group(leader, grace_s=0.3, strays=strays)
    assert not any(map(is_alive, (near, far)))


def test_a_group_that_listens_is_asked_with_the_signal_of_the_caller(tmp_path: Path) -> None:
    code = "import sys, time\ntry:\n print(1, flush=True); time.sleep(600)\nexcept KeyboardInterrupt:\n sys.exit(7)"
    leader = start(code, tmp_path / "said")
    first_words(tmp_path / "said")
    end_group(leader, grace_s=PATIENCE_S, ask=signal.SIGINT)
    assert leader.returncode == 7


def test_a_budget_refuses_one_restart_more_until_its_window_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("rulka.machine.processes.time.monotonic", lambda: now[0])
    budget = RestartBudget(3, window_s=60.0)
    taken = []
    for now[0] in (0.0, 10.0, 20.0, 30.0, 60.0, 61.0, 62.0):
        taken.append(budget.take())
    assert taken == [True, True, True, False, False, True, False]
