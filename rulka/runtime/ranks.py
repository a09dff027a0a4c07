"""Several learners that learn as one: a process for each but the first, connected by torch.distributed.

`rulka.agents.ranks` says what they add up in an update. All of them do the same at the same time: the first one, in the
process of the stage, names a method of `Rank` and its arguments, every rank calls it, and the first gets all answers.
They are not started again one by one: what learns as one ends as one. If one dies or falls silent, `RanksApartError`
says which, and `rulka.runtime.connect` starts all of them anew.

Gradients go by gloo between processors and by nccl between GPUs, everything else by gloo. The ranks meet through a file
in the run's folder, and listen on this machine alone.
"""

from __future__ import annotations

import multiprocessing
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import (
    ProcessException,
    ProcessExitedException,
    start_processes,
)

from rulka.agents.precision import raise_malloc_thresholds
from rulka.agents.ranks import Ranks
from rulka.device import CPU, choose_device
from rulka.errors import UserError
from rulka.processes import STOP_GRACE_S, end_with_parent, environment, interrupts_blocked
from rulka.runtime.checkpoint import load_checkpoint
from rulka.runtime.rank import Rank
from rulka.runtime.shared_memory import remove_left_memory
from rulka.runtime.specs import RANKS_FOLDER, RunSpec, rank_folder
from rulka.runtime.supervisor import ONE_THREAD, SILENCE_LIMIT_S

EXCHANGE_LIMIT_S = 60.0
"""Longest wait for other ranks within an update, and until all of them have met: who is later than that is gone."""
START_LIMIT_S = 600.0
"""Longest wait for a learner to be built: it reads demonstrations, and compiles."""
GRACE_S = 4.0 * STOP_GRACE_S
"""How long a learner may take to end when it is asked to: it ends its collectors before."""
MEETING_FILE = "meeting"
_LOOK_S = 0.5
_FOR_EVER = timedelta(days=365)
"""The other ranks wait so long for the first one: it may be at its greedy races, and they end with it."""

BuildRank = Callable[[RunSpec, Mapping[str, Any] | None, int, ExitStack, Ranks], Rank]
"""Builds a rank in its process, see `rulka.runtime.connect.build_rank`."""


class RanksApartError(RuntimeError):
    """An exchange between learners failed: another one ended, or did not answer in time."""


class RankError(UserError):
    """A learner's process ended by an error of its own, which would come again."""


class ConnectedRanks:
    """The learners of a run, as one of them sees all; see `rulka.agents.ranks.Ranks`.

    Attributes:
        rank: which this one is.
        size: how many there are.
    """

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        self.rank, self.size, self._device = rank, size, device

    def total(self, numbers: Tensor) -> Tensor:
        """Returns the sum over all ranks."""
        return self._reduced(numbers, dist.ReduceOp.SUM)

    def largest(self, number: float) -> float:
        """Returns the largest of the numbers of all ranks."""
        return float(self._reduced(torch.tensor(number, dtype=torch.float64, device=self._device), dist.ReduceOp.MAX))

    def _reduced(self, numbers: Tensor, how: dist.ReduceOp.RedOpType) -> Tensor:
        result = numbers.detach().clone(memory_format=torch.contiguous_format)
        with _apart(f"learner {self.rank} of {self.size} lost the others"):
            dist.all_reduce(result, how)
        return result


@contextmanager
def _apart(message: str) -> Iterator[None]:
    """Turns what torch raises if an exchange fails into an error of ours."""
    try:
        yield
    except RuntimeError as error:  # torch has no narrower one for gloo
        whole = f"{message}: {error}"
        raise RanksApartError(whole) from error


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
    try:
        with _loopback_only(), _apart(f"learner {rank} of {size} waited in vain for the others"):
            limit, where = timedelta(seconds=limit_s), file.resolve().as_uri()
            dist.init_process_group(backend, init_method=where, rank=rank, world_size=size, timeout=limit)
    except RanksApartError:
        _forget_group()
        raise
    try:
        yield ConnectedRanks(rank, size, device)
    finally:
        dist.destroy_process_group()


