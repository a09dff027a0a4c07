"""TCP ports: valid numbers, and the process that listens on one."""

from __future__ import annotations

import socket
from contextlib import suppress
from urllib.request import getproxies

import psutil

from rulka.machine.errors import UserError

LOWEST_PORT, HIGHEST_PORT = 1, 65535
LOOPBACK = ("127.0.0.1", "localhost", "::1")
DASHBOARD_PORT = 8480
"""Default port of `rulka dashboard`, and the port in links to its pages."""
DRIVE_PORT = 8490
"""Default port of `rulka drive`."""
ANSWER_TIMEOUT_S = 5.0
NOT_SEEN = "a process that only its own user and root can see"
COMMAND_LENGTH = 80
"""Characters of a command that are shown."""


def check_port(port: int, *, zero_takes_any: bool = False) -> None:
    """Raises UserError if a number is not a valid port.

    Args:
        port: the number.
        zero_takes_any: whether 0 is accepted and means any free port, as for servers.
    """
    if LOWEST_PORT <= port <= HIGHEST_PORT or (port == 0 and zero_takes_any):
        return
    free = ", or 0 for any free one" if zero_takes_any else ""
    raise UserError(f"there is no port {port}", hint=f"Name one from {LOWEST_PORT} to {HIGHEST_PORT}{free}.")


def is_proxy_in_the_way() -> bool:
    """True if the environment's proxy settings keep programs such as Prefect's from this machine's servers.

    httpx without its SOCKS extra refuses to start where any proxy is of SOCKS, also one that is not asked.
    """
    proxies = getproxies()
    spared = set(proxies.pop("no", "").replace(" ", "").split(","))
    needs_socks = any(proxies.get(name, "").startswith("socks") for name in ("http", "https", "all"))
    is_asked = bool(proxies.keys() & {"http", "all"}) and not set(LOOPBACK) <= spared
    return (needs_socks or is_asked) and "*" not in spared


def holder(host: str, port: int) -> str | None:
    """Returns the process that listens on a port of this machine, with its command; None if the port is free.

    Sends no data. Linux shows other users' processes only to root; macOS shows any process only to root.

    Args:
        host: a name or address of this machine.
        port: TCP port.
    """
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        with suppress(OSError):
            socket.create_connection((host, port), timeout=ANSWER_TIMEOUT_S).close()
            return NOT_SEEN
        return None
    waiting = [one for one in connections if one.status == psutil.CONN_LISTEN]
    listening = [one for one in waiting if one.laddr and one.laddr.port == port]
    for one in listening:
        if one.pid is not None:
            with suppress(psutil.Error):
                return f"process {one.pid} (`{' '.join(psutil.Process(one.pid).cmdline())[:COMMAND_LENGTH]}`)"
    return NOT_SEEN if listening else None
