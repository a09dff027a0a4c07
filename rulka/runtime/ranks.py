"""Ranks: one learner or several synchronous ones (data parallel), each but the first in a process that torch starts.

A *rank* is a learner with its collectors, its experience and its published weights. A run has one or several.

`rulka.agents.shared.reductions` says what they sum in an update. All run in lockstep: the first one, in the process of
the stage, names a method of `Rank` and its arguments, every rank calls it, and the first gets all answers.
Ranks are not restarted one by one. If one dies or hangs, `RankLostError` says which, and `rulka.runtime.connect`
restarts all of them.

Gradients go through torch.distributed (gloo between CPUs, nccl between GPUs), everything else through pipes. The ranks
rendezvous through a file in the run's folder, and listen on the loopback interface only.
"""

from __future__ import annotations

import multiprocessing
import signal
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, cast

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import ProcessException, ProcessExitedException, start_processes

from rulka.agents.shared.learner import Learner
from rulka.agents.shared.quantisation import Quantiser
from rulka.agents.shared.reductions import Ranks
from rulka.machine.device import CPU, choose_device, weights_on_host
from rulka.machine.errors import UserError
from rulka.machine.precision import raise_malloc_thresholds
from rulka.machine.processes import STOP_GRACE_S, end_with_parent, ending_of, environment, interrupts_blocked
from rulka.runtime.checkpoint import load_checkpoint
from rulka.runtime.collectors import CollectLimits, Collectors
from rulka.runtime.experience_files import ExperienceFiles
from rulka.runtime.messages import BlockFilled
from rulka.runtime.metrics import Activity, Spent
from rulka.runtime.specs import RANKS_FOLDER, RunSpec
from rulka.runtime.supervisor import ONE_THREAD, SILENCE_LIMIT_S

EXCHANGE_LIMIT_S = 60.0
"""Timeout of the rendezvous, and of each exchange within an update: a later rank counts as lost."""
START_LIMIT_S = 600.0
"""Timeout of building a learner, which reads demonstrations and compiles."""
GRACE_S = 4.0 * STOP_GRACE_S
"""Grace period of a learner that is asked to end: it ends its collectors first."""
MEETING_FILE = "meeting"
_LOOK_S = 0.5


class DivergedError(UserError):
    """The weights hold NaN or infinity."""


class RankProgress(NamedTuple):
    """Progress of a learner.

    Attributes:
        num_env_steps: environment steps taken in.
        num_allowed_env_steps: environment steps that it allows.
        num_under_way: blocks permitted to its collectors and not yet delivered.
        is_ready: True if an update would learn now.
        num_restarts: restarts of its collectors' processes.
        is_whole: True while neither its resume nor a restarted collector has lost races or experience.
    """

    num_env_steps: int
    num_allowed_env_steps: int
    num_under_way: int
    is_ready: bool
    num_restarts: int
    is_whole: bool


class IngestResult(NamedTuple):
    """Blocks that a learner has taken in.

    Attributes:
        blocks: of each, the number of its collector in the whole run, its facts, and the version of the learner's
            weights on its arrival.
        progress: progress of the learner.
        spent_s: seconds that a further learner spent since its last turn, by activity.
    """

    blocks: list[tuple[int, BlockFilled, int]]
    progress: RankProgress
    spent_s: Mapping[str, float]


class Rank:
    """One learner with its own collectors and files.

    Attributes:
        learner: of the agent.
        quantiser: turns its weights into those that its collectors get.
        collectors: its own.
        experience: its files.
        is_whole: True if this start lost nothing that it resumed from.
        spending: counts the time of a `with` block by activity; the first rank uses the loop's.
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

    def ingest(self, limits: CollectLimits) -> IngestResult:
        """Inserts ready blocks, waiting briefly for one, and permits more within its own limit and the given ones."""
        allowed = min(self.learner.num_allowed_env_steps(), limits.allowed_env_steps)
        with self.spending("waiting"):
            deliveries = self.collectors.collect(limits._replace(allowed_env_steps=allowed))
        blocks = []
        for delivery in deliveries:
            with self.spending("inserting"):
                self.learner.insert(delivery.block, delivery.collector, delivery.facts.version)
                self.quantiser.observe(delivery.block)
                self.collectors.release(delivery)
            collector = self._spec.first_collector + delivery.collector
            blocks.append((collector, delivery.facts, self.learner.version))
        return IngestResult(blocks, self.progress(), self._spent.take())

    def learn(self, budget_share: float, env_steps_elsewhere: int) -> dict[str, float] | None:
        """Makes an update, together with any other ranks, and publishes it.

        Args:
            budget_share: used share of the run's budget.
            env_steps_elsewhere: environment steps that the other learners have taken in.

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
        """Publishes the current weights unless the collectors have them already; returns the published tensors.

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

    def progress(self) -> RankProgress:
        """Returns its progress."""
        learner = self.learner
        return RankProgress(
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
        """Writes new experience, and returns the rank's part of a checkpoint.

        For a further learner that is only what the first one's state lacks.
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
        """Removes experience that no checkpoint needs, once the run's checkpoint at `env_steps` is on disk."""
        self.experience.forget_others(env_steps)

    def _save_experience(self) -> dict[str, Any] | None:
        """Writes new experience; returns the checkpoint's entry for all of it, None if it is not saved."""
        if self._spec.train.experience == "rebuilt":
            return None
        experience = self.learner.experience()
        return {"state": experience.state, "names": self.experience.write(experience.pieces)}


