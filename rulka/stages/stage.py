"""Common frame of all stages: checks inputs, replaces the output atomically, and ends with a defined exit code.

Exit codes: 0 done, 1 an error (one message if the user can act on it, otherwise a traceback), 130 interrupted.

DVC records the parameters, code and data that it finds *after* a stage, not those that the stage used. A stage
therefore records them at its start and compares before it replaces its output. If they differ, the new output is set
aside. An edit in the second or two between that comparison and DVC's reading goes unnoticed.
"""

from __future__ import annotations

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

from rulka.machine.disk import check_can_hold, disk_error_of
from rulka.machine.errors import UserError
from rulka.machine.terminal import escape_logs, tell
from rulka.stages.folders import RUNS
from rulka.stages.graph import changes_since, is_cached, note_inputs, read_graph, stage_of_module
from rulka.stages.outputs import locked_folder

EXIT_USER_ERROR = 1
EXIT_INTERRUPTED = 130
WATCH_PERIOD_S = 1.0
REPEATED_SIGNAL_S = 5.0
STARTED_BY_DVC = "DVC_STAGE"
"""Environment variable that DVC sets for the commands it runs."""

STARTED_BY = "RULKA_STARTED_BY"
"""Environment variable with the ids of ancestor processes; a stage stops when one of them ends."""

SET_ASIDE_FOLDER = RUNS / "set_aside"
"""Outputs of stages whose parameters, code or data changed during the run: `<stage>/`, only the newest."""


def require(path: Path, stage: str) -> Path:
    """Returns `path` if it is a file or a folder that is not empty.

    Args:
        path: input of the calling stage.
        stage: the stage that writes it.

    Raises:
        UserError: if `path` is missing or an empty folder.
    """
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        return path
    message = f"{path.as_posix()} is missing or incomplete: run `dvc repro {stage}` first"
    hint = f"`dvc checkout {stage}` brings back the one that DVC has recorded." if is_cached(path) else ""
    raise UserError(message, hint=hint)


def check_not_cached(out: Path, stage: str, files: Iterable[str]) -> None:
    """Keeps a long stage from recomputing an output that is missing or incomplete but still in DVC's cache.

    Args:
        out: the stage's output.
        stage: its name.
        files: required files of a complete output. An empty folder passes: the user emptied it on purpose.

    Raises:
        UserError: if a required file is missing and the output is cached.
    """
    gone = [name for name in files if not (out / name).exists()]
    is_emptied = out.is_dir() and not any(out.iterdir())
    if gone and not is_emptied and is_cached(out):
        which = out / gone[0] if out.exists() else out
        message = f"{which.as_posix()} is not there, and DVC's cache holds the one of before, which took long to make"
        again = f"`rm -rf {out.as_posix()} && mkdir {out.as_posix()}`"
        hint = f"`dvc checkout --force {stage}` brings it back in seconds. {again} lets it make another."
        raise UserError(message, hint=hint)


# The output -----------------------------------------------------------------------------------------------------------


