"""A training run as a sequence of events: who works, who waits for whom, on machines that are not at hand.

The rules are those of the runtime (`rulka/runtime/connect.py`): blocks are given out while the learner allows it, are
learned from in the order in which they were given out, and each is filled with the weights of its beginning. What the
parts cost is measured (`benchmarks.scale.costs`); how long they wait comes out. Simulated with SimPy, a library for
discrete events: https://simpy.readthedocs.io.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from benchmarks.scale.costs import Costs
from rulka.runtime.collectors import SLOTS_PER_COLLECTOR

Steps = Generator[simpy.Event, Any, None]
"""A process of SimPy."""
AT_WORK = 0.9
"""Share of the time from which on somebody counts as what limits a run."""


@dataclass(frozen=True)
class OnPolicy:
    """When a learner like PPO's or IMPALA's learns, and how far ahead collectors may be.

    Attributes:
        steps_per_update: decisions that an update learns from.
        versions_ahead: updates whose decisions may be gathered before they are needed (`max_versions_behind`).
    """

    steps_per_update: int
    versions_ahead: int

    def allowed(self, num_taken: int, num_updates: int) -> int:
        """Returns how many decisions may be given out."""
        del num_taken
        return (num_updates + 1 + self.versions_ahead) * self.steps_per_update

    def can_learn(self, num_taken: int, num_updates: int) -> bool:
        """Says whether there is enough for the next update."""
        return num_taken >= (num_updates + 1) * self.steps_per_update


@dataclass(frozen=True)
class Replay:
    """The same of a learner with a replay buffer, such as IQN's.

    Attributes:
        start_steps: decisions before the first update, and as many ahead of learning later.
        samples_per_insert: how often a decision is learned from in the mean.
        samples_per_update: in an update.
    """

    start_steps: int
    samples_per_insert: float
    samples_per_update: int

    def allowed(self, num_taken: int, num_updates: int) -> int:
        """Returns how many decisions may be given out."""
        del num_taken
        return int(num_updates * self.samples_per_update / self.samples_per_insert) + 2 * self.start_steps

    def can_learn(self, num_taken: int, num_updates: int) -> bool:
        """Says whether learning is behind what was driven."""
        due = (num_taken - self.start_steps) * self.samples_per_insert
        return num_taken >= self.start_steps and num_updates * self.samples_per_update <= due


@dataclass(frozen=True)
class Wire:
    """What connects two places.

    Attributes:
        bytes_per_s: each way.
        latency_s: of a message.
    """

    bytes_per_s: float
    latency_s: float


ETHERNET = Wire(1.25e9, 2e-4)
"""10 Gbit/s."""
NVLINK = Wire(1.5e11, 2e-5)
"""Between GPUs of one machine: a third of what is said of an H100's."""


@dataclass(frozen=True)
class Machines:
    """What a run has.

    Attributes:
        num_collectors: of each learner.
        num_learners: that average their gradients; each has cores, collectors and 1/n of every update of its own.
        learner_cores: of the machine of a learner; collectors work there, too, unless they have machines of their own.
        collectors_per_node: on each machine beside that of the learner, one core each; 0: all on that of the learner.
        learner_speed: how many times as fast as measured the learner takes in (IQN then computes features) and learns.
        wire: from machine to machine.
        learners_wire: from learner to learner.
    """

    num_collectors: int
    num_learners: int = 1
    learner_cores: int = 2
    collectors_per_node: int = 0
    learner_speed: float = 1.0
    wire: Wire = ETHERNET
    learners_wire: Wire = ETHERNET