def split_budget(most_env_steps: int, block_steps: int, progress_by_rank: Sequence[RankProgress]) -> list[int]:
    """Splits the budget of environment steps: returns how many each rank's collectors may have begun.

    The rest of the budget is given out in whole blocks, so that it ends as that of a single learner does. Blocks are
    split evenly; the remainder goes first to ranks that cannot learn without more, because the others wait for those.

    Args:
        most_env_steps: of all ranks together.
        block_steps: environment steps of a block.
        progress_by_rank: of the ranks.
    """
    begun = [one.num_env_steps + one.num_under_way * block_steps for one in progress_by_rank]
    num_blocks = max(0, -(-(most_env_steps - sum(begun)) // block_steps))
    each, further = divmod(num_blocks, len(progress_by_rank))
    by_need = sorted(range(len(progress_by_rank)), key=lambda rank: (progress_by_rank[rank].is_ready, begun[rank]))
    return [
        begun[rank] + (each + (by_need.index(rank) < further)) * block_steps for rank in range(len(progress_by_rank))
    ]


BuildRank = Callable[[RunSpec, Mapping[str, Any] | None, int, ExitStack, Ranks], Rank]
"""Builds a rank in its process, see `rulka.runtime.connect.build_rank`."""


class RankLostError(RuntimeError):
    """An exchange between learners failed: one of them ended, or did not answer in time."""


class ConnectedRanks(Ranks):
    """The connected learners of a run, as seen by one of them; see `rulka.agents.shared.reductions.Ranks`.

    Attributes:
        rank: index of this one.
        size: number of learners.
    """

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        self.rank, self.size, self._device = rank, size, device

    def total(self, numbers: Tensor) -> Tensor:
        """Returns the sum over all ranks."""
        return self._reduced(numbers, dist.ReduceOp.SUM)

    def largest(self, number: float) -> float:
        """Returns the maximum over all ranks."""
        return float(self._reduced(torch.tensor(number, dtype=torch.float64, device=self._device), dist.ReduceOp.MAX))

    def _reduced(self, numbers: Tensor, how: dist.ReduceOp.RedOpType) -> Tensor:
        result = numbers.detach().clone(memory_format=torch.contiguous_format)
        with _raising_rank_lost(f"learner {self.rank} of {self.size} lost the others"):
            dist.all_reduce(result, how)
        return result


@contextmanager
def _raising_rank_lost(message: str) -> Iterator[None]:
    """Turns torch's error for a failed exchange into a `RankLostError`."""
    try:
        yield
    except RuntimeError as error:  # torch has no narrower one for gloo
        whole = f"{message}: {error}"
        raise RankLostError(whole) from error


@contextmanager
def meet(
    file: Path, rank: int, size: int, device: torch.device = CPU, limit_s: float = EXCHANGE_LIMIT_S
) -> Iterator[ConnectedRanks]:
    """Waits for all learners of a run; they are connected until the block ends.

    Args:
        file: for the rendezvous; new for every group.
        rank: index of this one.
        size: number of learners.
        device: of this learner; each rank has its own GPU.
        limit_s: timeout of the rendezvous and of every exchange.

    All of them must use the same number of threads (`torch.get_num_threads`), or the last bits of their sums differ.

    Raises:
        RankLostError: if they do not all arrive in time.
    """
    backend = "gloo" if device.type == "cpu" else "nccl"
    try:
        with _loopback_only(), _raising_rank_lost(f"learner {rank} of {size} waited in vain for the others"):
            limit, where = timedelta(seconds=limit_s), file.resolve().as_uri()
            dist.init_process_group(backend, init_method=where, rank=rank, world_size=size, timeout=limit)
    except RankLostError:
        _forget_group()
        raise
    try:
        yield ConnectedRanks(rank, size, device)
    finally:
        dist.destroy_process_group()


class RankProcesses:
    """All learners but the first, in processes that torch starts."""

    def __init__(
        self, runs: Sequence[RunSpec], build: BuildRank, folder: Path, checkpoint: Path | None, num_starts: int
    ) -> None:
        """Starts the processes; the caller must call `stop`, even after an error.

        Args:
            runs: spec of each of them, that of rank 1 first.
            build: builds a rank, in its process.
            folder: of the run.
            checkpoint: to resume from; None starts from scratch.
            num_starts: number of earlier starts of the run.
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
        for end in theirs:  # or a pipe would stay open after its process is gone
            end.close()

    def connect(self, device: torch.device, check: Callable[[], None]) -> None:
        """Waits until all of them are built, and connects to them.

        Args:
            device: of the first learner.
            check: called while waiting; raises to give up.

        Raises:
            RankLostError, UserError: see `everywhere`.
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
        """Calls a method of `Rank` on every rank at the same time.

        Args:
            rank: the first one, in this process.
            method: of `Rank`.
            arguments: of each rank, the first rank's first.

        Returns:
            The results, in the same order.

        Raises:
            RankLostError: if one is gone, or does not answer in time.
            UserError: if one failed with an error of its own.
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
            with suppress(OSError):  # it is gone, as `_answer` will find
                pipe.send(message)

    def _answer(self, rank: int, limit_s: float) -> Any:
        """Waits for a rank's next message."""
        pipe, name = self._pipes[rank - 1], f"learner {rank} of {self._size}"
        if not pipe.poll(limit_s):
            list[Any](self._processes.processes)[rank - 1].kill()
            raise _SilentRankError(f"{name} said nothing for {limit_s or START_LIMIT_S:.0f} s")
        try:
            answer = pipe.recv()
        except (EOFError, OSError) as error:
            raise RankLostError(f"{name} is gone") from error
        if isinstance(answer, UserError):  # its last message
            raise UserError(f"{name}: {answer}", hint=answer.hint)
        return answer

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raises the cause of an exchange that fails in the block."""
        try:
            yield
        except _SilentRankError:
            raise
        except RankLostError:
            self._part()  # the remaining ranks then end on their own
            self._look_for_ended()
            raise

    def _part(self) -> None:
        """Closes all connections, upon which every rank ends."""
        self._stack.close()
        for pipe in self._pipes:
            pipe.close()

    def _look_for_ended(self) -> None:
        """Waits a while for processes to end; if one failed, raises the cause."""
        give_up_s = time.monotonic() + STOP_GRACE_S
        try:
            while not self._processes.join(max(0.0, give_up_s - time.monotonic()), GRACE_S):
                if time.monotonic() >= give_up_s:
                    return
        except ProcessException as ended:
            name = f"learner {ended.error_index + 1} of {self._size}"
            if not isinstance(ended, ProcessExitedException):
                raise UserError(f"{name} ended by an error\n{ended.msg.strip()}") from ended
            raise RankLostError(f"{name} {ending_of(ended.exit_code)}") from ended


class _SilentRankError(RankLostError):
    """A rank did not answer in time, and was killed."""


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
    """Runs the process of a further learner, to its end.

    It builds its learner and starts its own collectors, which end with it as it ends with its parent. It ignores
    Ctrl-C, SIGTERM and a closed terminal: its parent handles them, and has to save a checkpoint first.

    Args:
        index: among the further ranks.
        runs: specs of the further ranks.
        pipes: from each of them to the first rank.
        build: builds a rank.
        meeting: the file for the rendezvous of all ranks.
        checkpoint: to resume from; None starts from scratch.
        num_starts: number of earlier starts of the run.
        num_threads: of the learner, the same as the first one's.
    """
    end_with_parent()
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None:
            # A Python handler, not SIG_IGN, which collectors would inherit: their learner ends them with SIGTERM.
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
                choose_device(str(spec.device))  # its settings are per process
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
    except (RankLostError, EOFError, ConnectionError):
        return  # the first learner has ended all ranks, or will notice
    except UserError as error:
        with suppress(ConnectionError):
            pipe.send(UserError(str(error), hint=error.hint))


def _forget_group() -> None:
    """Lets this process meet others again after a failed rendezvous.

    torch.distributed counts the groups of a process, names them by that count, and looks for the others under that
    name. A failed rendezvous counts too, so new processes would look elsewhere; destroying a group resets the count.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "meeting"
        dist.init_process_group("gloo", init_method=file.as_uri(), rank=0, world_size=1)
        dist.destroy_process_group()


def _loopback_only() -> AbstractContextManager[None]:
    """Makes groups that are formed in the block listen on the loopback interface only.

    torch's default is the interface of the host name, which other machines can reach.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            return environment(dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), name))
    raise RankLostError("this machine has no interface with the address 127.0.0.1, through which learners would meet")
