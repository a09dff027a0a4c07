"""The learner's side of a half that learns in a process of its own: what it is shown, permitted, and has learned.

The ratio of the two halves is held by permissions: the other half makes no update that it was not permitted to, and the
learner waits for it by `hear`, in the system, never by the clock. Its process may die at any time: what it had last
published is what the next one begins with, and the observations that are still there are shown again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection

from rulka.agents.spec import LearnsInHalves
from rulka.buffers.experience import BlockSpec, ExperienceBlock
from rulka.runtime.half_worker import HalfSpec, run_half
from rulka.runtime.messages import Permit, Seen, Show, Taught
from rulka.runtime.shared_blocks import SharedBlocks
from rulka.runtime.shared_memory import check_room
from rulka.runtime.supervisor import SILENCE_LIMIT_S, Supervisor
from rulka.runtime.weights import NO_VERSION, SharedWeights, layout_of, memory_bytes
from rulka.schedule import Moment

NUM_SLOTS = 3
"""Blocks on their way to the other half."""

Run = Callable[[HalfSpec, Connection], None]


class OtherHalfProcess:
    """The process of the other half, and what lies between it and the learner."""

    def __init__(
        self,
        learner: LearnsInHalves,
        block: BlockSpec,
        silence_limit_s: float = SILENCE_LIMIT_S,
        run: Run = run_half,
    ) -> None:
        """Reserves the memory; `start` starts the process, and `stop` frees everything again.

        Args:
            learner: whose half it is; `make_half` is asked whenever the process starts.
            block: shape of the blocks that are shown.
            silence_limit_s: see `Supervisor`.
            run: what the process does.

        Raises:
            SharedMemoryError: if there is too little shared memory.
        """
        self._learner, self._block = learner, block
        own, theirs = layout_of(learner.own_tensors()), layout_of(learner.half_tensors())
        check_room(memory_bytes(own) + memory_bytes(theirs) + NUM_SLOTS * block.num_bytes)
        self._own, self._theirs = SharedWeights.create(own), SharedWeights.create(theirs)
        self._blocks = SharedBlocks.create(block, NUM_SLOTS)
        for slot in range(NUM_SLOTS):  # nobody writes but what was seen
            for name in block.layout():
                getattr(self._blocks[slot], name)[...] = 0
        self._free = set(range(NUM_SLOTS))
        self._next = 0
        self._permit = Permit(0, Moment(0))
        self._version = NO_VERSION
        self._has_stopped = False
        self._supervisor = Supervisor("other half", run, self._make_spec, self._begin_anew, silence_limit_s)

    @property
    def memory_names(self) -> list[str]:
        """Names of the shared memory."""
        return [self._own.name, self._theirs.name, self._blocks.name]

    @property
    def num_restarts(self) -> int:
        """How often the process was started again."""
        return self._supervisor.num_restarts

    @property
    def pids(self) -> list[int]:
        """Its process id, as a list."""
        return self._supervisor.pids

    def start(self) -> None:
        """Starts the process; whoever calls this has to call `stop`, whatever happens."""
        self._publish()
        self._supervisor.start(1)

    def show(self, numbers: range, copy: Callable[[int, ExperienceBlock], None]) -> None:
        """Copies blocks that it has not seen into the slots that are free; see `rulka.agents.spec.OtherHalf`."""
        self._next = max(self._next, numbers.start)
        while self._free and self._next < numbers.stop:
            slot = self._free.pop()
            copy(self._next, self._blocks[slot])
            self._supervisor.send(0, Show(slot))
            self._next += 1

    def permit(self, num_updates: int, moment: Moment) -> None:
        """Publishes what the learner's half owns, and lets the other one learn on."""
        self._publish()
        self._permit = Permit(num_updates, moment)
        self._supervisor.send(0, self._permit)

    def hear(self, timeout_s: float) -> None:
        """Waits for a message, hands on what was learned, and starts the process again where it has died.

        Raises:
            WorkerCrashError: if it has died too often.
        """
        metrics: dict[str, float] | None = None
        for _, message in self._supervisor.receive(timeout_s):
            if isinstance(message, Seen):
                self._free.add(message.slot)
            elif isinstance(message, Taught):
                metrics = message.metrics
        if metrics is not None:
            self._take(metrics)
        self._supervisor.replace_dead()

    def stop(self) -> None:
        """Ends the process and removes the shared memory; may be called again."""
        if self._has_stopped:
            return
        self._has_stopped = True
        try:
            self._supervisor.stop()
        finally:
            self._own.close()
            self._theirs.close()
            self._blocks.close()

    def _publish(self) -> None:
        self._version += 1
        self._own.publish(self._version, self._learner.own_tensors())

    def _take(self, metrics: Mapping[str, float]) -> None:
        if self._theirs.version != NO_VERSION:
            num_updates, tensors = self._theirs.read()
            self._learner.take_half(num_updates, tensors, metrics)

    def _begin_anew(self, _index: int) -> None:
        """Takes what a process that is gone had published, and has the next one be shown everything."""
        self._take({})
        self._free, self._next = set(range(NUM_SLOTS)), 0

    def _make_spec(self, _index: int, _num_starts: int) -> HalfSpec:
        make_half = self._learner.make_half()
        assert make_half is not None, "there is another half, or nobody would have made this"
        return HalfSpec(
            make_half=make_half,
            block=self._block,
            blocks_name=self._blocks.name,
            num_slots=NUM_SLOTS,
            read_name=self._own.name,
            read_layout=self._own.layout,
            written_name=self._theirs.name,
            written_layout=self._theirs.layout,
            permit=self._permit,
        )
