"""What every stage does around its work: checks its inputs, replaces its output whole, ends in one clear way.

Exit codes: 0 done, 1 an error the user can act on (one message), 130 interrupted; any other error shows its traceback.

DVC records the parameters, code and data that it finds *after* a stage, whatever the stage has used. So a stage notes
them when it starts and compares before its output takes its place; an output that belongs to something else is set
aside. What is edited between that comparison and DVC's reading, a second or two later, nobody notices.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import psutil

from rulka.disk import check_can_hold, disk_error_of
from rulka.errors import UserError
from rulka.folders import RUNS
from rulka.graph import changes_since, is_cached, note_inputs, read_graph, stage_of_module
from rulka.terminal import escape_logs, tell

EXIT_USER_ERROR = 1
EXIT_INTERRUPTED = 130
WATCH_PERIOD_S = 1.0
REPEATED_SIGNAL_S = 5.0
STARTED_BY_DVC = "DVC_STAGE"
"""Environment variable that DVC sets for the commands it runs."""

STARTED_BY = "RULKA_STARTED_BY"
"""Environment variable with the ids of the processes, further up, without which a stage shall not go on."""

SET_ASIDE_FOLDER = RUNS / "set_aside"
"""Outputs of stages whose parameters, code or data changed while they ran: `<stage>/`, the newest only."""


class StageInputError(UserError):
    """A stage was started before its input exists; the message names the stage to run first."""


class StageRunningError(UserError):
    """Two processes write the same output."""


def require(path: Path, stage: str) -> Path:
    """Returns `path` when it exists and, if it is a folder, holds something.

    Args:
        path: input file or folder of the stage that asks.
        stage: the stage that writes it.

    Raises:
        StageInputError: if there is nothing at `path`.
    """
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        return path
    message = f"{path.as_posix()} is missing or incomplete: run `dvc repro {stage}` first"
    hint = f"`dvc checkout {stage}` brings back the one that DVC has recorded." if is_cached(path) else ""
    raise StageInputError(message, hint=hint)


def check_not_cached(out: Path, stage: str, files: Iterable[str]) -> None:
    """Makes sure that a long stage does not make anew what is gone, or some of it, and DVC's cache holds.

    Args:
        out: the stage's output.
        stage: its name.
        files: without which the output is not whole; an empty folder is one that somebody has emptied.

    Raises:
        StageInputError: if it would.
    """
    gone = [name for name in files if not (out / name).exists()]
    is_emptied = out.is_dir() and not any(out.iterdir())
    if gone and not is_emptied and is_cached(out):
        which = out / gone[0] if out.exists() else out
        message = f"{which.as_posix()} is not there, and DVC's cache holds the one of before, which took long to make"
        again = f"`rm -rf {out.as_posix()} && mkdir {out.as_posix()}`"
        hint = f"`dvc checkout --force {stage}` brings it back in seconds. {again} lets it make another."
        raise StageInputError(message, hint=hint)


# The output -----------------------------------------------------------------------------------------------------------


@contextmanager
def output_folder(path: Path) -> Iterator[Path]:
    """Yields an empty folder beside `path` that takes its place when the block ends well.

    After an exception, an interrupt included, the folder is removed and whatever lay at `path` is untouched.
    What a killed run left beside `path` is removed first; an old content that it had moved aside comes back.

    Raises:
        StageRunningError: if another process is writing a new content for `path`.
        UserError: if `path` is the output of the stage that this process runs, and what decides the result
            changed since the start; the finished output then lies in `SET_ASIDE_FOLDER`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    folder, old = (path.with_name(f".{path.name}.{what}") for what in ("new", "old"))
    _clean_up_after_killed(path, folder, old)
    folder.mkdir()
    try:
        with _locked(folder):
            yield folder
            run = _RUN.get()
            if run is not None and path in run.outs:
                run.check(folder, path)
            with _INTERRUPTS.held():
                _replace(path, folder, old)
                if run is not None:
                    run.finished.append(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _clean_up_after_killed(path: Path, folder: Path, old: Path) -> None:
    if folder.exists():
        with _locked(folder) as is_free:
            if not is_free:
                message = f"another process is writing {path.as_posix()} just now"
                raise StageRunningError(message, hint="Wait until it has ended, or end it.")
            shutil.rmtree(folder)
    if old.exists() and not path.exists():  # killed between the two renames
        old.rename(path)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Yields whether nobody else has locked a folder, and locks it then for the block, or until this process dies."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield _lock(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Some network file systems know no locks of folders: there, two processes are kept apart by DVC alone.
        return error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN)
    return True


def _replace(path: Path, folder: Path, old: Path) -> None:
    """Puts `folder` at `path`; the old content is moved aside first, so that `path` is never a mixture."""
    if path.exists():
        path.rename(old)
    try:
        folder.rename(path)
    except BaseException:
        if old.exists():
            old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


