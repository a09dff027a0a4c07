"""A host: the collectors of one node, and the way of their blocks to a learner on another one.

It is an actor whose methods the learner calls, one after the other, and runs the collectors of
`rulka.runtime.collectors` as the learner's own process would. No method takes long: `work` looks after the collectors
and returns their blocks in the order of permissions.
"""

from __future__ import annotations

import getpass
import logging
import multiprocessing
import os
import pickle
import shutil
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from filelock import FileLock
from numpy.typing import NDArray

from rulka.agents.quantisation import check_acting_precision
from rulka.buffers.experience import BlockSpec
from rulka.device import CPU
from rulka.errors import UserError
from rulka.provenance import code_version, hash_json
from rulka.runtime.collectors import CollectorProcesses, Collectors
from rulka.runtime.messages import BlockFilled, InferenceTimes
from rulka.runtime.run_lock import LOCK_FILE, RunInUseError, locked
from rulka.runtime.shared_memory import LIST_FILE, remove_left_memory
from rulka.runtime.specs import LearnerShare, RunSpec
from rulka.runtime.weights import NO_VERSION, WeightsLayout, checksum, views
from rulka.schedule import Moment

LOCK_LIMIT_S = 60.0
"""How long hosts of one machine may take to look for what others have left."""
CPU_S = 5.0
"""Time between looks at what its processes had on processors, which takes milliseconds."""
HOSTS_FOLDER = "rulka-hosts"
"""Where hosts note their shared memory: below the folder of temporary files of their machine."""
WORK_S = 0.2
"""Longest wait for a block: what is permitted meanwhile waits for so long."""
INCARNATION_STEP = 1 << 32
"""More than any run is started: hosts of one place have seeds of their own."""

_LOGGER = logging.getLogger(__name__)


class Place(NamedTuple):
    """Which host of a run, and how often there was one before."""

    number: int
    incarnation: int


@dataclass(frozen=True)
class HostSpec:
    """Order for a host; picklable.

    Attributes:
        run: the part of the run that is this host's; `folder` is replaced by one of its node.
        layout: of the weights.
        num_starts: how often the run was started before.
        name: of the run, for its folder.
    """

    run: RunSpec
    layout: WeightsLayout
    num_starts: int
    name: str


@dataclass(frozen=True)
class Filled:
    """A block.

    Attributes:
        collector: who filled it, of this host's.
        facts: of the block.
        arrays: of the block, by name.
    """

    collector: int
    facts: BlockFilled
    arrays: Mapping[str, NDArray]


@dataclass(frozen=True)
class Report:
    """Blocks that a host has since the last report, and how it is.

    Attributes:
        filled: blocks, in the order of permissions.
        cpu_s: CPU time of it and its collectors.
        num_restarts: how often it has started one of its processes again.
        inference: what its policy workers said of their time.
    """

    filled: tuple[Filled, ...] = ()
    cpu_s: float = 0.0
    num_restarts: int = 0
    inference: tuple[InferenceTimes, ...] = ()


@dataclass(frozen=True)
class HostFailed:
    """The answer to a call at which a host has ended by an error.

    Attributes:
        message: what went wrong: of an error that a person can act on, or a traceback.
        hint: what to do about it.
        is_refusal: whether it is such an error, and would come again.
    """

    message: str
    hint: str
    is_refusal: bool


def part_of_run(spec: RunSpec, first_collector: int, num_collectors: int, policy_workers: int) -> RunSpec:
    """Returns a host's part of a run, which has no learner, and acts on processors."""
    train = spec.train.model_copy(update={"num_collectors": num_collectors, "policy_workers": policy_workers})
    return replace(
        spec,
        train=train,
        first_collector=first_collector,
        device=CPU,
        build_learner=_no_learner,
    )


def _no_learner(share: LearnerShare) -> Any:
    raise NotImplementedError


