"""Both ends of the link byte by byte, independent of the code under test.

Numbers and layouts are written out again here, so that a mistake in `rulka.game.protocol` is not made twice.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from typing import Self

from tests.waiting import PATIENCE_S, wait_for


def i32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


def f32(number: float) -> bytes:
    return struct.pack("<f", number)


class Wire:
    """A socket with exact reads."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        sock.settimeout(PATIENCE_S)

    @classmethod
    def to(cls, port: int) -> Wire:
        return cls(socket.create_connection(("127.0.0.1", port), PATIENCE_S))

    def send(self, *parts: bytes) -> None:
        self.socket.sendall(b"".join(parts))

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                message = f"closed after {len(data)} of {size} bytes"
                raise ConnectionError(message)
            data += part
        return data

    def ints(self, count: int = 1) -> tuple[int, ...]:
        return struct.unpack(f"<{count}i", self.read(4 * count))

    def int(self) -> int:
        return self.ints()[0]

    def sized(self) -> bytes:
        return self.read(self.int())

    def is_quiet(self, wait_s: float) -> bool:
        """Whether nothing comes; what comes stays."""
        self.socket.settimeout(wait_s)
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(PATIENCE_S)
        return False

    def is_closed(self) -> bool:
        """Waits for the other side to close."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def await_bytes(self, count: int) -> None:
        """Waits until so many bytes have come, and leaves them where they are."""
        wait_for(lambda: len(self.socket.recv(count, socket.MSG_PEEK)) == count, f"{count} bytes")

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ScriptedGame:
    """Listens, and plays one script for each connection, in a thread; what goes wrong there is raised on `finish`."""

    def __init__(self, *scripts: Callable[[Wire], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE_S)
        self.port: int = self._listener.getsockname()[1]
        self._scripts = scripts
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        self._thread.join(PATIENCE_S)
        self._listener.close()
        if self._problem is not None:
            raise self._problem
        assert not self._thread.is_alive()

    def _play(self) -> None:
        try:
            for script in self._scripts:
                connection, _ = self._listener.accept()
                with Wire(connection) as wire:
                    script(wire)
        except BaseException as problem:
            self._problem = problem