@contextmanager
def output_folder(path: Path) -> Iterator[Path]:
    """Yields an empty folder beside `path`, which replaces `path` if the block succeeds.

    After an exception or an interrupt, the folder is removed and `path` is unchanged. Leftovers of a killed run beside
    `path` are removed first; old content that it had moved aside is restored.

    Raises:
        UserError: if another process is writing new content for `path`, or if `path` is the output of the stage that
            this process runs, and its parameters, code or data changed since the start; the finished output is then in
            `SET_ASIDE_FOLDER`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    folder, old = (path.with_name(f".{path.name}.{what}") for what in ("new", "old"))
    _clean_up_after_killed(path, folder, old)
    folder.mkdir()
    try:
        with locked_folder(folder):
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
        with locked_folder(folder) as is_free:
            if not is_free:
                message = f"another process is writing {path.as_posix()} just now"
                raise UserError(message, hint="Wait until it has ended, or end it.")
            shutil.rmtree(folder)
    if old.exists() and not path.exists():  # killed between the two renames
        old.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def _replace(path: Path, folder: Path, old: Path) -> None:
    """Moves `folder` to `path`. The old content is moved aside first, so that `path` never mixes both."""
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
        entry: its entry in `dvc.yaml`.
        inputs: parameters, code and data at the start.
        finished: outputs already replaced.
    """

    stage: str
    entry: Mapping[str, Any]
    inputs: Mapping[str, Any]
    finished: list[Path] = field(default_factory=list)

    @property
    def outs(self) -> list[Path]:
        """Outputs of the stage."""
        return [Path(out) for out in self.entry["outs"]]

    def check(self, folder: Path, out: Path) -> None:
        """Compares parameters, code and data with those at the start; sets `folder` aside and raises if they differ."""
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
        """Describes the state of an output after the stage failed or was interrupted."""
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
    """Runs a stage as the only task of this process, then exits with its exit code.

    Args:
        main: the stage.
        after_interrupt: a sentence added to the message after an interrupt.
    """
    interrupt_on_signals()
    escape_logs()
    try:
        code = _run(main)
    except KeyboardInterrupt:  # raised anywhere, also while another error was handled
        _INTERRUPTS.ignore()
        _say(f"interrupted\n{_described_outs()}" + (f"  {after_interrupt}\n" if after_interrupt else ""))
        code = EXIT_INTERRUPTED
    _INTERRUPTS.ignore()
    _end_children()
    # At shutdown Python restores default handlers in place of its own, but keeps ignored signals ignored.
    for number in _INTERRUPTING:
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def _run(main: Callable[[], None]) -> int:
    """Runs the stage, reports errors, and returns the exit code."""
    try:
        _note_start()
        _Watch().start()
        main()
    except Exception as error:
        known = error if isinstance(error, UserError) else disk_error_of(error)
        what = f"error: {known.for_people()}\n" if known else traceback.format_exc()
        _say(f"{what}{_described_outs()}")
        return EXIT_USER_ERROR
    _INTERRUPTS.ignore()  # the output is complete: let DVC record it
    return 0


def _note_start() -> None:
    """Records parameters, code and data if this process runs a stage of `dvc.yaml`.

    Raises:
        UserError: if its output cannot be written.
    """
    spec = sys.modules["__main__"].__spec__
    stage = stage_of_module(spec.name) if spec else None
    if stage is None:
        return
    entry = read_graph()[stage]
    run = _StageRun(stage, entry, note_inputs(entry))
    _RUN.set(run)
    for out in run.outs:  # fail before the work, not after it
        check_can_hold(out.parent)


def _described_outs() -> str:
    run = _RUN.get()
    return "" if run is None else "".join(f"  {run.describe(out)}\n" for out in run.outs)


def _say(text: str) -> None:
    with suppress(OSError):  # the terminal is gone; the exit code still reports the outcome
        tell(text.rstrip("\n"))


# Signals --------------------------------------------------------------------------------------------------------------

_INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Interrupts:
    """Handler of the signals that ask this process to end."""

    def __init__(self) -> None:
        self._last_s = -REPEATED_SIGNAL_S
        self._is_ignoring = False
        self._is_held = False
        self._is_due = False

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        """Raises `KeyboardInterrupt`: now, or after a `held` block. Ignores repeats of the signal."""
        is_repeated = time.monotonic() - self._last_s < REPEATED_SIGNAL_S
        if self._is_ignoring or is_repeated:
            return
        if self._is_held:
            self._is_due = True
            return
        self._last_s = time.monotonic()
        raise KeyboardInterrupt

    def ignore(self) -> None:
        """Ignores all further signals: this process is about to end, and its exit code is decided."""
        self._is_ignoring = True

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delays an interrupt until the end of the block."""
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

    This includes Ctrl-C in background commands, for which shells set it to be ignored. One request to stop often
    arrives as several signals; repeats must not interrupt the clean-up.
    """
    for number in _INTERRUPTING:
        # An ignored SIGHUP stays ignored, for `nohup`.
        if number in (signal.SIGINT, signal.SIGTERM) or signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _INTERRUPTS.handle)


# Watching -------------------------------------------------------------------------------------------------------------


class _Watch(threading.Thread):
    """Thread that interrupts the stage when the process that started it is gone."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="watch")
        self._parent = os.getppid()
        self._starters = [int(pid) for pid in os.environ.get(STARTED_BY, "").split()]

    def run(self) -> None:
        """Interrupts the stage when its starter ends without it; nothing else would ever stop it."""
        while not self._is_orphaned():
            time.sleep(WATCH_PERIOD_S)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def _is_orphaned(self) -> bool:
        if STARTED_BY_DVC in os.environ and os.getppid() != self._parent:
            return True
        return not all(psutil.pid_exists(pid) for pid in self._starters)


def _end_children() -> None:
    """Terminates all remaining child processes, however the stage ended."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.terminate()
