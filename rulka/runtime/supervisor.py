"""Starts, watches, restarts and stops the worker processes of a run, all of which run `work_for_learner`.

A process that dies, or is silent for too long, is restarted in its place. One that crashes too often in a
minute ends the run with its traceback.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import NoReturn, cast

import torch

from rulka.machine.errors import UserError
from rulka.machine.processes import (
    STOP_GRACE_S,
    RestartBudget,
    end_with_parent,
    ending_of,
    environment,
    interrupts_blocked,
)
from rulka.runtime.messages import BlockFilled, Failed, FromWorker, HalfUpdated, Heartbeat, SlotRead, Stop, ToWorker

HEARTBEAT_S = 1.0
"""Time between heartbeats."""
SILENCE_LIMIT_S = 120.0
"""Timeout of a silent process, longer than compiling and importing take on a busy machine."""
ONE_THREAD: dict[str, str] = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
"""Environment of single-threaded processes, whatever their libraries' defaults."""

_LOGGER = logging.getLogger(__name__)


Facts = BlockFilled | SlotRead | HalfUpdated
"""Messages with results; the others are about the process itself."""


class WorkerCrashError(UserError):
    """A process crashed too often, or no machine is left to run it; the message holds the last error."""


@dataclass
class Worker:
    """One process and the learner's end of its pipe.

    Attributes:
        index: of the process; a restart keeps it.
        process: the current one.
        connection: to it.
        heard_s: time of its last message, on the monotonic clock.
        activity: the one that it last reported.
        problem: the error that it reported before it ended, or an empty string.
        budget: limit on its restarts.
        num_starts: number of starts.
        is_connected: its end of the pipe is open.
    """

    index: int
    process: BaseProcess
    connection: Connection
    heard_s: float
    activity: str = "starting"
    problem: str = ""
    budget: RestartBudget = field(default_factory=RestartBudget)
    num_starts: int = 1
    is_connected: bool = True


class Supervisor:
    """The processes of a run that do the same work.

    Attributes:
        num_restarts: of all of them together.
    """

    def __init__(
        self,
        title: str,
        make_work: Callable[[int, int], MakeWork],
        on_restart: Callable[[int], None],
        silence_limit_s: float = SILENCE_LIMIT_S,
    ) -> None:
        """Prepares; `start` starts the processes.

        Args:
            title: name of the processes.
            make_work: returns the work factory of a process, given its index and the number of its earlier starts.
            on_restart: called with the index of a dead process, before its successor starts.
            silence_limit_s: a process that is silent for this long counts as crashed.
        """
        self._title, self._make_work = title, make_work
        self._on_restart, self._silence_limit_s = on_restart, silence_limit_s
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[Worker] = []
        self.num_restarts = 0

    def start(self, num_workers: int) -> None:
        """Starts all processes."""
        for index in range(num_workers):
            process, connection = self._launch(index, 0)
            self._workers.append(Worker(index, process, connection, time.monotonic()))

    def send(self, index: int, message: ToWorker) -> None:
        """Sends a message; if the process is just ending it is lost, which `receive` will detect."""
        try:
            self._workers[index].connection.send(message)
        except OSError:  # broken, or closed already
            _LOGGER.debug("%s %d is gone; its message is dropped", self._title, index)

    def receive(self, timeout_s: float) -> list[tuple[int, Facts]]:
        """Waits for messages until the timeout; returns them with their processes' indices."""
        ready = wait([worker.connection for worker in self._workers], timeout_s)
        heard = [worker for worker in self._workers if worker.connection in ready]
        return [(worker.index, message) for worker in heard for message in _said(worker)]

    def replace_dead(self) -> None:
        """Restarts every process that has died or been silent for too long.

        Raises:
            WorkerCrashError: if one has crashed too often.
        """
        for worker in self._workers:
            is_silent = time.monotonic() - worker.heard_s > self._silence_limit_s
            if is_silent or not worker.is_connected:
                self._replace(worker, is_silent=is_silent)

    def stop(self) -> None:
        """Ends all processes: asks, then terminates, then kills. Returns when none is left."""
        for worker in self._workers:
            self.send(worker.index, Stop())
        processes = [worker.process for worker in self._workers]
        for end in (None, BaseProcess.terminate, BaseProcess.kill):
            for process in processes:
                if end and process.is_alive():
                    end(process)
            give_up_s = time.monotonic() + STOP_GRACE_S
            for process in processes:
                process.join(max(0.0, give_up_s - time.monotonic()))
        for worker in self._workers:
            worker.connection.close()
        self._workers.clear()

    @property
    def pids(self) -> list[int]:
        """Process ids, by index."""
        return [worker.process.pid or 0 for worker in self._workers]

    def _launch(self, index: int, num_starts: int) -> tuple[BaseProcess, Connection]:
        ours, theirs = cast(tuple[Connection, Connection], self._context.Pipe())
        work, name = self._make_work(index, num_starts), f"rulka-{self._title}-{index}"
        process = self._context.Process(target=work_for_learner, args=(work, theirs), name=name, daemon=True)
        with environment(ONE_THREAD), interrupts_blocked():
            process.start()
        theirs.close()  # or the pipe would stay open when the process is gone
        return process, ours

    def _replace(self, worker: Worker, *, is_silent: bool) -> None:
        reason = self._reap(worker, is_silent=is_silent)
        if not worker.budget.take():
            name = f"{self._title} {worker.index}"
            raise WorkerCrashError(f"{name} crashed {worker.budget.span}; the last time it {reason}\n{worker.problem}")
        _LOGGER.warning("%s %d %s; starting it again\n%s", self._title, worker.index, reason, worker.problem)
        self._on_restart(worker.index)
        worker.process, worker.connection = self._launch(worker.index, worker.num_starts)
        worker.num_starts += 1
        worker.is_connected = True
        worker.heard_s, worker.activity, worker.problem = time.monotonic(), "starting", ""
        self.num_restarts += 1

    def _reap(self, worker: Worker, *, is_silent: bool) -> str:
        """Makes sure that a process is gone, killing a silent one; returns in words how it ended."""
        worker.process.join(0.0 if is_silent else STOP_GRACE_S)
        if worker.process.is_alive():  # silent, or its pipe is broken, so it is of no use any more
            worker.process.kill()
            worker.process.join()
        worker.connection.close()
        if is_silent:
            return f"said nothing for {self._silence_limit_s:.0f} s while {worker.activity}"
        return ending_of(worker.process.exitcode or 0)


