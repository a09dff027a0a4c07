"""Who works in this folder: one run of the pipeline at a time, and one `rulka up`.

`rulka run` and the runs of deployments write the same outputs. Between them a lock decides, held for the whole run and
freed by the kernel when its process dies: who comes second waits, and says for whom. A `dvc repro` in a terminal knows
nothing of it; see `flows.dvc`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import Literal, NamedTuple

import filelock

from flows.project import HOME
from rulka.errors import UserError

Turn = Literal["pipeline", "up"]
"""What one process of a folder has at a time: the outputs of the stages, and the stack."""
ASK_AGAIN_S = 5.0


class Holder(NamedTuple):
    """A process that has a turn, what it does with it, and since when as an ISO time; 0 where it has not said yet."""

    pid: int
    what: str
    since: str

    def __str__(self) -> str:
        return f"{self.what} (process {self.pid}, since {self.since})" if self.pid else self.what


class TakenError(UserError):
    """Another process has the turn.

    Attributes:
        holder: that process.
    """

    def __init__(self, holder: Holder) -> None:
        super().__init__(f"{holder} is at work in this folder")
        self.holder = holder


@contextmanager
def our_turn(what: str, say: Callable[[str], None]) -> Iterator[None]:
    """Holds the pipeline of this folder while the block runs; waits for it without an end.

    Args:
        what: the run, for those who wait for it.
        say: gets a line as often as another holder is found.
    """
    told = ""
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(held("pipeline", what, ASK_AGAIN_S if told else 0.0))
                break
            except TakenError as taken:
                # Without a name it has just come, or is about to go: who has been told of somebody waits for the next.
                if str(taken.holder) != told and (taken.holder.pid or not told):
                    told = str(taken.holder)
                    say(f"waiting for {told}: one run of the pipeline at a time")
        yield


@contextmanager
def held(turn: Turn, what: str, timeout_s: float = 0.0) -> Iterator[None]:
    """Holds a turn of this folder while the block runs.

    Args:
        turn: which.
        what: is done with it, for others.
        timeout_s: how long to wait for it.

    Raises:
        TakenError: if another process has it all this time.
    """
    HOME.mkdir(exist_ok=True)
    # A singleton would let a second flow in this process pass as the first.
    lock, holder_file = filelock.FileLock(HOME / f"{turn}.lock", is_singleton=False), HOME / f"{turn}.json"
    try:
        lock.acquire(timeout=timeout_s)
    except filelock.Timeout as error:
        raise TakenError(_named(turn)) from error
    try:
        since = datetime.now().astimezone().isoformat(timespec="seconds")
        # Beside the lock, for opening that file empties it.
        holder_file.write_text(json.dumps({"pid": os.getpid(), "what": what, "since": since}), encoding="utf-8")
        yield
    finally:
        holder_file.unlink(missing_ok=True)
        lock.release()


def holder_of(turn: Turn) -> Holder | None:
    """Returns who has a turn of this folder; None where nobody has."""
    if not (HOME / f"{turn}.lock").exists():
        return None
    lock = filelock.FileLock(HOME / f"{turn}.lock", is_singleton=False)
    try:
        with lock.acquire(timeout=0.0):
            return None
    except filelock.Timeout:
        return _named(turn)


def _named(turn: Turn) -> Holder:
    try:
        return Holder(**json.loads((HOME / f"{turn}.json").read_text(encoding="utf-8")))
    except (FileNotFoundError, json.JSONDecodeError):
        # It has the lock and has not written its name yet.
        return Holder(0, "another process", "")