class _Control:
    """What ranks that have met say to each other beside the numbers of an update."""

    def __init__(self, rank: int, size: int) -> None:
        """Is made by all ranks at once, within `meet`."""
        self._rank, self._size = rank, size
        own_limit = timedelta(seconds=SILENCE_LIMIT_S) if rank == 0 else _FOR_EVER
        with _loopback_only(), _apart("the learners lost each other as they met"):
            group = dist.new_group(backend="gloo", timeout=own_limit)
        assert isinstance(group, dist.ProcessGroup), "every rank is in it"
        self._group = group

    def share(self, order: Any = None) -> Any:
        """Returns what the first rank has given to this."""
        box = [order]
        with self._in_step():
            dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def gather(self, answer: Any = None) -> list[Any]:
        """Returns to the first rank what all have given to this, nothing to the others."""
        answers = [None] * self._size if self._rank == 0 else None
        with self._in_step():
            dist.gather_object(answer, answers, dst=0, group=self._group)
        return answers or []

    @contextmanager
    def _in_step(self) -> Iterator[None]:
        """Waits for all ranks first: torch then says which one did not come, and an exchange does not."""
        limit = timedelta(seconds=SILENCE_LIMIT_S) if self._rank == 0 else _FOR_EVER
        with _apart(f"learner {self._rank} of {self._size} lost the others"):
            dist.monitored_barrier(self._group, limit)
            yield


@dataclass(frozen=True)
class _Start:
    """What the process of a further rank begins with; picklable.

    Attributes:
        runs: what each further rank has of the run, that of rank 1 first.
        build: builds it.
        meeting: the file where all ranks find each other.
        checkpoint: that the run goes on from; None begins anew.
        num_starts: how often the run was started before.
        num_threads: with which the learner computes, as the first one does.
        news: gets None from each rank that is built, and the message and hint of one that ends by a `UserError`.
        may_meet: set when all of them are built.
    """

    runs: Sequence[RunSpec]
    build: BuildRank
    meeting: Path
    checkpoint: Path | None
    num_starts: int
    num_threads: int
    news: SimpleQueue[tuple[int, str, str] | None]
    may_meet: Event


