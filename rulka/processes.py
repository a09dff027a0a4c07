"""Processes that this one starts: they end with it, they end with all that they started, and start again only so often.

Two kinds: functions that `multiprocessing` runs, which call `end_with_parent` themselves, and programs in groups of
their own, which `start_group` ties to this process and `end_group` ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import current_process, parent_process, resource_tracker
from pathlib import Path
from typing import IO

import psutil

from rulka.errors import UserError

STOP_GRACE_S = 3.0
"""How long a process that has nothing to save may take to end when it is asked to."""

MAX_RESTARTS, RESTART_WINDOW_S = 2, 60.0
"""How often a process is restarted, unless its owner says otherwise: a third end within a minute is its last."""

REBUILDING_WINDOW_S = 600.0
"""The same window for what takes minutes to build: a host of a cluster, all learners of a run."""

KILL_PATIENCE_S = 5.0
"""How long the system may take to remove a process that was killed."""

WITHOUT_GUARD = 87
"""Exit code of `check_is_guarded`."""

_POLL_S = 0.1

Leader = subprocess.Popen[bytes] | subprocess.Popen[str]
"""A program that was started in a process group of its own."""

_PR_SET_PDEATHSIG = 1  # of Linux's header `linux/prctl.h`: the signal that a process gets when its parent ends
# Looked up here and not between fork and exec, where only what needs no lock may be done.
_PRCTL = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


def end_with_parent() -> None:
    """Ends this process, which `multiprocessing` started, as soon as its parent is gone, and leaves Ctrl-C to that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL)  # also reaches a process that hangs or was stopped
    # For other systems, and for a parent that was gone before the kernel was told.
    threading.Thread(target=_wait_for_parent, name="parent", daemon=True).start()


def _wait_for_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def check_is_guarded() -> None:
    """Ends a process that is only importing the script of the one which started it, where that script trains again.

    Nothing can be raised here: it would end the process with a traceback, and the other one would start it anew.
    """
    if getattr(current_process(), "_inheriting", False):
        os._exit(WITHOUT_GUARD)


def ending_of(code: int) -> str:
    """Returns in words how a process of `multiprocessing` ended.

    Raises:
        UserError: if `check_is_guarded` ended it: so it would any other one.
    """
    if code == WITHOUT_GUARD:
        message = (
            "the script trains whenever it is imported, and each process of its training imports it:"
            ' put what it does below `if __name__ == "__main__":`'
        )
        raise UserError(message)
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def cpu_seconds() -> float:
    """Returns the time that this process and all that it started, those that ended included, had on processors."""
    process = psutil.Process()
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it ended just now: from the next call on its parent counts it
            times = one.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets variables of this process's environment while the block runs, for what is started or built there."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Lets a process started in the block begin with interrupts blocked.

    Ctrl-C reaches every process of a terminal, also one that is still importing and has not yet called
    `end_with_parent`. One that comes to this process meanwhile is only late.
    """
    resource_tracker.ensure_running()  # starts with the first process otherwise, and unblocks interrupts as it does
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_group(
    command: Sequence[str], environment: Mapping[str, str], output: IO[bytes] | None, folder: Path | None = None
) -> subprocess.Popen[bytes]:
    """Starts a program in a process group of its own, out of the reach of Ctrl-C.

    On Linux it gets a SIGTERM when the thread that called this ends, and so when this process is killed.

    Args:
        command: the program and its arguments.
        environment: of the program.
        output: file for what it prints; None leaves that on the terminal.
        folder: where it works; None takes the current one.

    Raises:
        OSError: if it cannot be started.
    """

    def tie() -> None:
        if _PRCTL is not None:
            _PRCTL(_PR_SET_PDEATHSIG, signal.SIGTERM)

    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output else None,
        cwd=folder,
        env=environment,
        start_new_session=True,
        preexec_fn=tie,
    )


def end_group(
    leader: Leader,
    grace_s: float = STOP_GRACE_S,
    *,
    ask: int = signal.SIGTERM,
    strays: Sequence[psutil.Process] = (),
) -> None:
    """Ends the group that a process leads, then what it started outside of the group. Nothing else is touched.

    Both are asked first, and killed after `grace_s`. Returns when all are gone.

    Args:
        leader: of the group; it may have ended already.
        grace_s: how long the group, and after it the others, may take to end.
        ask: the signal that asks the group.
        strays: what the leader is known to have started, from `descendants`, should it be gone itself.
    """
    outside = [*strays, *descendants(leader)]
    _end(lambda: group_members(leader), lambda number: _signal_group(leader, number), ask, grace_s)

    def signal_strays(number: int) -> None:
        for one in outside:
            with suppress(psutil.NoSuchProcess):
                one.send_signal(number)

    _end(lambda: [one for one in outside if _is_alive(one)], signal_strays, signal.SIGTERM, grace_s)
    if not group_members(leader):
        leader.wait()


def descendants(leader: Leader) -> list[psutil.Process]:
    """Returns all that a process, and what it started, has started and that still belongs to it; none if it ended."""
    if leader.poll() is not None:  # its id may belong to somebody else by now
        return []
    try:
        return psutil.Process(leader.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def group_members(leader: Leader) -> list[int]:
    """Returns the process ids of the group that `leader` leads, without those that only wait to be reaped."""
    leader.poll()  # reaps it
    return [pid for pid in psutil.pids() if _is_in_group(pid, leader.pid)]


def _is_in_group(pid: int, group: int) -> bool:
    try:
        return os.getpgid(pid) == group and _is_alive(psutil.Process(pid))
    except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
        return False


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _signal_group(leader: Leader, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader.pid, number)  # in one go: nobody in it can start another one meanwhile


def _end(living: Callable[[], Sequence[object]], send: Callable[[int], None], ask: int, grace_s: float) -> None:
    """Asks whoever lives to end, waits, and kills whoever still lives after `grace_s`."""
    for number, patience_s in ((ask, grace_s), (signal.SIGKILL, KILL_PATIENCE_S)):
        if not living():
            return
        send(number)
        deadline_s = time.monotonic() + patience_s
        while living() and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)


class RestartBudget:
    """How often something may be started again: what needs more than that is broken, and a restart would not help.

    Args:
        num_restarts: that many...
        window_s: ...within any span of so many seconds.
    """

    def __init__(self, num_restarts: int = MAX_RESTARTS, window_s: float = RESTART_WINDOW_S) -> None:
        self.num_restarts, self.window_s = num_restarts, window_s
        self._taken_s: deque[float] = deque()

    @property
    def span(self) -> str:
        """How often within which time is too often, in words."""
        return f"{self.num_restarts + 1} times within {self.window_s:.0f} s"

    def take(self) -> bool:
        """Takes a restart that happens now; returns False, and takes none, where all of them are taken."""
        now_s = time.monotonic()
        while self._taken_s and now_s - self._taken_s[0] > self.window_s:
            self._taken_s.popleft()
        if len(self._taken_s) >= self.num_restarts:
            return False
        self._taken_s.append(now_s)
        return True
