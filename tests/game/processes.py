"""What tests of processes need: ports that nobody has."""

from __future__ import annotations

import os
import socket

import pytest

FIRST, LAST = 20_000, 32_000
"""Below those that the system hands out to whoever asks for any."""
_taken: list[socket.socket] = []


def free_ports(number: int) -> int:
    """Returns the first of some neighbouring ports that nobody has, and that no other process of tests gets.

    What listens there comes some seconds later. Until this process ends it holds the same ports of UDP, which nobody
    needs and which are in nobody's way: all who ask here can see what is taken.
    """
    count = (LAST - FIRST) // number
    for turn in range(count):
        first = FIRST + number * ((os.getpid() + turn) % count)
        if _are_free(first, number):
            return first
    pytest.fail("no free ports")


def _are_free(first: int, number: int) -> bool:
    """Takes the ports of UDP, and looks whether those of TCP are free."""
    signs = [socket.socket(type=socket.SOCK_DGRAM) for _ in range(number)]
    probes = [socket.socket() for _ in range(number)]
    try:
        for index, one in enumerate((*signs, *probes)):
            one.bind(("127.0.0.1", first + index % number))
    except OSError:
        for sign in signs:
            sign.close()
        return False
    finally:
        for probe in probes:
            probe.close()
    _taken.extend(signs)
    return True