class RankProcesses:
    """All learners but the first, in processes of their own that torch starts."""

    def __init__(
        self, runs: Sequence[RunSpec], build: BuildRank, folder: Path, checkpoint: Path | None, num_starts: int
    ) -> None:
        """Starts the processes; whoever calls this has to call `stop`, whatever happens.

        Args:
            runs: what each of them has of the run, that of rank 1 first.
            build: builds a rank, in its process.
            folder: of the run.
            checkpoint: that it goes on from; None begins anew.
            num_starts: how often the run was started before.
        """
        self._folder, self._size = folder, len(runs) + 1
        self._stack = ExitStack()
        self._control: _Control | None = None
        meeting = folder / RANKS_FOLDER / MEETING_FILE
        meeting.parent.mkdir(parents=True, exist_ok=True)
        meeting.unlink(missing_ok=True)
        context = multiprocessing.get_context("spawn")
        threads = torch.get_num_threads()
        news, may_meet = context.SimpleQueue(), context.Event()
        self._start = _Start(runs, build, meeting, checkpoint, num_starts, threads, news, may_meet)
        with environment(ONE_THREAD), interrupts_blocked():
            processes = start_processes(run_rank, (self._start,), len(runs), join=False)
        assert processes is not None, "torch waits for their end only if it is asked to"
        self._processes = processes

    def connect(self, device: torch.device, check: Callable[[], None]) -> None:
        """Waits until all of them are built, and meets them.

        Args:
            device: where the first learner learns.
            check: called while waiting; raises to give up.

        Raises:
            RanksApartError, RankError: see `everywhere`.
        """
        give_up_s, num_built = time.monotonic() + START_LIMIT_S, 0
        while num_built < self._size - 1:
            check()
            self._look_for_ended(_LOOK_S)
            while not self._start.news.empty():
                self._start.news.get()
                num_built += 1
            if time.monotonic() > give_up_s:
                message = f"only {num_built} of {self._size - 1} other learners were built in {START_LIMIT_S:.0f} s"
                raise RanksApartError(message)
        self._start.may_meet.set()
        with self._explained():
            self._stack.enter_context(meet(self._start.meeting, 0, self._size, device))
            self._control = _Control(0, self._size)

    def everywhere(self, rank: Rank, method: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Has every rank call a method of its `Rank`, all at the same time.

        Args:
            rank: the first one, which is here.
            method: which one.
            arguments: of each rank, that of the first one first.

        Returns:
            What they return, in the same order.

        Raises:
            RanksApartError: if one is gone, or says nothing for too long.
            RankError: if one ended by an error of its own.
        """
        assert self._control is not None, "they have met"
        with self._explained():
            self._control.share((method, arguments))
            answer = method(rank, *arguments[0])
            with rank.spending("waiting"):
                return [answer, *self._control.gather()[1:]]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Says of an exchange that fails in the block why it did."""
        began_s = time.monotonic()
        try:
            yield
        except RanksApartError as error:
            is_silence = time.monotonic() - began_s >= SILENCE_LIMIT_S
            self._part()  # then those that are left end by themselves
            self._look_for_ended(0.0 if is_silence else STOP_GRACE_S)
            if late := re.search(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier", str(error)):
                message = f"learner {late[1]} of {self._size} said nothing for {SILENCE_LIMIT_S:.0f} s"
                raise RanksApartError(message) from error
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids, that of rank 1 first."""
        return self._processes.pids()

    def stop(self) -> None:
        """Ends the processes, and removes the shared memory of those that could not do that themselves."""
        self._part()
        give_up_s = time.monotonic() + self._grace_s
        processes = list[Any](self._processes.processes)  # torch names no type
        for process in processes:
            process.join(max(0.0, give_up_s - time.monotonic()))
            process.kill()
            process.join()
        for rank in range(1, self._size):
            remove_left_memory(rank_folder(self._folder, rank))
        self._start.meeting.unlink(missing_ok=True)

    @property
    def _grace_s(self) -> float:
        """How long they may take to end by themselves; before they have met they cannot know that they should."""
        return 0.0 if self._control is None else GRACE_S

    def _part(self) -> None:
        """Breaks all connections, at which every rank ends."""
        self._stack.close()

    def _look_for_ended(self, timeout_s: float) -> None:
        """Waits a while for processes to end, and raises why if one did that by an error."""
        give_up_s = time.monotonic() + timeout_s
        ended: ProcessException | None = None
        try:
            while not self._processes.join(max(0.0, give_up_s - time.monotonic()), self._grace_s):
                if time.monotonic() >= give_up_s:
                    return
        except ProcessException as error:
            ended = error
        while not self._start.news.empty():
            if refusal := self._start.news.get():
                rank, message, hint = refusal
                whole = f"learner {rank} of {self._size}: {message}"
                raise RankError(whole, hint=hint) from ended
        if ended is not None:
            name = f"learner {ended.error_index + 1} of {self._size}"
            if not isinstance(ended, ProcessExitedException):
                message = f"{name} ended by an error\n{ended.msg.strip()}"
                raise RankError(message) from ended
            code = ended.exit_code
            message = f"{name} was ended by signal {-code}" if code < 0 else f"{name} ended with exit code {code}"
            raise RanksApartError(message) from ended


def run_rank(index: int, start: _Start) -> None:
    """Does the work of the process of a further learner, to its end.

    It builds its learner and starts its own collectors, which end with it as it does with its parent. It leaves Ctrl-C,
    SIGTERM and a closed terminal to its parent, which has to save a checkpoint first.
    """
    end_with_parent()
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None:
            # A handler of Python's, not SIG_IGN, which collectors would inherit: their learner ends them by SIGTERM.
            signal.signal(number, lambda _number, _frame: None)
    raise_malloc_thresholds()
    torch.set_num_threads(start.num_threads)
    spec = start.runs[index]
    try:
        with ExitStack() as stack:
            if spec.device.type == "cuda":
                choose_device(str(spec.device))  # what it sets is of a process
            state = None if start.checkpoint is None else load_checkpoint(start.checkpoint)
            ranks = ConnectedRanks(spec.rank, spec.num_ranks, spec.device)
            rank = start.build(spec, state, start.num_starts, stack, ranks)
            rank.publish()
            start.news.put(None)
            start.may_meet.wait()
            stack.enter_context(meet(start.meeting, spec.rank, spec.num_ranks, spec.device))
            _follow(rank, spec.rank, _Control(spec.rank, spec.num_ranks))
    except RanksApartError:
        return  # the first learner has asked all to end, or notices
    except UserError as error:
        start.news.put((spec.rank, str(error), error.hint))
        raise SystemExit(1) from error


def _follow(rank: Rank, number: int, control: _Control) -> None:
    """Does what the first rank says, until the connection to it breaks."""
    while True:
        method, arguments = control.share()
        control.gather(method(rank, *arguments[number]))


def _forget_group() -> None:
    """Lets this process meet others again after a meeting in vain.

    torch.distributed counts the groups of a process, names them by that count, and looks for the others under that
    name. A meeting in vain counts too, so new processes would look elsewhere; the end of a group begins the count anew.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "meeting"
        dist.init_process_group("gloo", init_method=file.as_uri(), rank=0, world_size=1)
        dist.destroy_process_group()


def _loopback_only() -> AbstractContextManager[None]:
    """Lets groups that are formed in the block listen on this machine alone.

    torch's default is the interface of the host's name, which others reach.
    """
    return environment(dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), _loopback()))


def _loopback() -> str:
    """Returns the name of the interface that only this machine reaches."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            return name
    message = "this machine has no interface with the address 127.0.0.1, through which learners would meet"
    raise RanksApartError(message)
