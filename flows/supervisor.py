"""Keeps long-running processes up: starts each in a group of its own, again when it ends or hangs, and ends all."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import psutil

from flows.process import SAVE_GRACE_S
from rulka.errors import UserError
from rulka.processes import RestartBudget, descendants, end_group, start_group

MAX_RESTARTS = 3
"""Of one part, within `RESTART_WINDOW_S`."""
RESTART_WINDOW_S = 300.0

START_TIMEOUT_S = 180.0
"""How long a part may take, from its start, to answer for the first time."""

HANG_TIMEOUT_S = 60.0
"""A part that has answered and then does not for this long hangs; a busy machine delays an answer by seconds."""

MAX_LOG_BYTES = 10_000_000
"""A longer log is put aside as `<name>.1`, in place of the one before."""


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
        self._process: subprocess.Popen[bytes] | None = None
        self._descendants: list[psutil.Process] = []
        self._budget = RestartBudget(MAX_RESTARTS, RESTART_WINDOW_S)

    @property
    def exit_code(self) -> int | None:
        """How the process ended; None while it runs or before its first start."""
        return self._process.poll() if self._process else None

    def start(self) -> None:
        """Starts the process, in a group of its own and, on Linux, to be ended when this process is killed."""
        self._deadline_s = time.monotonic() + START_TIMEOUT_S
        output = _open_log(self.log_file)
        try:
            self._process = start_group(self._command, self._environment, output)
        finally:
            if output:
                output.close()

    def look(self) -> None:
        """Notes what the process has started, to be ended with it, and keeps its log from growing without end."""
        if self.log_file:
            rotate(self.log_file, MAX_LOG_BYTES)
        if self._process and self.exit_code is None:
            self._descendants = descendants(self._process)

    def is_hung(self) -> bool:
        """Whether the process runs and has not answered for too long; asks it."""
        if self._answers is None or self.exit_code is not None:
            return False
        if self._answers():
            self._deadline_s = time.monotonic() + self._hang_timeout_s
            return False
        return time.monotonic() > self._deadline_s

    def restart(self) -> None:
        """Starts the process again after it has ended by itself or hangs.

        Raises:
            PartError: if that was needed too often of late.
        """
        if not self._budget.take():
            where = f"; see {self.log_file}" if self.log_file else "; see its output above"
            ending = "hangs" if self.exit_code is None else f"ended with exit code {self.exit_code}"
            message = (
                f"the {self.name} was started again {MAX_RESTARTS} times within {RESTART_WINDOW_S:.0f} s and "
                f"{ending}{where}"
            )
            raise PartError(message)
        self.stop()
        self._on_death()
        self.start()

    def stop(self) -> None:
        """Ends the process, its group, and whatever it started in groups of their own."""
        self.look()
        if self._process:
            end_group(self._process, SAVE_GRACE_S, ask=signal.SIGINT, strays=self._descendants)
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


def _open_log(path: Path | None) -> IO[bytes] | None:
    if path is None:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab")
