"""Child processes: they end with this process, they end with all their own children, and their restarts are limited.

There are two kinds: functions run by `multiprocessing`, which call `end_with_parent` themselves, and programs in their
own process groups, which `start_group` ties to this process and `end_group` ends.
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

from rulka.machine.errors import UserError

STOP_GRACE_S = 3.0
"""Grace period between the request to end and the kill, for processes that have nothing to save."""

MAX_RESTARTS, RESTART_WINDOW_S = 2, 60.0
"""Default restart limit of a process: the third end within a minute is final."""

REBUILDING_WINDOW_S = 600.0
"""The same window for units that take minutes to start: a cluster host, all learners of a run."""

KILL_PATIENCE_S = 5.0
"""How long to wait for a killed process to disappear."""

WITHOUT_GUARD = 87
"""Exit code of `check_is_guarded`."""

_POLL_S = 0.1

Leader = subprocess.Popen[bytes] | subprocess.Popen[str]
"""A program that leads its own process group."""

_PR_SET_PDEATHSIG = 1  # from Linux's header `linux/prctl.h`: the signal that a process gets when its parent ends
# Looked up here, because code between fork and exec must not take locks.
_PRCTL = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


def end_with_parent() -> None:
    """Ends this `multiprocessing` process as soon as its parent is gone; ignores Ctrl-C, which the parent handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL)  # also reaches a process that hangs or was stopped
    # For other systems, and for a parent that ended before `prctl` was called.
    threading.Thread(target=_wait_for_parent, name="parent", daemon=True).start()


def _wait_for_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def check_is_guarded() -> None:
    """Ends a child process that imports its parent's script, if that script has no `__main__` guard and trains again.

    An exception would not do: the child would end with a traceback and the parent would restart it.
    """
    if getattr(current_process(), "_inheriting", False):
        os._exit(WITHOUT_GUARD)


def ending_of(code: int) -> str:
    """Describes how a `multiprocessing` process ended.

    Raises:
        UserError: if `check_is_guarded` ended it: a restart would end the same way.
    """
    if code == WITHOUT_GUARD:
        raise UserError(
            "the script trains whenever it is imported, and each process of its training imports it:"
            ' put what it does below `if __name__ == "__main__":`'
        )
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def cpu_seconds() -> float:
    """Returns the CPU seconds of this process and its children, including finished ones."""
    process = psutil.Process()
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it has just ended: from the next call its parent's total includes it
            times = one.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables of this process for the block, for processes and objects created there."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Blocks interrupts in processes started in the block.

    Ctrl-C reaches every process of a terminal, including one that is still importing and has not yet called
    `end_with_parent`. An interrupt of this process is only delayed until the end of the block.
    """
    resource_tracker.ensure_running()  # would start with the first process otherwise, and unblock interrupts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_group(
    command: Sequence[str], environment: Mapping[str, str], output: IO[bytes] | None, folder: Path | None = None
) -> subprocess.Popen[bytes]:
    """Starts a program in its own process group, out of reach of Ctrl-C.

    On Linux it gets a SIGTERM when the calling thread ends, and therefore also when this process is killed.

    Args:
        command: the program and its arguments.
        environment: of the program.
        output: file for its standard output and error; None leaves both on the terminal.
        folder: working directory; None is the current one.

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
    """Ends the group that a process leads, then its descendants outside the group. Touches no other process.

    Both get a signal first and are killed after `grace_s`. Returns when all are gone.

    Args:
        leader: of the group; it may have ended already.
        grace_s: how long the group, and then the descendants, may take to end.
        ask: the signal sent to the group first.
        strays: earlier result of `descendants`, in case the leader has ended.
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
    """Returns all current descendants of a process; none if it has ended."""
    with suppress(psutil.NoSuchProcess):
        if leader.poll() is None:  # else its id may have been reused by now
            return psutil.Process(leader.pid).children(recursive=True)
    return []


def group_members(leader: Leader) -> list[int]:
    """Returns the process ids of the group that `leader` leads, without zombies."""
    leader.poll()  # reaps a zombie leader
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
        os.killpg(leader.pid, number)  # atomic: no member can start another process in between


def _end(living: Callable[[], Sequence[object]], send: Callable[[int], None], ask: int, grace_s: float) -> None:
    """Sends `ask` to the living processes, waits up to `grace_s`, and kills the remaining ones."""
    for number, patience_s in ((ask, grace_s), (signal.SIGKILL, KILL_PATIENCE_S)):
        if not living():
            return
        send(number)
        deadline_s = time.monotonic() + patience_s
        while living() and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)


class RestartBudget:
    """Limit on restarts: a process that needs more of them is broken, and another restart would not help.

    Args:
        num_restarts: allowed restarts within any `window_s`.
        window_s: length of the sliding window, seconds.
    """

    def __init__(self, num_restarts: int = MAX_RESTARTS, window_s: float = RESTART_WINDOW_S) -> None:
        self.num_restarts, self.window_s = num_restarts, window_s
        self._taken_s: deque[float] = deque()

    @property
    def span(self) -> str:
        """The number of ends that exceeds the limit, in words."""
        return f"{self.num_restarts + 1} times within {self.window_s:.0f} s"

    def take(self) -> bool:
        """Uses up one restart now. Returns False, and uses none, if none is left."""
        now_s = time.monotonic()
        while self._taken_s and now_s - self._taken_s[0] > self.window_s:
            self._taken_s.popleft()
        if len(self._taken_s) >= self.num_restarts:
            return False
        self._taken_s.append(now_s)
        return True
