"""What every process that the learner starts has in common: how it begins and ends, and when the learner is gone."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import NoReturn, Protocol

import torch

from rulka.runtime.messages import Failed

HEARTBEAT_S = 1.0
"""Time between signs of life."""
_PR_SET_PDEATHSIG = 1  # of Linux's prctl


class LearnerGoneError(RuntimeError):
    """The process that started this one has ended."""


class Work(Protocol):
    """What such a process is there for."""

    def run(self) -> None:
        """Works until told to stop; raises LearnerGoneError, EOFError or ConnectionError when the learner is gone."""
        ...


def work_for_learner(parent_pid: int, connection: Connection, build: Callable[[], Work]) -> NoReturn:
    """Is the whole of such a process: builds its work, runs it, and tells the learner what goes wrong.

    Args:
        parent_pid: of the learner's process; when that dies, this one does too.
        connection: to the learner; when it breaks, this process ends.
        build: makes the work, in this process.
    """
    _become_child(parent_pid)
    code = 0
    try:
        work = build()
        work.run()
    except (LearnerGoneError, EOFError, ConnectionError):
        code = 1
    except Exception:
        with suppress(ConnectionError):
            connection.send(Failed(traceback.format_exc()))
        code = 1
    # There is nothing to tidy up, and views into shared memory would complain if one tried: `work` lives until here.
    os._exit(code)


def _become_child(parent_pid: int) -> None:
    """Ties this process to its parent, leaves Ctrl-C to it, and computes with one thread."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before that
        sys.exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
