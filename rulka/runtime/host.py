"""A host: the collectors of one node, and the way of their blocks to a learner on another one.

It is an actor whose methods the learner calls, each call in a thread of its own, and runs the collectors of
`rulka.runtime.collectors` as the learner's own process would. One thread does all the work, as what it starts ends with
it: a call hands its order to that thread and waits for the answer. The answer to `fill` is a block, so that a block
belongs to one permission of one learner, and what nobody waits for any more is lost.
"""

from __future__ import annotations

import getpass
import logging
import multiprocessing
import os
import pickle
import shutil
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, cast

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
from rulka.runtime.supervisor import HEARTBEAT_S
from rulka.runtime.weights import NO_VERSION, WeightsLayout, checksum, views
from rulka.schedule import Moment

LOCK_LIMIT_S = 60.0
"""How long hosts of one machine may take to look for what others have left."""
CPU_S = 5.0
"""Time between looks at what its processes had on processors, which takes milliseconds."""
HOSTS_FOLDER = "rulka-hosts"
"""Where hosts note their shared memory: below the folder of temporary files of their machine."""
INCARNATION_STEP = 1 << 32
"""More than any run is started: hosts of one place have seeds of their own."""

_LOGGER = logging.getLogger(__name__)


class Place(NamedTuple):
    """Which host of a run, and how often there was one before."""

    number: int
    incarnation: int


