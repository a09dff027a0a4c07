"""What every stage does around its work: checks its inputs, replaces its output whole, ends in one clear way.

Exit codes: 0 done, 1 an error the user can act on (one message), 130 interrupted; any other error shows its traceback.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import NoReturn

import psutil

from rulka.errors import UserError

EXIT_USER_ERROR = 1
EXIT_INTERRUPTED = 130
WATCH_PERIOD_S = 1.0
REPEATED_SIGNAL_S = 5.0
STARTED_BY_DVC = "DVC_STAGE"
"""Environment variable that DVC sets for the commands it runs."""

STARTED_BY = "RULKA_STARTED_BY"
"""Environment variable with the ids of the processes, further up, without which a stage shall not go on."""

DURATIONS_FILE = Path("runs/stage_durations.jsonl")
"""One line for each stage that ended well: stage, seconds, peak_rss_mb, ended_at."""


class StageInputError(UserError):
    """A stage was started before its input exists; the message names the stage to run first."""


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
    raise StageInputError(message)


@contextmanager
def output_folder(path: Path) -> Iterator[Path]:
    """Yields an empty folder beside `path` that takes its place when the block ends well.

    After an exception, an interrupt included, the folder is removed and whatever lay at `path` is untouched.
    What a killed run left beside `path` is removed first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for stale in path.parent.glob(f".{path.name}-*"):
        shutil.rmtree(stale)
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        folder.chmod(0o755)
        yield folder
        _replace(path, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _replace(path: Path, folder: Path) -> None:
    """Puts `folder` at `path`; the old content is moved aside first, so that `path` is never a mixture."""
    old = folder.with_name(f"{folder.name}-old")
    if path.exists():
        path.rename(old)
    try:
        folder.rename(path)
    except BaseException:
        if old.exists():
            old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def run_stage(main: Callable[[], None]) -> NoReturn:
    """Runs a stage as the whole work of this process and ends the process with its exit code."""
    interrupt_on_signals()
    watch = _Watch()
    watch.start()
    try:
        main()
        watch.write_duration()
    except UserError as error:
        sys.stderr.write(f"error: {error.for_people()}\n")
        sys.exit(EXIT_USER_ERROR)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: outputs are as they were before; training will go on from its checkpoint\n")
        sys.exit(EXIT_INTERRUPTED)
    finally:
        _end_children()
    sys.exit(0)


def interrupt_on_signals() -> None:
    """Makes Ctrl-C, SIGTERM and a closed terminal raise `KeyboardInterrupt`.

    Ctrl-C does so even where a shell had it ignored, as it does for background commands.
    One wish to stop often comes as several signals; those that follow at once must not break off the cleaning up.
    """
    last_s = -REPEATED_SIGNAL_S

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal last_s
        is_repeated = time.monotonic() - last_s < REPEATED_SIGNAL_S
        if not is_repeated:
            last_s = time.monotonic()
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, interrupt)


class _Watch(threading.Thread):
    """Looks after this process every second: how much memory it takes, and whether somebody still waits for it."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="watch")
        self._started_s = time.monotonic()
        self._parent = os.getppid()
        self._starters = [int(pid) for pid in os.environ.get(STARTED_BY, "").split()]
        self._peak_rss_bytes = 0

    def run(self) -> None:
        """Interrupts the stage when whoever started it was ended alone; otherwise nobody would ever stop it."""
        while not self._is_orphaned():
            self._peak_rss_bytes = max(self._peak_rss_bytes, _rss_bytes())
            time.sleep(WATCH_PERIOD_S)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def write_duration(self) -> None:
        """Appends the line of `DURATIONS_FILE`; memory counts child processes, and shared pages once in each."""
        spec = sys.modules["__main__"].__spec__
        line = {
            "stage": spec.name.rpartition(".")[2] if spec else "unknown",
            "seconds": round(time.monotonic() - self._started_s, 2),
            "peak_rss_mb": round(max(self._peak_rss_bytes, _rss_bytes()) / 1e6, 1),
            "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        DURATIONS_FILE.parent.mkdir(exist_ok=True)
        with DURATIONS_FILE.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _is_orphaned(self) -> bool:
        if STARTED_BY_DVC in os.environ and os.getppid() != self._parent:
            return True
        return not all(psutil.pid_exists(pid) for pid in self._starters)


def _rss_bytes() -> int:
    """Returns the resident memory of this process and all it started."""
    this = psutil.Process()
    total = 0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.Error):
            total += process.memory_info().rss
    return total


def _end_children() -> None:
    """Asks whatever this process started and did not stop to end, however the stage ended."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.terminate()
