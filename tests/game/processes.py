"""What tests of processes need: ports that nobody has, and waiting for something to happen."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

import pytest

PATIENCE_S = 60.0


def free_ports(number: int) -> int:
    """Returns the first of some neighbouring ports that nobody has."""
    for first in range(20_000 + os.getpid() % 5_000, 60_000, number):
        sockets = [socket.socket() for _ in range(number)]
        try:
            for index, one in enumerate(sockets):
                one.bind(("127.0.0.1", first + index))
        except OSError:
            continue
        else:
            return first
        finally:
            for one in sockets:
                one.close()
    pytest.fail("no free ports")


def wait_for(condition: Callable[[], object], what: str) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_s, f"waited in vain for {what}"
        time.sleep(0.05)
