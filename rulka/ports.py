"""Ports of this machine or another: which numbers there are."""

from __future__ import annotations

from rulka.errors import UserError

LOWEST_PORT, HIGHEST_PORT = 1, 65535


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
