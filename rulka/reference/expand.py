"""Steps saved cars, however many, one decision on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rulka.actions import ActionTable
from rulka.observation import CAR
from rulka.params import SimulatorParams
from rulka.simulator.simulator import Simulator
from rulka.tracks.track import Track

BATCH_SIZES = (512, 256, 128, 64, 32, 16, 8, 4, 2, 1)
"""Cars stepped in one call; the smallest that holds all is used."""

Floats = NDArray[np.float64]
Actions = NDArray[np.int64]
OnSpent = Callable[[int, int], None]
"""Called with the decisions simulated since the last call and the lap time now, in ms."""


@dataclass(frozen=True)
class Children:
    """Cars after one more decision.

    Attributes:
        states: [N, S] rows of `Simulator.save`.
        along_m: [N] metres along the line.
        speed_mps: [N] speed.
        finish_ms: [N] time at the finish, 0 where it is not reached.
        is_running: [N] still on the road and not finished.
    """

    states: Floats
    along_m: Floats
    speed_mps: Floats
    finish_ms: Actions
    is_running: NDArray[np.bool_]


class Expander:
    """Steps rows of saved states on one track.

    Attributes:
        start: [1, S] saved state at the start.
        spent: decisions simulated so far.
    """

    def __init__(self, track: Track, simulator: SimulatorParams, table: ActionTable) -> None:
        self._cars = {size: Simulator(track, size, simulator, table) for size in BATCH_SIZES}
        self.start = self._cars[1].save()
        self.spent = 0

    def expand(self, states: Floats, actions: Actions) -> Children:
        """Drives saved cars [N, S] for one decision with an action [N] each; N up to the largest batch."""
        count = len(states)
        cars = self._cars[min(size for size in BATCH_SIZES if size >= count)]
        padding = np.zeros(cars.num_cars - count, np.int64)
        cars.restore(np.concatenate([states, states[padding]]))
        cars.step(np.concatenate([actions, actions[padding]]))
        self.spent += count
        return Children(
            states=cars.save()[:count],
            along_m=cars.along_m[:count].copy(),
            speed_mps=np.linalg.norm(cars.cars[:count, CAR["velocity"]].astype(np.float64), axis=1),
            finish_ms=np.where(cars.is_finished, cars.gate_time_ms[:, -1], 0)[:count],
            is_running=~(cars.is_finished | cars.is_off_track)[:count],
        )
