"""Ports of this machine or another: which numbers there are, and who holds one."""

from __future__ import annotations

import socket
from contextlib import suppress
from urllib.request import getproxies

import psutil

from rulka.errors import UserError

LOWEST_PORT, HIGHEST_PORT = 1, 65535
LOOPBACK = ("127.0.0.1", "localhost", "::1")
DASHBOARD_PORT = 8480
"""Where `rulka dashboard` listens unless it is told otherwise, and where links to its pages lead."""
ANSWER_TIMEOUT_S = 5.0
NOT_SEEN = "a process that only its own user and root can see"
COMMAND_LENGTH = 80
"""How much of a command is shown."""


class PortNumberError(UserError):
    """A number that no port has."""


def check_port(port: int, *, zero_takes_any: bool = False) -> None:
    """Raises PortNumberError where a number cannot be that of a port.

    Args:
        port: the number.
        zero_takes_any: whether 0 stands for any free port, as it does for those who listen.
    """
    if LOWEST_PORT <= port <= HIGHEST_PORT or (port == 0 and zero_takes_any):
        return
    free = ", or 0 for any free one" if zero_takes_any else ""
    message = f"there is no port {port}"
    raise PortNumberError(message, hint=f"Name one from {LOWEST_PORT} to {HIGHEST_PORT}{free}.")


def no_proxy_for_loopback() -> str | None:
    """Returns what `no_proxy` must be for programs to reach this machine's servers; None if it may stay as it is."""
    proxies = getproxies()
    spared = proxies.get("no", "").replace(" ", "").split(",")
    if not proxies.keys() & {"http", "all"} or "*" in spared or set(LOOPBACK) <= set(spared):
        return None
    return ",".join(dict.fromkeys(filter(None, (*spared, *LOOPBACK))))


def holder(host: str, port: int) -> str | None:
    """Returns who listens at a port of this machine, with its command; None where nobody does. Sends nothing there.

    Linux shows processes of other users to root alone, and macOS shows root alone any.

    Args:
        host: a name or address of this machine.
        port: of TCP.
    """
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        return _somebody(host, port)
    waiting = [one for one in connections if one.status == psutil.CONN_LISTEN]
    listening = [one for one in waiting if one.laddr and one.laddr.port == port]
    for one in listening:
        if one.pid is not None:
            with suppress(psutil.Error):
                return f"process {one.pid} (`{' '.join(psutil.Process(one.pid).cmdline())[:COMMAND_LENGTH]}`)"
    return NOT_SEEN if listening else None


def _somebody(host: str, port: int) -> str | None:
    try:
        socket.create_connection((host, port), timeout=ANSWER_TIMEOUT_S).close()
    except OSError:
        return None
    return NOT_SEEN
