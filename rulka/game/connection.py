"""A socket on which every wait ends: with all the bytes that were asked for, or with a named error."""

from __future__ import annotations

import errno
import socket
import time
from contextlib import suppress

from rulka.game.errors import GameClosedError, GameTimeoutError
from rulka.ports import check_port

RETRY_S = 0.1
"""Pause between two tries to connect."""
_SENDING, _WAITING = "something was sent to it", "waiting"


def connect(host: str, port: int, timeout_s: float, patience_s: float) -> Connection:
    """Connects to a game, trying again until one listens.

    Args:
        host: where it runs.
        port: where it listens.
        timeout_s: longest wait for an answer, from now on and later.
        patience_s: how long to go on trying; 0 tries once.

    Raises:
        GameClosedError: if nobody listens there.
        GameTimeoutError: if the machine does not answer at all.
        PortNumberError: if there is no such port.
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
            message = f"{host}:{port} did not answer within {timeout_s:g} s"
            raise GameTimeoutError(message) from error
        except OSError as error:
            message = f"{host}:{port} cannot be reached: {error.strerror or error}"
            raise GameClosedError(message) from error
        time.sleep(RETRY_S)


class Connection:
    """A connected socket without delay.

    Attributes:
        name: host and port, for messages.
        timeout_s: longest wait for all bytes of one `fill`, and for the room to send.
        frame_size: width and height of the frame that was asked for; the game has one place for that, so a second
            request takes it.
    """

    def __init__(self, sock: socket.socket, name: str) -> None:
        self._socket, self.name = sock, name
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.timeout_s = sock.gettimeout() or 0.0
        self.frame_size: tuple[int, int] | None = None

    def set_timeout(self, timeout_s: float) -> None:
        """Changes the longest wait; it must be positive."""
        self.timeout_s = timeout_s
        self._socket.settimeout(timeout_s)

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Sends all bytes.

        Raises:
            GameTimeoutError: if the other side takes them in too slowly.
            GameClosedError: if it has closed the connection.
        """
        try:
            self._socket.sendall(data)
        except TimeoutError as error:
            message = f"{self.name} took in nothing for {self.timeout_s:g} s"
            raise GameTimeoutError(message) from error
        except OSError as error:
            raise _closed(self.name, _SENDING, error) from error

    def fill(self, out: memoryview, what: str) -> None:
        """Reads exactly as many bytes as fit into `out`, within one timeout altogether.

        Args:
            out: bytes, overwritten.
            what: what is awaited, for messages.

        Raises:
            GameTimeoutError: if they do not all come in time.
            GameClosedError: if the other side closes before.
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
        """Reads so many bytes, see `fill`."""
        out = bytearray(num_bytes)
        if num_bytes:
            self.fill(memoryview(out), what)
        return out

    def is_quiet(self, wait_s: float) -> bool:
        """Whether nothing comes for a while; what does come is left where it is.

        Raises:
            GameClosedError: if the other side closes the connection.
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
        """Closes the socket; a second time does nothing."""
        self._socket.close()

    def interrupt(self) -> None:
        """Lets whoever waits in another thread find the connection closed."""
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
