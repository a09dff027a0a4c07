"""Messages between the processes of a run: small frozen objects through pipes, one pipe a process.

Bulk data never travels here: frames, floats and weights lie in `shared`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rulka.schedule import Moment


@dataclass(frozen=True)
class RaceEnd:
    """The result of one training race.

    Attributes:
        collector: index of the collector that drove it.
        version: of the weights that drove its end.
        is_finished: the finish was reached.
        is_full_race: it began at the start line, so that its time is comparable.
        time_ms: race time, of the finish where it was reached.
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
    """To a collector: permission to fill one block. The only way a collector may take env steps.

    Attributes:
        slot: which block of its shared memory.
        moment: how far the run has come, environment steps given out before this block among them; drives the
            schedules of exploration and of the engineered rewards, whose values hold for the whole block.
        version: of the weights that fill it; None for the newest there are when it is begun.
    """

    slot: int
    moment: Moment
    version: int | None = None


@dataclass(frozen=True)
class Show:
    """To the other half of a learner: observations of a block lie in a slot, to be taken."""

    slot: int


@dataclass(frozen=True)
class Permit:
    """To the other half of a learner: permission to learn. The only way it may make updates.

    Attributes:
        num_updates: how many it may have made altogether.
        moment: how far the run has come, for schedules.
    """

    num_updates: int
    moment: Moment


@dataclass(frozen=True)
class Seen:
    """From the other half of a learner: a slot was taken, and may be written again."""

    slot: int


@dataclass(frozen=True)
class Taught:
    """From the other half of a learner: what it has learned lies in its weights, of the version of this number.

    Attributes:
        num_updates: altogether.
        metrics: means since the last time.
    """

    num_updates: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class Stop:
    """To any process: end now."""


@dataclass(frozen=True)
class CollectorTimes:
    """How a collector spent the time of one block, seconds.

    Attributes:
        waiting_s: for permission to begin it.
        loading_s: taking over new weights.
        acting_s: choosing actions, or waiting for whoever chooses them.
        simulating_s: stepping the environment, drawing included.
    """

    waiting_s: float
    loading_s: float
    acting_s: float
    simulating_s: float


@dataclass(frozen=True)
class BlockFilled:
    """From a collector: a block is complete and belongs to the learner until its slot is given out again.

    Attributes:
        slot: which block.
        version: of the weights that acted in all of the block.
        races: races that ended in it.
        cars: [N, 4] float32 where each car is now: world position in metres, NaN where there is none, speed in m/s.
        spent: how the collector spent its time on it.
    """

    slot: int
    version: int
    races: tuple[RaceEnd, ...]
    cars: NDArray[np.float32]
    spent: CollectorTimes


@dataclass(frozen=True)
class Heartbeat:
    """From any process: still alive, and what it is doing."""

    activity: str


@dataclass(frozen=True)
class Failed:
    """From any process, just before it ends: what went wrong, as a traceback or, of a `UserError`, in its words."""

    problem: str


@dataclass(frozen=True)
class Request:
    """From a collector to central inference: its cars' observations lie in its request slot, and it waits for actions.

    Attributes:
        number: of the request, rising.
        moment: see `Fill`.
    """

    number: int
    moment: Moment


@dataclass(frozen=True)
class Response:
    """From central inference: the actions for a request lie in the slot.

    Attributes:
        number: of the request.
        version: of the weights that acted.
    """

    number: int
    version: int


ToWorker = Fill | Show | Permit | Stop
FromWorker = BlockFilled | Seen | Taught | Heartbeat | Failed