def contract_of(block: BlockSpec, layout: WeightsLayout) -> dict[str, str]:
    """Returns in words what learner and hosts have to agree on: what is seen, what is done, which weights act.

    The words are made by the code that runs here, from what it has understood.
    """
    arrays = {name: (shape, np.dtype(dtype).name) for name, (shape, dtype) in block.layout().items()}
    places = [(place.name, place.shape, str(place.dtype), place.offset) for place in layout.places]
    kind = "numbers" if block.continuous else "indices"
    return {
        "observation": f"{block.image_shape} pixels and {block.num_floats} floats",
        "action": f"{kind} of shape {block.decision_shape}",
        "block": f"{block.num_steps} decisions of {block.num_cars} cars ({_short(arrays)})",
        "weights": f"{len(places)} tensors in {layout.num_bytes} bytes ({_short(places)})",
    }


def _cpu_seconds() -> float:
    """Returns the time that this process and its living children had on processors, without a look at all others."""
    spent_s = time.process_time()
    for child in multiprocessing.active_children():
        with suppress(psutil.NoSuchProcess):
            times = psutil.Process(child.pid).cpu_times()
            spent_s += times.user + times.system
    ended = os.times()
    return spent_s + ended.children_user + ended.children_system


def _short(value: object) -> str:
    return hash_json(value)[:8]


MakeCollectors = Callable[[HostSpec], Collectors]
"""Builds and starts the collectors of a host."""


def start_processes(spec: HostSpec) -> Collectors:
    """Returns collectors in processes of their own, started.

    Raises:
        UserError: if the node has too little shared memory, or cannot act in `train.acting_precision`.
    """
    check_acting_precision(spec.run.train.acting_precision, CPU)
    tensors = {place.name: torch.empty(place.shape, dtype=place.dtype) for place in spec.layout.places}
    collectors = CollectorProcesses(spec.run, tensors, 0, spec.num_starts)
    try:
        collectors.start()
    except BaseException:
        collectors.stop()
        raise
    return collectors