def _said(worker: Worker) -> Iterator[Facts]:
    """Yields all pending results; notes a process's messages about itself."""
    try:
        while worker.connection.poll():
            message: FromWorker = worker.connection.recv()
            worker.heard_s = time.monotonic()
            if isinstance(message, Heartbeat):
                worker.activity = message.activity
            elif isinstance(message, Failed):
                worker.problem = message.problem
            else:
                yield message
    except (EOFError, OSError):  # closed, perhaps in the middle of a message
        worker.is_connected = False


class Work(ABC):
    """Work of such a process, with heartbeats to the learner."""

    def __init__(self, connection: Connection, activity: str) -> None:
        """Sends the first heartbeat.

        Args:
            connection: to the learner.
            activity: its activity until it is built.
        """
        self._connection = connection
        self._beat(activity)

    @abstractmethod
    def run(self) -> None:
        """Works until told to stop; raises EOFError or ConnectionError when the learner is gone."""

    def _beat(self, activity: str) -> None:
        self._beat_s = time.monotonic()
        self._connection.send(Heartbeat(activity))

    def _beat_when_due(self, activity: str) -> None:
        if time.monotonic() - self._beat_s > HEARTBEAT_S:
            self._beat(activity)


MakeWork = Callable[[Connection], Work]
"""Builds the work of a process in that process; picklable."""


def work_for_learner(make_work: MakeWork, connection: Connection) -> NoReturn:
    """Builds and runs the work of this process, reports errors to the learner, and ends the process.

    Args:
        make_work: builds the work.
        connection: to the learner, whose process is the parent; when either ends, this process does too.
    """
    end_with_parent()
    torch.set_num_threads(1)
    code = 0
    try:
        work = make_work(connection)
        work.run()
    except (EOFError, ConnectionError):
        code = 1
    except Exception as error:
        with suppress(ConnectionError):
            is_defect = not isinstance(error, UserError)
            connection.send(Failed(traceback.format_exc() if is_defect else error.for_people()))
        code = 1
    # There is nothing to clean up, and a normal exit would wait for threads: `work` lives until here.
    os._exit(code)
