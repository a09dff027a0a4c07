"""A learner with all that is its own, and several that learn as one: a process for each but the first, by torch.

A *rank* is a learner with its collectors, its experience and the versions that it publishes. A run has one or several.

`rulka.agents.ranks` says what they add up in an update. All of them do the same at the same time: the first one, in the
process of the stage, names a method of `Rank` and its arguments, every rank calls it, and the first gets all answers.
They are not started again one by one: what learns as one ends as one. If one dies or falls silent, `RanksApartError`
says which, and `rulka.runtime.connect` starts all of them anew.

Gradients go through torch.distributed, by gloo between processors and by nccl between GPUs, everything else through
pipes. The ranks meet through a file in the run's folder, and listen on this machine alone.
"""

from __future__ import annotations

import multiprocessing
import signal
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, cast

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import (
    ProcessException,
    ProcessExitedException,
    start_processes,
)

from rulka.agents.learner import Learner
from rulka.agents.precision import raise_malloc_thresholds
from rulka.agents.quantisation import Quantiser
from rulka.agents.ranks import Ranks
from rulka.device import CPU, choose_device, weights_on_host
from rulka.errors import UserError
from rulka.processes import STOP_GRACE_S, end_with_parent, ending_of, environment, interrupts_blocked
from rulka.runtime.checkpoint import load_checkpoint
from rulka.runtime.collectors import Collectors, Turn
from rulka.runtime.experience_files import ExperienceFiles
from rulka.runtime.messages import BlockFilled
from rulka.runtime.metrics import Activity, Spent
from rulka.runtime.specs import RANKS_FOLDER, RunSpec
from rulka.runtime.supervisor import ONE_THREAD, SILENCE_LIMIT_S

EXCHANGE_LIMIT_S = 60.0
"""Longest wait for other ranks within an update, and until all of them have met: who is later than that is gone."""
START_LIMIT_S = 600.0
"""Longest wait for a learner to be built: it reads demonstrations, and compiles."""
GRACE_S = 4.0 * STOP_GRACE_S
"""How long a learner may take to end when it is asked to: it ends its collectors before."""
MEETING_FILE = "meeting"
_LOOK_S = 0.5


class DivergedError(UserError):
    """Weights are not numbers any more."""


class Standing(NamedTuple):
    """How far a learner is.

    Attributes:
        num_env_steps: that it has taken in.
        num_allowed_env_steps: that it allows.
        num_under_way: blocks that its collectors may fill and have not filled yet.
        is_ready: whether an update would learn now.
        num_restarts: how often a process of its collectors was started again.
        is_whole: whether nothing that it goes on from was lost, races and experience.
    """

    num_env_steps: int
    num_allowed_env_steps: int
    num_under_way: int
    is_ready: bool
    num_restarts: int
    is_whole: bool


class Taken(NamedTuple):
    """What a learner has taken in.

    Attributes:
        blocks: of each, who filled it, by its number in all of the run; its facts; and the version of the learner's
            weights when it came.
        standing: how far it is now.
        spent_s: seconds that a further learner spent since its last turn, by activity.
    """

    blocks: list[tuple[int, BlockFilled, int]]
    standing: Standing
    spent_s: Mapping[str, float]


