"""Races of the built-in driver, in the form of the race dataset."""

from __future__ import annotations

import math

import numpy as np

from rulka.actions import TICK_MS, ActionTable
from rulka.datasets.races import Race
from rulka.simulator.demonstrations import DrivenRace


def race_of_driver(driven: DrivenRace, map_uid: str, table: ActionTable) -> Race:
    """Returns a driven race with its inputs tick by tick and a sample of the car at every decision.

    Args:
        driven: the race.
        map_uid: track it was driven on.
        table: what its actions mean.
    """
    num_ticks = math.ceil(int(driven.time_ms[-1]) / TICK_MS)
    controls = np.repeat(table.analog()[driven.actions], table.ticks_per_action, axis=0)[:num_ticks]
    return Race(
        race_id=f"driver-{driven.seed}-{driven.number:04d}",
        source="driver",
        file="",
        player="",
        map_uid=map_uid,
        race_time_ms=driven.race_time_ms,
        is_finished=driven.is_finished,
        checkpoint_times_ms=driven.gate_times_ms,
        seed=driven.seed,
        controls=controls,
        state_time_ms=driven.time_ms,
        state=driven.car_rows,
    )
