"""One run of the pipeline at a time in this folder: who comes second waits, and says for whom.

`rulka run` and the runs of deployments write the same outputs. Between them a lock decides, held for the whole run and
freed by the kernel when its process dies. A `dvc repro` in a terminal knows nothing of it; see `flows.dvc`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

import filelock

from flows.project import HOME

LOCK_FILE = HOME / "pipeline.lock"
HOLDER_FILE = HOME / "pipeline.json"
"""Who holds the lock: `pid`, `what`, `since`. Beside the lock, for opening that file empties it."""

ASK_AGAIN_S = 5.0


@contextmanager
def our_turn(what: str, say: Callable[[str], None]) -> Iterator[None]:
    """Holds the pipeline of this folder while the block runs; waits for it without an end.

    Args:
        what: the run, for those who wait for it.
        say: gets a line as often as another holder is found.
    """
    HOME.mkdir(exist_ok=True)
    # A singleton would let a second flow in this process pass as the first.
    lock = filelock.FileLock(LOCK_FILE, is_singleton=False)
    told = ""
    while True:
        try:
            lock.acquire(timeout=ASK_AGAIN_S if told else 0.0)
            break
        except filelock.Timeout:
            if (holder := _holder()) != told:
                told = holder
                say(f"waiting for {holder}: one run of the pipeline at a time")
    try:
        since = datetime.now().astimezone().isoformat(timespec="seconds")
        HOLDER_FILE.write_text(json.dumps({"pid": os.getpid(), "what": what, "since": since}), encoding="utf-8")
        yield
    finally:
        HOLDER_FILE.unlink(missing_ok=True)
        lock.release()


def _holder() -> str:
    try:
        found = json.loads(HOLDER_FILE.read_text(encoding="utf-8"))
        return f"{found['what']} (process {found['pid']}, since {found['since']})"
    except (FileNotFoundError, json.JSONDecodeError):
        # It has the lock and has not written its name yet.
        return "another run"