class Rank:
    """One learner and what is its own.

    Attributes:
        learner: of the agent.
        quantiser: makes of its versions what its collectors get.
        collectors: its own.
        experience: its files.
        is_whole: nothing was lost of what it began with in this start.
        spending: counts the time of a block of code by activity; the loop has its own for the first rank.
    """

    def __init__(
        self,
        spec: RunSpec,
        learner: Learner,
        quantiser: Quantiser,
        collectors: Collectors,
        experience: ExperienceFiles,
        *,
        is_whole: bool,
    ) -> None:
        self._spec = spec
        self.learner, self.quantiser, self.collectors, self.experience = learner, quantiser, collectors, experience
        self._spent, self.is_whole = Spent(), is_whole
        self.spending: Callable[[Activity], AbstractContextManager[None]] = self._spent.spending

    def take(self, turn: Turn) -> Taken:
        """Inserts blocks that are there, waiting a moment for one, and permits further ones if it allows them, too."""
        allowed = min(self.learner.num_allowed_env_steps(), turn.allowed_env_steps)
        with self.spending("waiting"):
            deliveries = self.collectors.collect(turn._replace(allowed_env_steps=allowed))
        blocks = []
        for delivery in deliveries:
            with self.spending("inserting"):
                self.learner.insert(delivery.block, delivery.collector, delivery.facts.version)
                self.quantiser.observe(delivery.block)
                self.collectors.release(delivery)
            collector = self._spec.first_collector + delivery.collector
            blocks.append((collector, delivery.facts, self.learner.version))
        return Taken(blocks, self.standing(), self._spent.take())

    def learn(self, budget_share: float, env_steps_elsewhere: int) -> dict[str, float] | None:
        """Makes an update, together with all other ranks if there are any, and publishes it.

        Args:
            budget_share: of the run that is used.
            env_steps_elsewhere: that the other learners have taken in.

        Returns:
            See `Learner.update`.

        Raises:
            DivergedError: if the weights are not finite.
        """
        self.learner.set_budget_share(budget_share, env_steps_elsewhere)
        with self.spending("updating"):
            values = self.learner.update()
        if values is not None:
            with self.spending("publishing"):
                self.publish()
        return values

    def publish(self) -> Mapping[str, Tensor]:
        """Gives the weights of now to the collectors if they have them not yet; returns what they got.

        Raises:
            DivergedError: if the weights are not finite.
        """
        version = self.learner.version
        if version == self.collectors.version:
            return {}
        tensors = weights_on_host(self.learner.network)
        wrong = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
        if wrong:
            message = f"training diverged: after update {version}, {wrong[0]!r} holds NaN or infinity"
            raise DivergedError(message, hint="Lower the learning rate; the last checkpoint is from before.")
        published = self.quantiser.quantise(version, tensors)
        self.collectors.publish(version, published)
        return published

    def standing(self) -> Standing:
        """Returns how far it is."""
        learner = self.learner
        return Standing(
            num_env_steps=learner.num_env_steps,
            num_allowed_env_steps=learner.num_allowed_env_steps(),
            num_under_way=self.collectors.num_under_way,
            is_ready=learner.is_ready(),
            num_restarts=self.collectors.num_restarts,
            is_whole=self.is_whole and not self.collectors.has_lost_states,
        )

    def checksum(self) -> int:
        """Returns the CRC-32 of the weights."""
        checksum = 0
        for tensor in weights_on_host(self.learner.network).values():
            content = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
            checksum = zlib.crc32(content.data, checksum)
        return checksum

    def save(self) -> dict[str, Any]:
        """Writes what is new of the experience, and returns what a checkpoint holds of the rank.

        Of a further learner that is only what the first one's state has not.
        """
        with self.spending("saving"):
            learner = self.learner.state_dict()
            if self._spec.rank > 0:
                learner = {name: value for name, value in learner.items() if name in self.learner.OWN_STATE}
            return {
                "learner": learner,
                "experience": self._save_experience(),
                "quantiser": self.quantiser.state_dict(),
                "collectors": self.collectors.state_dict(),
            }

    def forget_unsaved(self, env_steps: int) -> None:
        """Removes experience that no checkpoint needs, once the one of so many steps of all ranks is on the disk."""
        self.experience.forget_others(env_steps)

    def _save_experience(self) -> dict[str, Any] | None:
        """Writes what is new of the experience, and returns what a checkpoint says of all of it."""
        if self._spec.train.experience == "rebuilt":
            return None
        experience = self.learner.experience()
        return {"state": experience.state, "names": self.experience.write(experience.pieces)}


