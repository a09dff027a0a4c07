"""What every process that the learner starts has in common: how it begins and how it ends."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import NoReturn, Protocol

import torch

from rulka.processes import end_with_parent
from rulka.runtime.messages import Failed

HEARTBEAT_S = 1.0
"""Time between heartbeats."""


class Work(Protocol):
    """What such a process is there for."""

    def run(self) -> None:
        """Works until told to stop; raises EOFError or ConnectionError when the learner is gone."""
        ...


def work_for_learner(connection: Connection, build: Callable[[], Work]) -> NoReturn:
    """Builds the work of this process, runs it, tells the learner what goes wrong, and ends the process.

    Args:
        connection: to the learner, whose process is the parent; when either ends, this process does too.
        build: makes the work, in this process.
    """
    end_with_parent()
    torch.set_num_threads(1)
    code = 0
    try:
        work = build()
        work.run()
    except (EOFError, ConnectionError):
        code = 1
    except Exception:
        with suppress(ConnectionError):
            connection.send(Failed(traceback.format_exc()))
        code = 1
    # There is nothing to tidy up, and views into shared memory would complain if one tried: `work` lives until here.
    os._exit(code)
