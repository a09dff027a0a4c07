"""Runs a command in its own process group, streams its output by line, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rulka.machine.errors import UserError
from rulka.machine.processes import end_group
from rulka.stages.stage import STARTED_BY

SAVE_GRACE_S = 20.0
"""Grace period of a group to save its work after an interrupt; below the 30 s of Prefect's worker."""


class CommandError(UserError):
    """A command failed or timed out; its output says why.

    Attributes:
        lines: output lines.
    """

    def __init__(self, message: str, lines: Sequence[str] = (), *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.lines = list(lines)


def run_in_group(
    command: Sequence[str],
    write_line: Callable[[str], None],
    timeout_s: float,
    *,
    environment: Mapping[str, str] | None = None,
) -> list[str]:
    """Runs a command and forwards its output by line; ends the whole group afterwards, also on any exception.

    Args:
        command: the program and its arguments.
        write_line: receives each non-empty line of standard output and standard error, trailing whitespace stripped.
        timeout_s: timeout in seconds; the group is then ended.
        environment: environment of the command; None takes `child_environment()`.

    Returns:
        The same lines.

    Raises:
        CommandError: if the exit code is not 0, or the command runs longer than `timeout_s`.
    """
    # `start_group` would have the kernel end DVC with this process, which orphans DVC's stage. Instead, if this process
    # is killed, the stage notices through `STARTED_BY` and shuts down, and DVC after it.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        bufsize=1,
        start_new_session=True,
        env=child_environment() if environment is None else dict(environment),
    )

    def end() -> None:
        end_group(process, SAVE_GRACE_S, ask=signal.SIGINT)

    lines: list[str] = []
    is_late = threading.Event()
    timer = threading.Timer(timeout_s, lambda: (is_late.set(), end()))
    timer.daemon = True
    timer.start()
    try:
        for line in filter(None, map(str.rstrip, process.stdout or ())):
            lines.append(line)
            write_line(line)
        process.wait()
    finally:
        timer.cancel()
        end()
    if is_late.is_set():
        raise CommandError(f"`{' '.join(command)}` took longer than {timeout_s:.0f} s and was ended", lines)
    if process.returncode != 0:
        message = f"`{' '.join(command)}` failed with exit code {process.returncode}"
        raise CommandError(message, lines, hint="Its output above says why.")
    return lines


def error_lines(lines: Sequence[str]) -> list[str]:
    """Returns the user-facing error lines, each with its indented hint."""
    found: list[str] = []
    is_of_error = False
    for line in lines:
        is_of_error = line.startswith("error: ") or (is_of_error and line.startswith("  "))
        found += [line] if is_of_error else []
    return found


def child_environment() -> dict[str, str]:
    """Returns the environment of a child: this Python first on PATH, unbuffered output, and the ancestors' PIDs."""
    folder = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": folder + os.pathsep + os.environ.get("PATH", ""),
        "PYTHONUNBUFFERED": "1",
        STARTED_BY: " ".join([*os.environ.get(STARTED_BY, "").split(), str(os.getpid())]),
    }
