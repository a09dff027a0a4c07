"""Several learners that learn as one, each a process of its own: how they exchange numbers, and who looks after them.

`rulka.agents.ranks` says what they add up. It goes through torch.distributed: gloo between CPUs, nccl between GPUs.
They meet through a file in the run's folder, and listen on this machine alone.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from torch import Tensor

from rulka.device import CPU

EXCHANGE_LIMIT_S = 60.0
"""Longest wait for other ranks within an update, and until all of them have met: who is later than that is gone."""
_INTERFACE_VARIABLES = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}


class RanksApartError(RuntimeError):
    """An exchange between learners failed: another one ended, or did not answer in time."""


class ConnectedRanks:
    """The learners of a run, as one of them sees all; see `rulka.agents.ranks.Ranks`.

    Attributes:
        rank: which this one is.
        size: how many there are.
    """

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        """Is made by `meet`."""
        self.rank, self.size, self._device = rank, size, device

    def total(self, numbers: Tensor) -> Tensor:
        """Returns the sum over all ranks."""
        return self._reduced(numbers, dist.ReduceOp.SUM)

    def largest(self, number: float) -> float:
        """Returns the largest of the numbers of all ranks."""
        return float(self._reduced(torch.tensor(number, dtype=torch.float64, device=self._device), dist.ReduceOp.MAX))

    def _reduced(self, numbers: Tensor, how: dist.ReduceOp.RedOpType) -> Tensor:
        result = numbers.detach().clone(memory_format=torch.contiguous_format)
        try:
            dist.all_reduce(result, how)
        except RuntimeError as error:  # torch has no narrower one for gloo
            message = f"learner {self.rank} of {self.size} lost the others: {error}"
            raise RanksApartError(message) from error
        return result


@contextmanager
def meet(
    file: Path, rank: int, size: int, device: torch.device = CPU, limit_s: float = EXCHANGE_LIMIT_S
) -> Iterator[ConnectedRanks]:
    """Waits for all learners of a run; they are connected until the block ends.

    Args:
        file: where they find each other; new for every group.
        rank: which one this is.
        size: how many there are.
        device: where it learns; GPUs are each a rank's own.
        limit_s: longest wait for the others, now and in every exchange.

    All of them compute with as many threads (`torch.get_num_threads`), or the last bits of their sums differ.

    Raises:
        RanksApartError: if they do not all come.
    """
    backend = "gloo" if device.type == "cpu" else "nccl"
    variable = _INTERFACE_VARIABLES[backend]
    before = os.environ.get(variable)
    os.environ[variable] = _loopback()  # its default is the interface of the host's name, open to others
    try:
        dist.init_process_group(
            backend,
            init_method=file.resolve().as_uri(),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=limit_s),
        )
    except RuntimeError as error:
        _forget_group()
        message = f"learner {rank} of {size} waited in vain for the others: {error}"
        raise RanksApartError(message) from error
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before
    try:
        yield ConnectedRanks(rank, size, device)
    finally:
        dist.destroy_process_group()


def _forget_group() -> None:
    """Lets this process meet others again after a meeting in vain.

    torch.distributed counts the groups of a process, names them by that count, and looks for the others under that
    name. A meeting in vain counts too, so new processes would look elsewhere; the end of a group begins the count anew.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "meeting"
        dist.init_process_group("gloo", init_method=file.as_uri(), rank=0, world_size=1)
        dist.destroy_process_group()


def _loopback() -> str:
    """Returns the name of the interface that only this machine reaches."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            return name
    message = "this machine has no interface with the address 127.0.0.1, through which learners would meet"
    raise RanksApartError(message)
