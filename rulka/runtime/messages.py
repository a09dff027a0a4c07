"""Messages between the processes of a run: small frozen objects through pipes, one pipe per process.

Bulk data never travels here: frames, floats and weights are in `shared` memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.schedule import Moment


@dataclass(frozen=True)
class RaceEnd:
    """The result of one training race.

    Attributes:
        collector: index of the collector that drove it.
        version: of the weights that drove at its end.
        is_finished: the finish was reached.
        is_full_race: it began at the start line, so its time is comparable.
        time_ms: race time, at the finish if it was reached.
        progress_m: furthest progress along the centreline.
        total_reward: undiscounted sum of rewards.
    """

    collector: int
    version: int
    is_finished: bool
    is_full_race: bool
    time_ms: int
    progress_m: float
    total_reward: float


@dataclass(frozen=True)
class Fill:
    """To a collector: permission to fill one block. A collector takes no env steps without one.

    Attributes:
        slot: index of the block in its shared memory.
        moment: the run's progress, including environment steps permitted before this block; drives the
            schedules of exploration and of the engineered rewards, whose values hold for the whole block.
        version: of the weights to act with; None for the newest when the block begins.
    """

    slot: int
    moment: Moment
    version: int | None = None


@dataclass(frozen=True)
class NewBlock:
    """To the policy process: a slot holds the observations of a block, to be inserted."""

    slot: int


@dataclass(frozen=True)
class Permit:
    """To the policy process: permission to learn. It makes no update without one.

    Attributes:
        num_updates: total number of updates that it may have made.
        moment: the run's progress, for schedules.
    """

    num_updates: int
    moment: Moment


@dataclass(frozen=True)
class SlotRead:
    """From the policy process: a slot was read and may be overwritten."""

    slot: int


@dataclass(frozen=True)
class HalfUpdated:
    """From the policy process: its weights are published, with `num_updates` as their version.

    Attributes:
        num_updates: total number so far.
        metrics: means since the last message.
    """

    num_updates: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class Stop:
    """To any process: end now."""


@dataclass(frozen=True)
class CollectorTimes:
    """Time that a collector spent on one block, in seconds.

    Attributes:
        waiting_s: for permission to begin it.
        loading_s: loading new weights.
        acting_s: choosing actions, or waiting for central inference.
        simulating_s: stepping the environment, rendering included.
    """

    waiting_s: float
    loading_s: float
    acting_s: float
    simulating_s: float


@dataclass(frozen=True)
class BlockFilled:
    """From a collector: a block is complete and belongs to the learner until its slot is permitted again.

    Attributes:
        slot: index of the block.
        version: of the weights that acted; the oldest if they changed within the block.
        races: races that ended in it.
        cars: [N, 4] float32 current positions: in world metres, NaN if there is none, and speed in m/s.
        spent: time that the collector spent on it.
    """

    slot: int
    version: int
    races: tuple[RaceEnd, ...]
    cars: NDArray[np.float32]
    spent: CollectorTimes


@dataclass(frozen=True)
class Heartbeat:
    """From any process: it is alive, and its current activity."""

    activity: str


@dataclass(frozen=True)
class Failed:
    """From any process, just before it ends: the traceback of its error, or the message of a `UserError`."""

    problem: str


@dataclass(frozen=True)
class Request:
    """From a collector to central inference: observations are in its request slot, and it waits for actions.

    Attributes:
        number: of the request, rising.
        moment: see `Fill`.
    """

    number: int
    moment: Moment


@dataclass(frozen=True)
class Response:
    """From central inference: the actions for a request are in the slot.

    Attributes:
        number: of the request.
        version: of the weights that acted.
    """

    number: int
    version: int


ToWorker = Fill | NewBlock | Permit | Stop
FromWorker = BlockFilled | SlotRead | HalfUpdated | Heartbeat | Failed
