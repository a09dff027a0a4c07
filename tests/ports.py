"""Ports for servers that tests start."""

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port(host: str = "127.0.0.1") -> Iterator[int]:
    """Yields a port for a server that takes seconds to start; on Linux nobody else is given it within the block.

    There, a server may listen where somebody else only has the port, if both ask for SO_REUSEADDR; elsewhere the port
    is free as the block begins, and no more.

    Args:
        host: an address of this machine.
    """
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind((host, 0))
        port = keeper.getsockname()[1]
        if sys.platform != "linux":
            keeper.close()
        yield port
