"""Where the cluster is: a fact of the machine, from the environment or the file `.env`, never a parameter.

    RULKA_CLUSTER   host:port of its head, as 127.0.0.1:6379

A variable of the environment goes before the file. This machine has to be one of the cluster's nodes: blocks of
experience are read where Ray lays them, in the memory of a node.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from rulka.env_file import ENV_FILE, read_env_file
from rulka.errors import UserError
from rulka.ports import ANSWER_TIMEOUT_S, HIGHEST_PORT, LOWEST_PORT

CLUSTER_VARIABLE = "RULKA_CLUSTER"
DEFAULT_ADDRESS = "127.0.0.1:6379"
"""Where `rulka cluster up` makes one unless it is told otherwise."""
_HINT = f"{CLUSTER_VARIABLE}={DEFAULT_ADDRESS}, in the environment or in .env; `rulka cluster up` starts one there."


class ClusterError(UserError):
    """There is no cluster to work with, or it does not do what it has to."""


def check_package() -> None:
    """Makes sure that Ray is installed; does not import it.

    Raises:
        ClusterError: if it is not; the hint says how to install it.
    """
    if find_spec("ray") is None:
        message = "a cluster needs Ray, which is not installed"
        raise ClusterError(message, hint="pip install 'rulka[ray]'")


def cluster_address(environment: Mapping[str, str] | None = None, file: Path = ENV_FILE) -> str:
    """Returns where the cluster's head is, as `host:port`.

    Args:
        environment: in the place of the environment of this process.
        file: need not exist.

    Raises:
        ClusterError: if nothing says so, or what does is no such address.
    """
    address = chosen_address(environment, file)
    if address is None:
        message = f"nothing says where the cluster is: {CLUSTER_VARIABLE} is not set"
        raise ClusterError(message, hint=f"Set {_HINT}")
    return address


def chosen_address(environment: Mapping[str, str] | None = None, file: Path = ENV_FILE) -> str | None:
    """Returns the same; None where nothing says so.

    Raises:
        ClusterError: if what says so is no such address.
    """
    found = (os.environ if environment is None else environment).get(CLUSTER_VARIABLE)
    address = found or read_env_file(file, CLUSTER_VARIABLE).get(CLUSTER_VARIABLE)
    if address:
        split_address(address)
    return address or None


def split_address(address: str) -> tuple[str, int]:
    """Returns host and port of an address.

    Raises:
        ClusterError: if it is none.
    """
    host, _, port = address.rpartition(":")
    if "/" in address:
        message = f"{address!r} is no address of a cluster's head: blocks are read in the memory of a node"
        raise ClusterError(message, hint=f"Train on a node of the cluster, with {_HINT}")
    if not host or not port.isdecimal() or not LOWEST_PORT <= int(port) <= HIGHEST_PORT:
        message = f"{address!r} is no address of a cluster's head, which is host:port"
        raise ClusterError(message, hint=f"Set {_HINT}")
    return host, int(port)


def check_reachable(address: str) -> None:
    """Makes sure that somebody listens at an address.

    Raises:
        ClusterError: if nobody does; within `ANSWER_TIMEOUT_S`.
    """
    try:
        socket.create_connection(split_address(address), timeout=ANSWER_TIMEOUT_S).close()
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"there is no cluster at {address}, which {CLUSTER_VARIABLE} names: {reason}"
        raise ClusterError(message, hint="`rulka cluster up` starts one on this machine.") from error


def find_cluster() -> str:
    """Returns the address of a cluster that can be worked with, as far as one can tell without Ray.

    Raises:
        ClusterError: if Ray is not installed, no address is given, or nobody listens there.
    """
    check_package()
    address = cluster_address()
    check_reachable(address)
    return address
