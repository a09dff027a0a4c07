"""Records demonstrations of the built-in driver: whole races with all data that the `races` stage stores.

It drives by plans (`rulka.planner.planner`). Each driver of a field has a top pace of its own, so that a field varies
like people do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rulka.planner.params import DriverParams
from rulka.planner.planner import Planner
from rulka.simulator.race_end import RaceWatch
from rulka.simulator.race_settings import RaceSettings
from rulka.simulator.race_start import LATERAL, NUM_UNIFORMS, draw_starts
from rulka.simulator.simulator import Simulator
from rulka.tracks.track import Track


@dataclass(frozen=True)
class DrivenRace:
    """One race of the built-in driver.

    Attributes:
        seed: seed of the field of drivers; with `number` it identifies the race.
        number: index of the driver in the field.
        actions: [T] int64 action of each decision.
        car_rows: [T + 1, NUM_CAR_FIELDS] float32 `CAR` row before each decision and after the last.
        time_ms: [T + 1] int64 race time of each row.
        gate_times_ms: times of the gates passed, in order.
        race_time_ms: time at the finish, None if the race did not finish.
        progress_m: distance along the track at the end.
    """

    seed: int
    number: int
    actions: NDArray[np.int64]
    car_rows: NDArray[np.float32]
    time_ms: NDArray[np.int64]
    gate_times_ms: tuple[int, ...]
    race_time_ms: int | None
    progress_m: float

    @property
    def is_finished(self) -> bool:
        """True if the race reached the finish."""
        return self.race_time_ms is not None


def record_demonstrations(
    track: Track,
    settings: RaceSettings,
    driver: DriverParams,
    num_races: int,
    seed: int,
    on_decision: Callable[[int], None] = lambda _running: None,
) -> list[DrivenRace]:
    """Runs the races of a field of drivers as one batch, one car each.

    Args:
        track: the track.
        settings: race settings.
        driver: plans and top paces of the field.
        num_races: number of drivers.
        seed: seeds plans, paces and start positions.
        on_decision: called after every decision with the number of cars still racing.

    Returns:
        One race per driver, finished or not.
    """
    cars = Simulator(track, num_races, settings.simulator, settings.table)
    uniforms = np.full((num_races, NUM_UNIFORMS), 0.5)  # in the middle
    generators = [np.random.default_rng([seed, k]) for k in range(num_races)]
    uniforms[:, LATERAL] = [generator.random() for generator in generators]
    cars.reset(np.ones(num_races, np.bool_), *draw_starts(uniforms, settings, track.length_m))
    pilot = Planner(track, settings.simulator.physics, settings.table, num_races, driver, seed=seed)
    pilot.plans.most_pace[:] = [generator.uniform(driver.pace_low, driver.pace) for generator in generators]
    actions, rows, times = [], [cars.cars.copy()], [cars.time_ms.copy()]
    lasts = np.zeros(num_races, np.int64)
    watch = RaceWatch(settings, track.length_m, cars.along_m)
    while watch.is_racing.any():
        actions.append(pilot.actions(cars.save()))
        cars.step(actions[-1])
        rows.append(cars.cars.copy())
        times.append(cars.time_ms.copy())
        lasts[watch.is_racing] = len(actions)
        on_decision(int(watch.is_racing.sum()))
        watch.update(cars.is_finished, cars.is_off_track, cars.along_m, cars.time_ms)
    passed = [cars.gate_time_ms[n, : cars.gate_index[n]].tolist() for n in range(num_races)]
    return [
        DrivenRace(
            seed=seed,
            number=n,
            actions=np.array([step[n] for step in actions[:last]], np.int64),
            car_rows=np.array([row[n] for row in rows[: last + 1]], np.float32),
            time_ms=np.array([time[n] for time in times[: last + 1]], np.int64),
            gate_times_ms=tuple(passed[n]),
            race_time_ms=passed[n][-1] if cars.is_finished[n] else None,
            progress_m=float(cars.along_m[n]),
        )
        for n, last in enumerate(lasts.tolist())
    ]