@dataclass(frozen=True)
class HostSpec:
    """What a host builds; picklable.

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
class Alive:
    """How a host is.

    Attributes:
        cpu_s: time that it and its collectors had on processors.
        num_restarts: how often it has started one of its processes again.
        inference: what its policy workers said of their time since the last time.
    """

    cpu_s: float = 0.0
    num_restarts: int = 0
    inference: tuple[InferenceTimes, ...] = ()


@dataclass(frozen=True)
class HostFailed:
    """The answer to all calls of a host that has ended by an error.

    Attributes:
        message: what went wrong: of an error that a person can act on, or a traceback.
        hint: what to do about it.
        is_refusal: whether it is such an error, and would come again.
    """

    message: str
    hint: str
    is_refusal: bool


def part_of_run(spec: RunSpec, first_collector: int, num_collectors: int, policy_workers: int) -> RunSpec:
    """Returns what a host has of a run; it builds no learner, and acts on processors."""
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


class _Permit(NamedTuple):
    """Permission for a block.

    Attributes:
        moment: see `rulka.runtime.messages.Fill`.
        version: no older weights may drive in it.
        answer: gets the block.
    """

    moment: Moment
    version: int
    answer: Future[Any]


_Order = tuple[Callable[..., None], tuple[Any, ...], "Future[Any]"]
"""What the working thread calls, with the arguments and the answer of a call."""


class Host:
    """The far side of `rulka.runtime.hosts`; its public methods are called by threads of their own."""

    def __init__(self, place: Place, make_collectors: MakeCollectors = start_processes) -> None:
        """Prepares; `build` begins to work.

        Args:
            place: which host, and how often there was one before.
            make_collectors: builds the collectors.
        """
        self._place, self._make_collectors = place, make_collectors
        self._lock = threading.Condition()
        self._orders: deque[_Order] = deque()
        self._ended_by: HostFailed | None = None
        ends = cast(tuple[Connection, Connection], multiprocessing.Pipe(duplex=False))
        self._bell, self._ringer = ends
        self._has_to_stop = False
        self._thread: threading.Thread | None = None
        self._version = NO_VERSION
        self._permits: dict[int, _Permit] = {}
        self._given: deque[_Permit] = deque()
        self._last: _Permit | None = None
        self._num_given = 0
        self._cpu_s = self._cpu_looked_s = 0.0

    def code(self) -> dict[str, str]:
        """Returns the code and versions that run here, see `rulka.provenance.code_version`."""
        return code_version()

    def build(self, spec: bytes) -> dict[str, str] | HostFailed:
        """Builds and starts the collectors.

        Args:
            spec: a pickled `HostSpec`, which other code might not understand.

        Returns:
            What their blocks hold and which weights they take, see `contract_of`.
        """
        answer: Future[Any] = Future()
        self._thread = threading.Thread(target=self._run, args=(pickle.loads(spec), answer), daemon=True)
        self._thread.start()
        return answer.result()

    def load(self, version: int, crc: int, content: NDArray[np.uint8]) -> str | HostFailed:
        """Publishes a version to the collectors if it is what it says it is.

        Args:
            version: its number.
            crc: over number and bytes, see `rulka.runtime.weights.checksum`.
            content: its bytes.

        Returns:
            What is wrong with it, or nothing.
        """
        return self._ask(self._load, version, crc, content)

    def fill(self, number: int, moment: Moment, version: int) -> Filled | HostFailed:
        """Has one block filled, the next one in the order of numbers.

        Args:
            number: of the permission, from 0.
            moment: see `rulka.runtime.messages.Fill`.
            version: no older weights may drive in it.
        """
        return self._ask(self._permit, number, moment, version)

    def alive(self) -> Alive | HostFailed:
        """Returns as soon as the working thread comes by."""
        return self._ask(self._tell)

    def pid(self) -> int:
        """Returns the id of its process."""
        return os.getpid()

    def stop(self) -> None:
        """Ends all that it has started."""
        with self._lock:
            self._has_to_stop = True
        self._ring()
        if self._thread is not None:
            self._thread.join()

    def _ask(self, order: Callable[..., None], *arguments: Any) -> Any:
        answer: Future[Any] = Future()
        with self._lock:
            if self._ended_by is not None:
                return self._ended_by
            self._orders.append((order, arguments, answer))
        self._ring()
        return answer.result()

    def _ring(self) -> None:
        with self._lock:
            self._lock.notify()
            self._ringer.send_bytes(b"!")

    # The working thread ---------------------------------------------------------------------------------------------

    def _run(self, spec: HostSpec, built: Future[Any]) -> None:
        """Works until told to stop, and answers everybody who still waits with how it ended."""
        torch.set_num_threads(1)
        ended_by = HostFailed("it has stopped", "", is_refusal=False)
        try:
            with _own_folder(spec.name, self._place) as folder:
                self._work(replace(spec, run=replace(spec.run, folder=folder)), built)
        except UserError as error:
            ended_by = HostFailed(str(error), error.hint, is_refusal=True)
        except Exception:
            ended_by = HostFailed(traceback.format_exc(), "", is_refusal=False)
        with self._lock:
            self._ended_by = ended_by
            waiting = [built, *(answer for *_, answer in self._orders)]
        for answer in (*waiting, *(permit.answer for permit in (*self._permits.values(), *self._given))):
            if not answer.done():
                answer.set_result(ended_by)

    def _work(self, spec: HostSpec, built: Future[Any]) -> None:
        self._content = bytearray(spec.layout.num_bytes)
        self._tensors = views(self._content, spec.layout)
        self._block_steps = spec.run.block.num_env_steps
        spec = replace(spec, num_starts=spec.num_starts + self._place.incarnation * INCARNATION_STEP)
        self._collectors = self._make_collectors(spec)
        if isinstance(self._collectors, CollectorProcesses):
            self._collectors.wake_by(self._bell)
        try:
            built.set_result(contract_of(spec.run.block, spec.layout))
            while not self._has_to_stop:
                self._obey()
                self._give_out()
                self._hand_on(HEARTBEAT_S if self._given else 0.0)
                if not self._given:
                    with self._lock:
                        self._lock.wait_for(lambda: self._orders or self._has_to_stop, HEARTBEAT_S)
        finally:
            self._collectors.stop()

    def _obey(self) -> None:
        while self._bell.poll():
            self._bell.recv_bytes()
        while self._orders:
            order, arguments, answer = self._orders[0]  # until it is done, so that no call waits for ever
            order(answer, *arguments)
            self._orders.popleft()

    def _load(self, answer: Future[Any], version: int, crc: int, content: NDArray[np.uint8]) -> None:
        wrong = ""
        if len(content) != len(self._content):
            wrong = f"{len(content)} bytes instead of {len(self._content)}"
        elif checksum(version, content.data) != crc:
            wrong = "its checksum is another one"
        elif version > self._version:
            self._content[:] = content.data
            self._version = version
            self._collectors.publish(version, self._tensors)
        answer.set_result(wrong)

    def _permit(self, answer: Future[Any], number: int, moment: Moment, version: int) -> None:
        self._permits[number] = _Permit(moment, version, answer)

    def _tell(self, answer: Future[Any]) -> None:
        now_s = time.monotonic()
        if now_s - self._cpu_looked_s >= CPU_S:
            self._cpu_looked_s, self._cpu_s = now_s, _cpu_seconds()
        inference = tuple(self._collectors.take_inference_times())
        answer.set_result(Alive(self._cpu_s, self._collectors.num_restarts, inference))

    def _give_out(self) -> None:
        """Permits blocks in the order of the permissions, once there are weights that may drive in them."""
        while (permit := self._permits.get(self._num_given)) and permit.version <= self._version:
            del self._permits[self._num_given]
            self._num_given += 1
            self._given.append(permit)
            self._last = permit
            self._hand_on(0.0)

    def _hand_on(self, timeout_s: float) -> None:
        """Lets collectors have what is permitted, and answers with what they have filled."""
        if self._last is None:
            return
        moment, allowed = self._last.moment, self._num_given * self._block_steps
        elsewhere = moment.env_steps - (allowed - self._block_steps)
        for delivery in self._collectors.collect(allowed, timeout_s, moment.share, elsewhere):
            arrays = {name: getattr(delivery.block, name).copy() for name in delivery.block.spec.layout()}
            self._collectors.release(delivery)
            self._given.popleft().answer.set_result(Filled(delivery.collector, delivery.facts, arrays))


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