@dataclass
class Found:
    """What comes out, of one learner among equals where there are several.

    Attributes:
        env_steps_per_s: decisions of all collectors of all learners.
        updates_per_s: of the weights.
        lag_taken: versions between a block's weights and those of the moment when the learner takes it in.
        lag_learned: the same at the moment when it is learned from; of learners on policy alone.
        busy: share of the time in which the learner inserts, learns and publishes.
        summing: share in which it waits for the other learners, and for the sum of gradients to go around.
        collectors_waiting: share of the collectors' time in which they wait.
        link_in: share of the time in which blocks arrive from other machines.
        link_out: share of the time in which weights leave.
    """

    env_steps_per_s: float
    updates_per_s: float
    lag_taken: list[int] = field(repr=False)
    lag_learned: list[int] = field(repr=False)
    busy: float
    summing: float
    collectors_waiting: float
    link_in: float
    link_out: float

    @property
    def limit(self) -> str:
        """What keeps the run from being faster: who is at work nearly always; or, where nobody is, the permission."""
        if self.summing > self.busy and self.summing + self.busy >= AT_WORK:
            return "sum of gradients"
        shares = {
            "learner": self.busy + self.summing,
            "collectors": 1.0 - self.collectors_waiting,
            "network, blocks": self.link_in,
            "network, weights": self.link_out,
        }
        busiest = max(shares, key=lambda name: shares[name])
        return busiest if shares[busiest] >= AT_WORK else "permission"


class Cores:
    """Processors that share themselves out evenly among whoever computes."""

    def __init__(self, env: simpy.Environment, count: int, crowded: float) -> None:
        """Makes them.

        Args:
            env: of the simulation.
            count: how many.
            crowded: speed of each while all are busy, 1 being that of one alone; in between evenly.
        """
        self._env, self._count, self._crowded = env, count, crowded
        self._jobs: dict[simpy.Event, float] = {}
        self._since = 0.0
        self._turn = 0

    def work(self, seconds: float) -> simpy.Event:
        """Returns the event at which so much work is done; a core alone does one second of work in a second."""
        self._advance()
        done = self._env.event()
        self._jobs[done] = seconds
        self._look_ahead()
        return done

    def _speed(self) -> float:
        busy = min(len(self._jobs), self._count)
        slowed = 1.0 if self._count == 1 else 1.0 - (1.0 - self._crowded) * (busy - 1) / (self._count - 1)
        return slowed * busy / len(self._jobs)

    def _advance(self) -> None:
        if self._jobs:
            did = (self._env.now - self._since) * self._speed()
            for job in self._jobs:
                self._jobs[job] -= did
        self._since = self._env.now

    def _look_ahead(self) -> None:
        self._turn += 1
        if self._jobs:
            first = max(0.0, min(self._jobs.values())) / self._speed()
            self._env.process(self._finish(self._turn, first))

    def _finish(self, turn: int, after_s: float) -> Steps:
        yield self._env.timeout(after_s)
        if turn != self._turn:  # somebody began to work or finished in the meantime
            return
        self._advance()
        for job in [job for job, left in self._jobs.items() if left <= 1e-12]:
            del self._jobs[job]
            job.succeed()
        self._look_ahead()


class Link:
    """One way of a connection between machines: one message after another."""

    def __init__(self, env: simpy.Environment, wire: Wire) -> None:
        self._env, self._wire = env, wire
        self._line = simpy.Resource(env, 1)
        self.busy_s = 0.0

    def send(self, num_bytes: int) -> Steps:
        """Sends a message; it has arrived at the end."""
        with self._line.request() as turn:
            yield turn
            took_s = num_bytes / self._wire.bytes_per_s
            self.busy_s += took_s
            yield self._env.timeout(took_s)
        yield self._env.timeout(self._wire.latency_s)


@dataclass
class Node:
    """A machine where collectors work.

    Attributes:
        cores: of it.
        version: of the weights that are there.
        fetching: ends when newer ones have come; None while none are on their way.
    """

    cores: Cores
    version: int = 0
    fetching: simpy.Event | None = None


class Group:
    """Learners that average their gradients: each waits for the last one, and for the sum to go around."""

    def __init__(self, env: simpy.Environment, machines: Machines, costs: Costs) -> None:
        self._env, self._count = env, machines.num_learners
        share = 2.0 * (self._count - 1) / self._count  # of the gradient, sent and received by each: a ring
        wire = machines.learners_wire
        once_s = share * costs.weight_bytes / wire.bytes_per_s + 2 * (self._count - 1) * wire.latency_s
        self._sum_s = costs.gradient_steps * once_s
        self._here, self._all = 0, env.event()

    def meet(self) -> Steps:
        """Waits for the others, and until the gradients of an update have been averaged."""
        if self._count == 1:
            return
        self._here += 1
        everybody = self._all
        if self._here == self._count:
            self._here, self._all = 0, self._env.event()
            everybody.succeed()
        yield everybody
        yield self._env.timeout(self._sum_s)