# The process ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _StageRun:
    """A stage of `dvc.yaml` that this process runs.

    Attributes:
        stage: its name.
        entry: what `dvc.yaml` says of it.
        inputs: what decides its result, as it was at the start.
        finished: outputs that took their place.
    """

    stage: str
    entry: Mapping[str, Any]
    inputs: Mapping[str, Any]
    finished: list[Path] = field(default_factory=list)

    @property
    def outs(self) -> list[Path]:
        """What the stage writes."""
        return [Path(out) for out in self.entry["outs"]]

    def check(self, folder: Path, out: Path) -> None:
        """Compares what decides the result with what did at the start; sets `folder` aside where it differs."""
        changes = "; ".join(changes_since(self.inputs, note_inputs(self.entry)))
        if not changes:
            return
        aside = SET_ASIDE_FOLDER / self.stage
        shutil.rmtree(aside, ignore_errors=True)
        aside.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder, aside)
        here, there = out.as_posix(), aside.as_posix()
        message = f"changed while `{self.stage}` ran: {changes}. The finished output is set aside in {there}"
        raise UserError(
            message,
            hint=f"`dvc repro {self.stage}` makes it anew with what is there now. If you undo the change, or it makes"
            f" no difference, keep the output:\n  rm -rf {here} && mv {there} {here} && dvc commit -f {self.stage}",
        )

    def describe(self, out: Path) -> str:
        """Returns what lies at an output after the stage did not end well."""
        name = out.as_posix()
        if out in self.finished:
            return f"{name} is the new one, finished; DVC has not recorded it yet: `dvc commit -f {self.stage}` does."
        if out.exists():
            return f"{name} is as it was before."
        if is_cached(out):
            return f"{name} is not there; `dvc checkout {self.stage}` brings back the one that DVC has recorded."
        return f"{name} is not there yet."


_RUN: ContextVar[_StageRun | None] = ContextVar("stage run", default=None)


def run_stage(main: Callable[[], None], after_interrupt: str = "") -> NoReturn:
    """Runs a stage as the whole work of this process and ends the process with its exit code.

    Args:
        main: the work.
        after_interrupt: what else is true when the stage was interrupted, as a sentence.
    """
    interrupt_on_signals()
    escape_logs()
    try:
        code = _run(main)
    except KeyboardInterrupt:  # wherever it struck, the handling of another error included
        _INTERRUPTS.ignore()
        _say(f"interrupted\n{_described_outs()}" + (f"  {after_interrupt}\n" if after_interrupt else ""))
        code = EXIT_INTERRUPTED
    _INTERRUPTS.ignore()
    _end_children()
    # While Python shuts down, it puts the default back for handlers of its own, and leaves what is ignored.
    for number in _INTERRUPTING:
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def _run(main: Callable[[], None]) -> int:
    """Does the work, says what went wrong, and returns the exit code."""
    try:
        _note_start()
        _Watch().start()
        main()
    except UserError as error:
        return _fail(error)
    except Exception as error:
        known = disk_error_of(error)
        if known is None:
            _say(f"{traceback.format_exc()}{_described_outs()}")
            return EXIT_USER_ERROR
        return _fail(known)
    _INTERRUPTS.ignore()  # the output is in its place: DVC may have it
    return 0


def _note_start() -> None:
    """Notes what decides the result, where this process runs a stage of `dvc.yaml`.

    Raises:
        DiskError: if its output cannot be written.
    """
    spec = sys.modules["__main__"].__spec__
    stage = stage_of_module(spec.name) if spec else None
    if stage is None:
        return
    entry = read_graph()[stage]
    run = _StageRun(stage, entry, note_inputs(entry))
    _RUN.set(run)
    for out in run.outs:  # before the work, not after it
        check_can_hold(out.parent)


def _fail(error: UserError) -> int:
    _say(f"error: {error.for_people()}\n{_described_outs()}")
    return EXIT_USER_ERROR


def _described_outs() -> str:
    run = _RUN.get()
    return "" if run is None else "".join(f"  {run.describe(out)}\n" for out in run.outs)


def _say(text: str) -> None:
    with suppress(OSError):  # the terminal is gone: there is nobody to tell, and the exit code still says it
        tell(text.rstrip("\n"))


# Signals --------------------------------------------------------------------------------------------------------------

_INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Interrupts:
    """What signals do that ask this process to end."""

    def __init__(self) -> None:
        self._last_s = -REPEATED_SIGNAL_S
        self._is_ignoring = False
        self._is_held = False
        self._is_due = False

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        """Raises `KeyboardInterrupt`, unless one was raised just before, or later, when it is not to be now."""
        is_repeated = time.monotonic() - self._last_s < REPEATED_SIGNAL_S
        if self._is_ignoring or is_repeated:
            return
        if self._is_held:
            self._is_due = True
            return
        self._last_s = time.monotonic()
        raise KeyboardInterrupt

    def ignore(self) -> None:
        """From now on nothing is raised: this process is about to end, and its exit code is decided."""
        self._is_ignoring = True

    @contextmanager
    def held(self) -> Iterator[None]:
        """Raises an interrupt that comes within the block after it."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        if self._is_due:
            self._is_due, self._last_s = False, time.monotonic()
            raise KeyboardInterrupt


_INTERRUPTS = _Interrupts()


def interrupt_on_signals() -> None:
    """Makes Ctrl-C, SIGTERM and a closed terminal raise `KeyboardInterrupt`.

    Ctrl-C does so even where a shell had it ignored, as it does for background commands.
    One wish to stop often comes as several signals; those that follow at once must not break off the cleaning up.
    """
    for number in _INTERRUPTING:
        # A hang-up that was ignored stays so: `nohup`.
        if number in (signal.SIGINT, signal.SIGTERM) or signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _INTERRUPTS.handle)


# Watching -------------------------------------------------------------------------------------------------------------


class _Watch(threading.Thread):
    """Looks whether somebody still waits for this process."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="watch")
        self._parent = os.getppid()
        self._starters = [int(pid) for pid in os.environ.get(STARTED_BY, "").split()]

    def run(self) -> None:
        """Interrupts the stage when whoever started it was ended alone; otherwise nobody would ever stop it."""
        while not self._is_orphaned():
            time.sleep(WATCH_PERIOD_S)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def _is_orphaned(self) -> bool:
        if STARTED_BY_DVC in os.environ and os.getppid() != self._parent:
            return True
        return not all(psutil.pid_exists(pid) for pid in self._starters)


def _end_children() -> None:
    """Asks whatever this process started and did not stop to end, however the stage ended."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.terminate()