class Host:
    """The far side of `rulka.runtime.hosts`. A call at which something goes wrong ends the collectors."""

    def __init__(self, place: Place, make_collectors: MakeCollectors = start_processes) -> None:
        """Prepares.

        Args:
            place: which host, and how often there was one before.
            make_collectors: builds the collectors.
        """
        self._place, self._make_collectors = place, make_collectors
        self._stack = ExitStack()
        self._version = NO_VERSION
        self._waiting: deque[tuple[Moment, int]] = deque()
        self._last: Moment | None = None
        self._early: list[Filled] = []
        self._num_given = self._num_filled = 0
        self._cpu_s = self._cpu_looked_s = 0.0

    def code(self) -> dict[str, str]:
        """Returns the code and versions that run here, see `rulka.provenance.code_version`."""
        return code_version()

    def pid(self) -> int:
        """Returns the id of its process."""
        return os.getpid()

    def build(self, pickled: bytes) -> dict[str, str] | HostFailed:
        """Builds and starts the collectors.

        Args:
            pickled: a `HostSpec`, which other code might not understand.

        Returns:
            What their blocks hold and which weights they take, see `contract_of`.
        """
        with self._failing() as failures:
            torch.set_num_threads(1)
            spec: HostSpec = pickle.loads(pickled)
            folder = self._stack.enter_context(_own_folder(spec.name, self._place))
            num_starts = spec.num_starts + self._place.incarnation * INCARNATION_STEP
            spec = replace(spec, run=replace(spec.run, folder=folder), num_starts=num_starts)
            self._collectors = self._make_collectors(spec)
            self._stack.callback(self._collectors.stop)
            self._content = bytearray(spec.layout.num_bytes)
            self._tensors = views(self._content, spec.layout)
            self._block_steps = spec.run.block.num_env_steps
            return contract_of(spec.run.block, spec.layout)
        return failures[0]

    def load(self, version: int, crc: int, content: NDArray[np.uint8]) -> str | HostFailed:
        """Publishes a version to the collectors if it is what it says it is.

        Args:
            version: its number.
            crc: over number and bytes, see `rulka.runtime.weights.checksum`.
            content: its bytes.

        Returns:
            What is wrong with it, or nothing.
        """
        with self._failing() as failures:
            if len(content) != len(self._content):
                return f"{len(content)} bytes instead of {len(self._content)}"
            if checksum(version, content.data) != crc:
                return "its checksum is another one"
            if version > self._version:
                self._content[:] = content.data
                self._version = version
                self._collectors.publish(version, self._tensors)
                self._give_out()
            return ""
        return failures[0]

    def permit(self, moment: Moment, version: int) -> HostFailed | None:
        """Permits one block.

        Args:
            moment: see `rulka.runtime.messages.Fill`.
            version: no older weights may drive in it.
        """
        with self._failing() as failures:
            self._waiting.append((moment, version))
            self._give_out()
            return None
        return failures[0]

    def work(self) -> Report | HostFailed:
        """Looks after the collectors, and waits a moment for a block if one is permitted."""
        with self._failing() as failures:
            filled = self._filled(WORK_S if self._num_filled < self._num_given else 0.0)
            if time.monotonic() - self._cpu_looked_s >= CPU_S:
                self._cpu_looked_s, self._cpu_s = time.monotonic(), _cpu_seconds()
            inference = tuple(self._collectors.take_inference_times())
            return Report(tuple(filled), self._cpu_s, self._collectors.num_restarts, inference)
        return failures[0]

    def stop(self) -> None:
        """Ends all that it has started."""
        self._stack.close()

    @contextmanager
    def _failing(self) -> Iterator[list[HostFailed]]:
        """Ends the collectors at an error in the block, which is then in the list."""
        failures: list[HostFailed] = []
        try:
            yield failures
        except UserError as error:
            failures.append(HostFailed(str(error), error.hint, is_refusal=True))
        except Exception:
            failures.append(HostFailed(traceback.format_exc(), "", is_refusal=False))
        if failures:
            self.stop()

    def _give_out(self) -> None:
        """Hands permissions to the collectors, in their order, once there are weights that may drive in them."""
        while self._waiting and self._waiting[0][1] <= self._version:
            self._last, _ = self._waiting.popleft()
            self._num_given += 1
            self._early += self._collect(0.0)

    def _filled(self, timeout_s: float) -> list[Filled]:
        filled, self._early = self._early, []
        return filled + self._collect(0.0 if filled else timeout_s)

    def _collect(self, timeout_s: float) -> list[Filled]:
        """Lets collectors have what is permitted, and returns copies of what they have filled."""
        if self._last is None:
            return []
        allowed = self._num_given * self._block_steps
        elsewhere = self._last.env_steps - (allowed - self._block_steps)
        filled = []
        for delivery in self._collectors.collect(allowed, timeout_s, self._last.share, elsewhere):
            arrays = {name: getattr(delivery.block, name).copy() for name in delivery.block.spec.layout()}
            self._collectors.release(delivery)
            filled.append(Filled(delivery.collector, delivery.facts, arrays))
        self._num_filled += len(filled)
        return filled


@contextmanager
def _own_folder(name: str, place: Place) -> Iterator[Path]:
    """Locks a folder for a host, on its node; removes what hosts left there that were killed."""
    root = Path(tempfile.gettempdir()) / f"{HOSTS_FOLDER}-{getpass.getuser()}"
    root.mkdir(exist_ok=True)
    own = root / f"{name}-{place.number}-{place.incarnation}"
    with ExitStack() as stack:
        # Or another host might take a folder for left that is not locked yet.
        with FileLock(root / LOCK_FILE, timeout=LOCK_LIMIT_S):
            for folder in root.glob(f"*/{LIST_FILE}"):
                _remove_left(folder.parent)
            stack.enter_context(locked(own))
        stack.callback(shutil.rmtree, own, ignore_errors=True)
        yield own


def _remove_left(folder: Path) -> None:
    with suppress(RunInUseError, FileNotFoundError), locked(folder):  # or its host removes it just now
        num_bytes = remove_left_memory(folder)
        _LOGGER.warning("%s: removed %.1f MB of a host that was killed", folder.as_posix(), num_bytes / 1e6)
        shutil.rmtree(folder)