class Rank:
    """One learner with its collectors."""

    def __init__(
        self, env: simpy.Environment, costs: Costs, machines: Machines, appetite: OnPolicy | Replay, group: Group
    ) -> None:
        self.env, self.costs, self.machines, self._appetite, self._group = env, costs, machines, appetite, group
        self._cores = Cores(env, machines.learner_cores, costs.crowded)
        self.link_in, self.link_out = Link(env, machines.wire), Link(env, machines.wire)
        count, per_node = machines.num_collectors, machines.collectors_per_node
        here = Node(self._cores)
        nodes = [Node(Cores(env, per_node, costs.crowded)) for _ in range(-(-count // per_node))] if per_node else []
        self._nodes = [nodes[index // per_node] if per_node else here for index in range(count)]
        self._todo = [simpy.Store(env) for _ in range(count)]
        self._free = [SLOTS_PER_COLLECTOR] * count
        self._under_way = [0] * count
        self._num_given = [0] * count
        self._given_out: deque[tuple[int, simpy.Event]] = deque()
        self._num_given_steps = 0
        self._news = env.event()
        self.num_taken = self.version = 0
        self.lag_taken: list[int] = []
        self.lag_learned: list[int] = []
        self._waiting: deque[int] = deque()
        self.busy_s = self.summing_s = self.filling_s = 0.0
        for index in range(count):
            env.process(self._collector(index))
        env.process(self._learner())

    def so_far(self) -> NDArray[np.float64]:
        """Returns the clock and what is counted."""
        counts = (self.env.now, self.version, self.num_taken, self.busy_s, self.summing_s, self.filling_s)
        return np.array([*counts, self.link_in.busy_s, self.link_out.busy_s])

    def _give_out(self) -> None:
        """As `CollectorProcesses._permit`: the collector with the fewest blocks under way is the next."""
        while self._num_given_steps < self._appetite.allowed(self.num_taken, self.version):
            able = [index for index, free in enumerate(self._free) if free]
            if not able:
                return
            index = min(able, key=lambda k: (self._under_way[k], self._num_given[k]))
            self._free[index] -= 1
            self._under_way[index] += 1
            self._num_given[index] += 1
            filled = self.env.event()
            self._given_out.append((index, filled))
            self._todo[index].put(filled)
            self._num_given_steps += self.costs.block_env_steps

    def _collector(self, index: int) -> Steps:
        node, costs = self._nodes[index], self.costs
        loaded = -1
        while True:
            filled = yield self._todo[index].get()
            yield from self._newest(node)
            began_s = self.env.now
            load_s = costs.load_s if node.version > loaded else 0.0
            loaded = node.version
            yield node.cores.work(load_s + costs.fill_s)
            self.filling_s += self.env.now - began_s
            self.env.process(self._deliver(index, filled, loaded))

    def _newest(self, node: Node) -> Steps:
        """Waits until the weights that are the newest now have come to a machine, once for all that work there."""
        wanted = self.version
        if node.cores is self._cores:
            node.version = wanted
        while node.version < wanted:
            if node.fetching is None:
                node.fetching, version = self.env.event(), self.version
                yield from self.link_out.send(self.costs.weight_bytes)
                node.version = version
                node.fetching.succeed()
                node.fetching = None
            else:
                yield node.fetching

    def _deliver(self, index: int, filled: simpy.Event, version: int) -> Steps:
        if self._nodes[index].cores is not self._cores:
            yield from self.link_in.send(self.costs.block_bytes)
        self._under_way[index] -= 1
        filled.succeed(version)
        if not self._news.triggered:
            self._news.succeed()

    def _in_turn(self) -> Iterator[tuple[int, int]]:
        """Yields collectors and the versions they acted with, of blocks whose turn it is."""
        while self._given_out and self._given_out[0][1].triggered:
            index, filled = self._given_out.popleft()
            version: int = filled.value  # pyright: ignore[reportAssignmentType]
            yield index, version

    def _note_what_is_learned(self) -> None:
        if isinstance(self._appetite, OnPolicy):
            left = self.num_taken - (self.version + 1) * self._appetite.steps_per_update
            while len(self._waiting) * self.costs.block_env_steps > left:
                self.lag_learned.append(self.version - self._waiting.popleft())

    def _learner(self) -> Steps:
        costs, speed = self.costs, self.machines.learner_speed
        while True:
            self._give_out()
            began_s = self.env.now
            for index, version in self._in_turn():
                yield self._cores.work(costs.insert_s / speed)
                self.lag_taken.append(self.version - version)
                self._waiting.append(version)
                self._free[index] += 1
                self.num_taken += costs.block_env_steps
            if self._appetite.can_learn(self.num_taken, self.version):
                self._note_what_is_learned()
                yield self._cores.work(costs.update_s / speed)
                learned_s = self.env.now
                self.busy_s += learned_s - began_s
                yield from self._group.meet()
                began_s = self.env.now
                self.summing_s += began_s - learned_s
                self.version += 1
                yield self._cores.work(costs.publish_s)
                self.busy_s += self.env.now - began_s
                continue
            self.busy_s += self.env.now - began_s
            self._give_out()
            if not (self._given_out and self._given_out[0][1].triggered):
                self._news = self.env.event()
                yield self._news


def simulate(
    costs: Costs, machines: Machines, appetite: OnPolicy | Replay, num_updates: int = 40, num_blocks: int = 40
) -> Found:
    """Returns what a run would be like once it is under way.

    Args:
        costs: of its parts, measured.
        machines: that it has.
        appetite: of the learner; of all learners together where there are several.
        num_updates: that are looked at, at least, after a quarter as many that are not.
        num_blocks: likewise.
    """
    env = simpy.Environment()
    if machines.num_learners > 1:
        costs = replace(costs, update_s=costs.update_s / machines.num_learners)
        appetite = _share_of(appetite, machines.num_learners)
    group = Group(env, machines, costs)
    ranks = [Rank(env, costs, machines, appetite, group) for _ in range(machines.num_learners)]
    first = ranks[0]
    _run_for(env, first, num_updates // 4, num_blocks // 4)
    begun = first.so_far()
    num_taken, num_learned = len(first.lag_taken), len(first.lag_learned)
    _run_for(env, first, num_updates, num_blocks)
    took_s, updates, steps, busy_s, summing_s, filling_s, in_s, out_s = first.so_far() - begun
    return Found(
        env_steps_per_s=machines.num_learners * steps / took_s,
        updates_per_s=updates / took_s,
        lag_taken=first.lag_taken[num_taken:],
        lag_learned=first.lag_learned[num_learned:],
        busy=busy_s / took_s,
        summing=summing_s / took_s,
        collectors_waiting=1.0 - filling_s / took_s / machines.num_collectors,
        link_in=in_s / took_s,
        link_out=out_s / took_s,
    )


def _share_of(appetite: OnPolicy | Replay, count: int) -> OnPolicy | Replay:
    if isinstance(appetite, OnPolicy):
        return replace(appetite, steps_per_update=appetite.steps_per_update // count)
    share = appetite.samples_per_update // count
    return replace(appetite, samples_per_update=share, start_steps=appetite.start_steps // count)


def _run_for(env: simpy.Environment, rank: Rank, num_updates: int, num_blocks: int) -> None:
    """Goes on for so many updates, and so many blocks, more; to the end of an update."""
    num_blocks += len(rank.lag_taken)
    num_updates += rank.version
    while rank.version < num_updates or len(rank.lag_taken) < num_blocks:
        env.step()
    version = rank.version
    while rank.version == version:
        env.step()
