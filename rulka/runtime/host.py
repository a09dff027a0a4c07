"""A host: the collectors of one node, and the way from their shared memory to a learner on another one.

It runs today's collectors as the learner's own process would, with permissions that come from there, and hands whole
blocks on. It knows nothing of who carries the letters, see `rulka.cluster.post`. One thread does all the work: what it
starts ends with it.
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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import torch
from filelock import FileLock
from numpy.typing import NDArray

from rulka.agents.quantisation import check_acting_precision
from rulka.buffers.experience import BlockSpec
from rulka.cluster.post import Place, Share
from rulka.device import CPU
from rulka.errors import UserError
from rulka.observation import FLOATS
from rulka.provenance import code_version, hash_json
from rulka.runtime.collectors import CollectorProcesses, Collectors
from rulka.runtime.host_messages import (
    Alive,
    Allow,
    Build,
    Built,
    Filled,
    FromHost,
    HostFailed,
    Introduced,
    Loaded,
    NewWeights,
    Stopped,
    ToHost,
    WrongWeights,
)
from rulka.runtime.messages import Stop
from rulka.runtime.process import HEARTBEAT_S
from rulka.runtime.run_lock import LOCK_FILE, RunInUseError, locked
from rulka.runtime.shared_memory import LIST_FILE, remove_left_memory
from rulka.runtime.specs import RunSpec
from rulka.runtime.weights import NO_VERSION, WeightsLayout, checksum, views

LOCK_LIMIT_S = 60.0
"""How long hosts of one machine may take to look for what others have left."""
CPU_S = 5.0
"""Time between looks at what its processes had on processors, which takes milliseconds."""
HOSTS_FOLDER = "rulka-hosts"
"""Where hosts note their shared memory: below the folder of temporary files of their machine."""
INCARNATION_STEP = 1 << 32
"""More than any run is started: hosts of one place have seeds of their own."""

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class HostSpec:
    """What a host builds; picklable.

    Attributes:
        run: the part of the run that is this host's; `folder` is replaced by one of its node.
        layout: of the weights.
        num_starts: how often the run was started before.
        first_number: of its permissions.
        name: of the run, for its folder.
    """

    run: RunSpec
    layout: WeightsLayout
    num_starts: int
    first_number: int
    name: str


def part_of_run(spec: RunSpec, first_collector: int, num_collectors: int, policy_workers: int) -> RunSpec:
    """Returns what a host has of a run; it builds no learner, and acts on processors."""
    train = spec.train.model_copy(update={"num_collectors": num_collectors, "policy_workers": policy_workers})
    return replace(
        spec,
        train=train,
        first_collector=first_collector,
        device=CPU,
        make_learner=_no_learner,
        make_share=None,
    )


def _no_learner() -> Any:
    raise NotImplementedError


def contract_of(block: BlockSpec, layout: WeightsLayout) -> dict[str, str]:
    """Returns in words what learner and hosts have to agree on: what is seen, what is done, which weights act.

    The words are made by the code that runs here, from what it has understood.
    """
    arrays = {name: (shape, np.dtype(dtype).name) for name, (shape, dtype) in block.layout().items()}
    floats = {name: (part.start, part.stop) for name, part in FLOATS.items()}
    places = [(place.name, place.shape, str(place.dtype), place.offset) for place in layout.places]
    kind = "numbers" if block.continuous else "indices"
    return {
        "observation": f"{block.image_shape} pixels and {block.num_floats} floats ({_short(floats)})",
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


def make_host(place: Place, share: Share) -> Host:
    """Returns a host that works; see `rulka.cluster.post.MakeFar`."""
    host = Host(place, share)
    host.start()
    return host


class Host:
    """The far side of `rulka.runtime.cluster_collectors`."""

    def __init__(self, place: Place, share: Share, make_collectors: MakeCollectors = start_processes) -> None:
        """Prepares; `start` begins to work.

        Args:
            place: which host, and how often there was one before.
            share: lays arrays where the learner can read them.
            make_collectors: builds the collectors.
        """
        self._place, self._share, self._make_collectors = place, share, make_collectors
        self._inbox: deque[tuple[ToHost, Any]] = deque()
        self._outbox: deque[tuple[FromHost, Any]] = deque()
        self._has_letters, self._has_news = threading.Condition(), threading.Condition()
        ends = cast(tuple[Connection, Connection], multiprocessing.Pipe(duplex=False))
        self._bell, self._ringer = ends
        self._beat_s = self._cpu_looked_s = 0.0
        self._cpu_s = 0.0
        self._inference: list[Any] = []
        self._thread = threading.Thread(target=self._run, name=f"host-{place.number}", daemon=True)

    def start(self) -> None:
        """Begins to work."""
        self._thread.start()

    def tell(self, message: ToHost, content: Any = None) -> None:
        """Takes a letter of the learner."""
        with self._has_letters:
            self._inbox.append((message, content))
            self._has_letters.notify()
            self._ringer.send_bytes(b"!")

    def listen(self, timeout_s: float) -> list[tuple[FromHost, Any]]:
        """Returns what there is to say, as soon as there is something."""
        with self._has_news:
            self._has_news.wait_for(lambda: self._outbox, timeout_s)
            said = list(self._outbox)
            self._outbox.clear()
            return said

    def _say(self, message: FromHost, parcel: Any = None) -> None:
        with self._has_news:
            if isinstance(message, Alive):  # the last one is enough for who has not listened for a while
                self._outbox = deque(letter for letter in self._outbox if not isinstance(letter[0], Alive))
            self._outbox.append((message, parcel))
            self._has_news.notify()

    def _run(self) -> None:
        """Works until told to stop, and says how it ended."""
        torch.set_num_threads(1)
        try:
            self._say(Introduced(code_version()))
            order = self._first_order()
            if order is not None:
                spec: HostSpec = pickle.loads(order.spec)
                with _own_folder(spec.name, self._place) as folder:
                    self._work(replace(spec, run=replace(spec.run, folder=folder)))
            self._say(Stopped())
        except UserError as error:
            self._say(HostFailed(str(error), error.hint, is_refusal=True))
        except Exception:
            self._say(HostFailed(traceback.format_exc(), "", is_refusal=False))

    def _first_order(self) -> Build | None:
        while not self._inbox:
            self._beat("waiting for what to build")
            self._wait(HEARTBEAT_S)
        message, _ = self._inbox.popleft()
        return message if isinstance(message, Build) else None

    def _wait(self, timeout_s: float) -> None:
        with self._has_letters:
            self._has_letters.wait_for(lambda: self._inbox, timeout_s)

    def _work(self, spec: HostSpec) -> None:
        self._say(Alive("building its collectors", 0.0, 0))
        spec = replace(spec, num_starts=spec.num_starts + self._place.incarnation * INCARNATION_STEP)
        collectors = self._make_collectors(spec)
        if isinstance(collectors, CollectorProcesses):
            collectors.wake_by(self._bell)
        try:
            self._say(Built(contract_of(spec.run.block, spec.layout), os.getpid()))
            _Forwarding(spec, collectors, self._say, self._share).run(self._take_letters, self._wait, self._beat)
        finally:
            collectors.stop()

    def _take_letters(self) -> Iterator[tuple[ToHost, Any]]:
        while self._bell.poll():
            self._bell.recv_bytes()
        while self._inbox:
            yield self._inbox.popleft()

    def _beat(self, activity: str, collectors: Collectors | None = None) -> None:
        """Says that it is alive, when that is due."""
        if time.monotonic() - self._beat_s < HEARTBEAT_S:
            return
        self._beat_s = time.monotonic()
        num_restarts = 0 if collectors is None else collectors.num_restarts
        inference = () if collectors is None else tuple(collectors.take_inference_times())
        if self._beat_s - self._cpu_looked_s >= CPU_S:
            self._cpu_looked_s, self._cpu_s = self._beat_s, _cpu_seconds()
        self._say(Alive(activity, self._cpu_s, num_restarts, inference))


class _Forwarding:
    """What a host does once it has collectors: permissions to them, their blocks to the learner."""

    def __init__(self, spec: HostSpec, collectors: Collectors, say: Callable[..., None], share: Share) -> None:
        self._collectors, self._say, self._share = collectors, say, share
        self._block_steps = spec.run.block.num_env_steps
        self._content = bytearray(spec.layout.num_bytes)
        self._tensors = views(self._content, spec.layout)
        self._version = NO_VERSION
        self._allowed: dict[int, Allow] = {}
        self._next_number = spec.first_number
        self._numbers: deque[int] = deque()
        self._num_given = 0
        self._has_ended = False
        self._last: Allow | None = None

    def run(
        self,
        letters: Callable[[], Iterator[tuple[ToHost, Any]]],
        wait: Callable[[float], None],
        beat: Callable[[str, Collectors], None],
    ) -> None:
        """Works until it is told to stop."""
        while True:
            for message, content in letters():
                self._take(message, content)
            if self._has_ended:
                return
            self._give_out()
            self._forward(HEARTBEAT_S if self._numbers else 0.0)
            beat("waiting for blocks" if self._numbers else "waiting for permission", self._collectors)
            if not self._numbers:
                wait(HEARTBEAT_S)

    def _take(self, message: ToHost, content: Any) -> None:
        match message:
            case Allow():
                self._allowed[message.number] = message
            case NewWeights():
                self._load(message, content)
            case Stop():
                self._has_ended = True
            case Build():
                pass

    def _load(self, message: NewWeights, content: NDArray[np.uint8]) -> None:
        """Hands a version to the collectors if it is what it says it is."""
        if message.version <= self._version:
            return
        found = len(content)
        if found != len(self._content):
            self._say(WrongWeights(message.version, f"{found} bytes instead of {len(self._content)}"))
            return
        if checksum(message.version, content.data) != message.checksum:
            self._say(WrongWeights(message.version, "its checksum is another one"))
            return
        self._content[:] = content.data
        self._version = message.version
        self._collectors.publish(message.version, self._tensors)
        self._say(Loaded(message.version))

    def _give_out(self) -> None:
        """Permits blocks in the order of the permissions, once there are weights that may drive in them."""
        while (allow := self._allowed.get(self._next_number)) and allow.version <= self._version:
            del self._allowed[self._next_number]
            self._numbers.append(self._next_number)
            self._next_number += 1
            self._last = allow
            self._num_given += 1
            self._forward(0.0)

    def _forward(self, timeout_s: float) -> None:
        """Lets collectors have what is permitted, and hands on what they have filled."""
        if self._last is None:
            return
        moment, allowed = self._last.moment, self._num_given * self._block_steps
        elsewhere = moment.env_steps - (allowed - self._block_steps)
        for delivery in self._collectors.collect(allowed, timeout_s, moment.share, elsewhere):
            arrays = {name: getattr(delivery.block, name) for name in delivery.block.spec.layout()}
            parcel = self._share(arrays)  # the one copy, out of shared memory
            self._collectors.release(delivery)
            self._say(Filled(self._numbers.popleft(), delivery.collector, delivery.facts), parcel)


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
