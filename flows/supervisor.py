"""Keeps long-running processes up: starts each in a group of its own, again when it ends or hangs, and ends all."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import psutil

from flows.process import end_group
from rulka.errors import UserError

MAX_STARTS = 4
STARTS_PERIOD_S = 300.0
"""A part that needed `MAX_STARTS` starts within this time is broken, and starting it again would not help."""

START_TIMEOUT_S = 180.0
"""How long a part may take, from its start, to answer for the first time."""

HANG_TIMEOUT_S = 60.0
"""A part that has answered and then does not for this long hangs; a busy machine delays an answer by seconds."""

MAX_LOG_BYTES = 10_000_000
"""A longer log is put aside as `<name>.1`, in place of the one before."""

STOP_GRACE_S = 10.0
PR_SET_PDEATHSIG = 1
"""From the header `linux/prctl.h`: the signal that a process gets when its parent ends."""


class PartError(UserError):
    """A part of the stack does not stay up."""


class Part:
    """One process that must be running while the supervisor is.

    Args:
        name: for people.
        command: the program and its arguments.
        environment: of the process.
        log_file: where its output goes; None leaves it on the terminal.
        on_death: called when the process has ended by itself, before it is started again.
        answers: whether the process does its work; None where only its end can be seen.
        hang_timeout_s: how long it may be without an answer, once it has given one.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        log_file: Path | None = None,
        on_death: Callable[[], None] = lambda: None,
        answers: Callable[[], bool] | None = None,
        hang_timeout_s: float = HANG_TIMEOUT_S,
    ) -> None:
        self.name, self.log_file = name, log_file
        self._command, self._environment, self._on_death = list(command), dict(environment), on_death
        self._answers, self._hang_timeout_s = answers, hang_timeout_s
        self._deadline_s = 0.0
        self._process: subprocess.Popen[str] | None = None
        self._descendants: list[psutil.Process] = []
        self._starts_s: deque[float] = deque(maxlen=MAX_STARTS)

    @property
    def exit_code(self) -> int | None:
        """How the process ended; None while it runs or before its first start."""
        return self._process.poll() if self._process else None

    def start(self) -> None:
        """Starts the process, in a group of its own and, on Linux, to be ended when this process is killed."""
        self._starts_s.append(time.monotonic())
        self._deadline_s = time.monotonic() + START_TIMEOUT_S
        output = _open_log(self.log_file)
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if output else None,
                text=True,
                start_new_session=True,
                preexec_fn=_end_with_parent,
                env=self._environment,
            )
        finally:
            if output:
                output.close()

    def look(self) -> None:
        """Notes what the process has started, to be ended with it, and keeps its log from growing without end."""
        if self.log_file:
            rotate(self.log_file, MAX_LOG_BYTES)
        if self._process and self.exit_code is None:
            with suppress(psutil.NoSuchProcess):
                self._descendants = psutil.Process(self._process.pid).children(recursive=True)

    def is_hung(self) -> bool:
        """Whether the process runs and has not answered for too long; asks it."""
        if self._answers is None or self.exit_code is not None:
            return False
        if self._answers():
            self._deadline_s = time.monotonic() + self._hang_timeout_s
        return time.monotonic() > self._deadline_s

    def restart(self) -> None:
        """Starts the process again after it has ended by itself or hangs.

        Raises:
            PartError: if that was needed too often of late.
        """
        if len(self._starts_s) == MAX_STARTS and time.monotonic() - self._starts_s[0] < STARTS_PERIOD_S:
            where = f"; see {self.log_file}" if self.log_file else "; see its output above"
            ending = "hangs" if self.exit_code is None else f"ended with exit code {self.exit_code}"
            message = (
                f"the {self.name} was started {MAX_STARTS} times within {STARTS_PERIOD_S:.0f} s and {ending}{where}"
            )
            raise PartError(message)
        self.stop()
        self._on_death()
        self.start()

    def stop(self) -> None:
        """Ends the process, its group, and whatever it started in groups of their own."""
        self.look()
        if self._process:
            end_group(self._process, STOP_GRACE_S)
        for process in self._descendants:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        _, alive = psutil.wait_procs(self._descendants, timeout=STOP_GRACE_S)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._descendants = []


class Supervisor:
    """Holds parts, in the order in which they were started; on leaving the block they are stopped in reverse.

    Args:
        say: gets each line for people.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._parts: list[Part] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for part in reversed(self._parts):
            self._say(f"stopping the {part.name}")
            part.stop()

    def start(self, part: Part) -> None:
        """Starts a part and keeps it up from now on."""
        self._parts.append(part)
        part.start()

    def check(self) -> None:
        """Starts every part again that has ended or hangs.

        Raises:
            PartError: if a part does not stay up.
        """
        for part in self._parts:
            part.look()
            if part.exit_code is not None:
                self._say(f"the {part.name} ended with exit code {part.exit_code}; starting it again")
                part.restart()
            elif part.is_hung():
                self._say(f"the {part.name} does not answer any more; starting it again")
                part.restart()


def rotate(path: Path, max_bytes: int) -> None:
    """Puts a log that is longer than `max_bytes` aside as `<name>.1` and empties it.

    Whoever writes it has it open to append, so it is copied and emptied and not renamed; lines written in between are
    lost. So are all where they cannot be copied, on a full disk above all, where room is needed more than they are.
    """
    if not path.is_file() or path.stat().st_size <= max_bytes:
        return
    try:
        shutil.copyfile(path, path.with_name(f"{path.name}.1"))
        remark = f"{path.name}.1 holds what was before\n"
    except OSError as error:
        remark = f"what was before is lost: {error}\n"
    os.truncate(path, 0)
    with path.open("a", encoding="utf-8") as file:
        file.write(remark)


def _open_log(path: Path | None) -> IO[str] | None:
    if path is None:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a", encoding="utf-8")


def _end_with_parent() -> None:
    """Runs in the child before its program: a killed supervisor cannot stop its parts, so the kernel does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
