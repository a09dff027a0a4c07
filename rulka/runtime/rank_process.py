"""The process of a further learner: does what the first one tells it, and makes every update together with all others.

It builds its learner and starts its own collectors, which end with it as it does with its parent. It leaves Ctrl-C,
SIGTERM and a closed terminal to its parent, which has to save a checkpoint first.
"""

from __future__ import annotations

import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import assert_never

import torch

from rulka.agents.precision import raise_malloc_thresholds
from rulka.device import choose_device
from rulka.errors import UserError
from rulka.runtime.checkpoint import load_checkpoint, packed
from rulka.runtime.messages import (
    Compare,
    Compared,
    Heartbeat,
    Learn,
    Learned,
    Meet,
    Ready,
    Refused,
    Save,
    Saved,
    Stop,
    TakeTurn,
    ToRank,
    Written,
)
from rulka.runtime.metrics import Activity
from rulka.runtime.process import work_for_learner
from rulka.runtime.rank import Rank, build_rank, saved_of
from rulka.runtime.ranks import ConnectedRanks, RanksApartError, meet
from rulka.runtime.specs import RunSpec


@dataclass(frozen=True)
class RankSpec:
    """All that the process needs; picklable.

    Attributes:
        run: what this rank has of the run.
        meeting: the file where all ranks find each other.
        checkpoint: that the run goes on from; None begins anew.
        num_starts: how often the run was started before.
        num_threads: with which the learner computes, as the first one does.
    """

    run: RunSpec
    meeting: Path
    checkpoint: Path | None
    num_starts: int
    num_threads: int


def run_rank(spec: RankSpec, connection: Connection) -> None:
    """Does the work of the process, to its end.

    Args:
        spec: what to build.
        connection: to the first learner; when it breaks, that is gone and this process ends.
    """
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None:
            # A handler of Python's, not SIG_IGN, which collectors would inherit: their learner ends them by SIGTERM.
            signal.signal(number, lambda _number, _frame: None)
    raise_malloc_thresholds()
    work_for_learner(connection, lambda: _RankWork(spec, connection))


class _Spent:
    """Seconds by activity since they were last taken."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def spending(self, activity: Activity) -> Iterator[None]:
        started_s = time.monotonic()
        yield
        self._seconds[activity] += time.monotonic() - started_s

    def take(self) -> dict[str, float]:
        taken, self._seconds = dict(self._seconds), defaultdict(float)
        return taken


class _RankWork:
    """The loop of the process."""

    def __init__(self, spec: RankSpec, connection: Connection) -> None:
        self._spec, self._connection, self._spent = spec, connection, _Spent()

    def run(self) -> None:
        """Does what it is told until it is told to stop, and takes everything down again whatever happens."""
        spec = self._spec.run
        ranks = ConnectedRanks(spec.rank, spec.num_ranks, spec.device)
        try:
            with ExitStack() as stack:
                self._connection.send(Heartbeat("building its learner"))
                torch.set_num_threads(self._spec.num_threads)
                if spec.device.type == "cuda":
                    choose_device(str(spec.device))  # what it sets is of a process
                state = None if self._spec.checkpoint is None else load_checkpoint(self._spec.checkpoint)
                saved = None if state is None else saved_of(state, spec.rank)
                rank = build_rank(spec, saved, self._spec.num_starts, stack, ranks)
                rank.publish()
                self._connection.send(Ready(rank.standing()))
                if isinstance(self._receive("waiting for all to be ready"), Stop):
                    return
                stack.enter_context(meet(self._spec.meeting, spec.rank, spec.num_ranks, spec.device))
                while not isinstance(message := self._receive("waiting for what to do"), Stop):
                    self._obey(rank, message)
        except RanksApartError:
            return  # the first learner notices, or is it who has noticed
        except UserError as error:
            self._connection.send(Refused(str(error), error.hint))

    def _obey(self, rank: Rank, message: ToRank) -> None:
        send = self._connection.send
        match message:
            case TakeTurn():
                send(Heartbeat("taking experience in"))
                taken = rank.take(message, self._spent.spending)
                send(replace(taken, spent_s=self._spent.take()))
            case Learn():
                send(Heartbeat("learning"))
                values = rank.learn(message, self._spent.spending)
                assert values is not None, "all were ready"
                with self._spent.spending("publishing"):
                    rank.publish()
                send(Learned(values.get("num_samples", 0.0)))
            case Compare():
                send(Compared(rank.checksum()))
            case Save():
                send(Heartbeat("saving"))
                with self._spent.spending("saving"):
                    send(Saved(packed(rank.save_own()), rank.checksum()))
            case Written():
                rank.experience.forget_others()
            case Meet() | Stop():
                pass
            case _:
                assert_never(message)

    def _receive(self, activity: str) -> ToRank:
        """Waits for the next message, as long as the first learner lives."""
        self._connection.send(Heartbeat(activity))
        message: ToRank = self._connection.recv()
        return message
