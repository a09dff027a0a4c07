"""A socket with a timeout on every operation: a read returns all requested bytes or raises a named error."""

from __future__ import annotations

import errno
import socket
import time
from contextlib import suppress

from rulka.game.errors import GameClosedError, GameTimeoutError
from rulka.machine.ports import check_port

RETRY_S = 0.1
"""Pause between connection attempts."""
_SENDING, _WAITING = "something was sent to it", "waiting"


def connect(host: str, port: int, timeout_s: float, patience_s: float) -> Connection:
    """Connects to a game, with retries until it listens.

    Args:
        host: host of the game.
        port: port on which it listens.
        timeout_s: timeout for connecting and for later operations.
        patience_s: how long to retry; 0 tries once.

    Raises:
        GameClosedError: if no game listens there.
        GameTimeoutError: if the machine does not answer.
        UserError: if the port is out of range.
    """
    check_port(port)
    end_s = time.monotonic() + patience_s
    while True:
        try:
            return Connection(socket.create_connection((host, port), timeout_s), f"{host}:{port}")
        except ConnectionRefusedError as error:
            if time.monotonic() >= end_s:
                message = f"no game listens on {host}:{port}"
                hint = "start the game with its plugin, or `rulka game serve`, and compare the ports"
                raise GameClosedError(message, hint=hint) from error
        except TimeoutError as error:
            raise GameTimeoutError(f"{host}:{port} did not answer within {timeout_s:g} s") from error
        except OSError as error:
            raise GameClosedError(f"{host}:{port} cannot be reached: {error.strerror or error}") from error
        time.sleep(RETRY_S)


class Connection:
    """A connected socket with TCP_NODELAY.

    Attributes:
        name: host and port, for messages.
        timeout_s: timeout for all bytes of one `fill`, and for a send.
        frame_size: width and height of the requested frame; the game keeps only one request, so a second one replaces
            it.
    """

    def __init__(self, sock: socket.socket, name: str) -> None:
        self._socket, self.name = sock, name
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.timeout_s = sock.gettimeout() or 0.0
        self.frame_size: tuple[int, int] | None = None

    def set_timeout(self, timeout_s: float) -> None:
        """Changes the timeout; it must be positive."""
        self.timeout_s = timeout_s
        self._socket.settimeout(timeout_s)

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Sends all bytes.

        Raises:
            GameTimeoutError: if the peer reads them too slowly.
            GameClosedError: if the peer has closed the connection.
        """
        try:
            self._socket.sendall(data)
        except TimeoutError as error:
            raise GameTimeoutError(f"{self.name} took in nothing for {self.timeout_s:g} s") from error
        except OSError as error:
            raise _closed(self.name, _SENDING, error) from error

    def fill(self, out: memoryview, what: str) -> None:
        """Fills `out` completely, within one timeout for all bytes.

        Args:
            out: buffer, overwritten.
            what: name of the content, for messages.

        Raises:
            GameTimeoutError: if not all bytes come in time.
            GameClosedError: if the peer closes the connection first.
        """
        num_read = self._read(out, what, 0, len(out))
        if num_read == len(out):
            return
        end_s = time.monotonic() + self.timeout_s
        try:
            while num_read < len(out):
                self._socket.settimeout(max(end_s - time.monotonic(), 1e-3))
                num_read += self._read(out[num_read:], what, num_read, len(out))
        finally:
            self._socket.settimeout(self.timeout_s)

    def take(self, num_bytes: int, what: str) -> bytearray:
        """Reads `num_bytes` bytes, see `fill`."""
        out = bytearray(num_bytes)
        if num_bytes:
            self.fill(memoryview(out), what)
        return out

    def is_quiet(self, wait_s: float) -> bool:
        """Returns True if nothing comes for `wait_s`; consumes nothing.

        Raises:
            GameClosedError: if the peer closes the connection.
        """
        self._socket.settimeout(wait_s)
        try:
            if not self._socket.recv(1, socket.MSG_PEEK):
                raise _closed(self.name, _WAITING, None)
        except TimeoutError:
            return True
        except OSError as error:
            raise _closed(self.name, _WAITING, error) from error
        finally:
            self._socket.settimeout(self.timeout_s)
        return False

    def close(self) -> None:
        """Closes the socket; idempotent."""
        self._socket.close()

    def interrupt(self) -> None:
        """Shuts the connection down, which wakes a thread that waits on it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self, out: memoryview, what: str, num_before: int, num_all: int) -> int:
        try:
            num_read = self._socket.recv_into(out)
        except TimeoutError as error:
            message = f"{self.name} sent {num_before} of {num_all} bytes of {what} within {self.timeout_s:g} s"
            raise GameTimeoutError(message) from error
        except OSError as error:
            raise _closed(self.name, _progress(what, num_before, num_all), error) from error
        if num_read == 0:
            raise _closed(self.name, _progress(what, num_before, num_all), None)
        return num_read


def _progress(what: str, num_before: int, num_all: int) -> str:
    return f"{_WAITING} for {what}, {num_before} of {num_all} bytes were there"


def _closed(name: str, when: str, error: OSError | None) -> GameClosedError:
    if error is not None and error.errno == errno.EBADF:
        return GameClosedError(f"the connection to {name} is closed on our side")
    reason = f" ({error.strerror or error})" if error is not None else ""
    return GameClosedError(f"{name} closed the connection while {when}{reason}")
