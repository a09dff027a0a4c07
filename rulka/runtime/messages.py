"""What collectors and the learner say to each other: small frozen objects through one pipe for each collector.

Bulk data never travels here: frames and floats lie in `shared_blocks`, weights in `weights`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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
        env_steps: environment steps given out before this block, by all collectors; drives the schedules of
            exploration and of the engineered rewards, whose values hold for the whole block.
    """

    slot: int
    env_steps: int


@dataclass(frozen=True)
class Stop:
    """To a collector: end now."""


@dataclass(frozen=True)
class BlockFilled:
    """From a collector: a block is complete and belongs to the learner until its slot is given out again.

    Attributes:
        slot: which block.
        version: of the weights that acted in all of the block.
        races: races that ended in it.
        cars: [N, 2] float32 where each car is now: furthest metres along the track, and speed in m/s.
        filling_s: time spent simulating and acting.
        waiting_s: time spent waiting for permission before it.
    """

    slot: int
    version: int
    races: tuple[RaceEnd, ...]
    cars: NDArray[np.float32]
    filling_s: float
    waiting_s: float


@dataclass(frozen=True)
class Heartbeat:
    """From a collector: still alive, and what it is doing."""

    activity: str


@dataclass(frozen=True)
class Failed:
    """From a collector: its last words."""

    traceback: str


ToCollector = Fill | Stop
FromCollector = BlockFilled | Heartbeat | Failed