def permitted(most_env_steps: int, block_steps: int, standings: Sequence[Standing]) -> list[int]:
    """Returns how many environment steps each rank's collectors may have begun, so that all together are enough.

    What is left of the budget is given out in whole blocks, so that it ends as that of one learner does. While there
    are enough, each rank may begin as many further ones; the last ones go to ranks that cannot learn without them, for
    the others wait for those.

    Args:
        most_env_steps: of all ranks.
        block_steps: environment steps of a block.
        standings: of the ranks.
    """
    begun = [one.num_env_steps + one.num_under_way * block_steps for one in standings]
    num_blocks = max(0, -(-(most_env_steps - sum(begun)) // block_steps))
    each, further = divmod(num_blocks, len(standings))
    by_need = sorted(range(len(standings)), key=lambda rank: (standings[rank].is_ready, begun[rank]))
    return [begun[rank] + (each + (by_need.index(rank) < further)) * block_steps for rank in range(len(standings))]


BuildRank = Callable[[RunSpec, Mapping[str, Any] | None, int, ExitStack, Ranks], Rank]
"""Builds a rank in its process, see `rulka.runtime.connect.build_rank`."""


class RanksApartError(RuntimeError):
    """An exchange between learners failed: another one ended, or did not answer in time."""


class RankError(UserError):
    """A learner's process ended by an error of its own, which would come again."""


class ConnectedRanks(Ranks):
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


@dataclass(frozen=True)
class _Refused:
    """From a rank, as its last words: an error that a person can act on."""

    message: str
    hint: str


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
        self._size = len(runs) + 1
        self._stack = ExitStack()
        self._meeting = folder / RANKS_FOLDER / MEETING_FILE
        self._meeting.parent.mkdir(parents=True, exist_ok=True)
        self._meeting.unlink(missing_ok=True)
        pairs = [cast(tuple[Connection, Connection], multiprocessing.Pipe()) for _ in runs]
        self._pipes = [ours for ours, _ in pairs]
        theirs = [end for _, end in pairs]
        arguments = (runs, theirs, build, self._meeting, checkpoint, num_starts, torch.get_num_threads())
        with environment(ONE_THREAD), interrupts_blocked():
            processes = start_processes(run_rank, arguments, len(runs), join=False)
        assert processes is not None, "torch waits for their end only if it is asked to"
        self._processes = processes
        for end in theirs:  # or a pipe would stay open when its process is gone
            end.close()

    def connect(self, device: torch.device, check: Callable[[], None]) -> None:
        """Waits until all of them are built, and meets them.

        Args:
            device: where the first learner learns.
            check: called while waiting; raises to give up.

        Raises:
            RanksApartError, RankError: see `everywhere`.
        """
        with self._explained():
            give_up_s = time.monotonic() + START_LIMIT_S
            for rank, pipe in enumerate(self._pipes, 1):
                while not pipe.poll(_LOOK_S) and time.monotonic() < give_up_s:
                    check()
                self._answer(rank, 0.0)
            self._send([None] * len(self._pipes))
            self._stack.enter_context(meet(self._meeting, 0, self._size, device))

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
        with self._explained():
            self._send([(method, each) for each in arguments[1:]])
            answer = method(rank, *arguments[0])
            with rank.spending("waiting"):
                return [answer, *(self._answer(number, SILENCE_LIMIT_S) for number in range(1, self._size))]

    def stop(self) -> None:
        """Ends the processes."""
        self._part()
        give_up_s = time.monotonic() + GRACE_S
        for process in list[Any](self._processes.processes):  # torch names no type
            process.join(max(0.0, give_up_s - time.monotonic()))
            process.kill()
            process.join()
        self._meeting.unlink(missing_ok=True)

    def _send(self, messages: Sequence[Any]) -> None:
        for pipe, message in zip(self._pipes, messages, strict=True):
            with suppress(OSError):  # it is gone, as its answer will show
                pipe.send(message)

    def _answer(self, rank: int, limit_s: float) -> Any:
        """Waits for what a rank says next."""
        pipe, name = self._pipes[rank - 1], f"learner {rank} of {self._size}"
        if not pipe.poll(limit_s):
            list[Any](self._processes.processes)[rank - 1].kill()
            message = f"{name} said nothing for {limit_s or START_LIMIT_S:.0f} s"
            raise _SilentRankError(message)
        try:
            answer = pipe.recv()
        except (EOFError, OSError) as error:
            message = f"{name} is gone"
            raise RanksApartError(message) from error
        if isinstance(answer, _Refused):
            message = f"{name}: {answer.message}"
            raise RankError(message, hint=answer.hint)
        return answer

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Says of an exchange that fails in the block why it did."""
        try:
            yield
        except _SilentRankError:
            raise
        except RanksApartError:
            self._part()  # those that are left end by themselves
            self._look_for_ended()
            raise

    def _part(self) -> None:
        """Breaks all connections, at which every rank ends."""
        self._stack.close()
        for pipe in self._pipes:
            pipe.close()

    def _look_for_ended(self) -> None:
        """Waits a while for processes to end, and raises why if one did that by an error."""
        give_up_s = time.monotonic() + STOP_GRACE_S
        try:
            while not self._processes.join(max(0.0, give_up_s - time.monotonic()), GRACE_S):
                if time.monotonic() >= give_up_s:
                    return
        except ProcessException as ended:
            name = f"learner {ended.error_index + 1} of {self._size}"
            if not isinstance(ended, ProcessExitedException):
                message = f"{name} ended by an error\n{ended.msg.strip()}"
                raise RankError(message) from ended
            message = f"{name} {ending_of(ended.exit_code)}"
            raise RanksApartError(message) from ended


class _SilentRankError(RanksApartError):
    """A rank has said nothing for too long, and was ended."""


def run_rank(
    index: int,
    runs: Sequence[RunSpec],
    pipes: Sequence[Connection],
    build: BuildRank,
    meeting: Path,
    checkpoint: Path | None,
    num_starts: int,
    num_threads: int,
) -> None:
    """Does the work of the process of a further learner, to its end.

    It builds its learner and starts its own collectors, which end with it as it does with its parent. It leaves Ctrl-C,
    SIGTERM and a closed terminal to its parent, which has to save a checkpoint first.

    Args:
        index: which of the further ranks it is.
        runs: what each of them has of the run.
        pipes: to the first rank, of each.
        build: builds a rank.
        meeting: the file where all ranks find each other.
        checkpoint: that the run goes on from; None begins anew.
        num_starts: how often the run was started before.
        num_threads: with which the learner computes, as the first one does.
    """
    end_with_parent()
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None:
            # A handler of Python's, not SIG_IGN, which collectors would inherit: their learner ends them by SIGTERM.
            signal.signal(number, lambda _number, _frame: None)
    raise_malloc_thresholds()
    torch.set_num_threads(num_threads)
    spec, pipe = runs[index], pipes[index]
    for other in pipes:
        if other is not pipe:
            other.close()
    try:
        with ExitStack() as stack:
            if spec.device.type == "cuda":
                choose_device(str(spec.device))  # what it sets is of a process
            state = None if checkpoint is None else load_checkpoint(checkpoint)
            ranks = ConnectedRanks(spec.rank, spec.num_ranks, spec.device)
            rank = build(spec, state, num_starts, stack, ranks)
            rank.publish()
            pipe.send(None)
            pipe.recv()  # all are built
            stack.enter_context(meet(meeting, spec.rank, spec.num_ranks, spec.device))
            while True:
                method, arguments = pipe.recv()
                pipe.send(method(rank, *arguments))
    except (RanksApartError, EOFError, ConnectionError):
        return  # the first learner has ended all, or notices
    except UserError as error:
        with suppress(ConnectionError):
            pipe.send(_Refused(str(error), error.hint))


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
