"""The reference lap as a race that others are measured against."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from rulka.evaluation.race import RaceRules
from rulka.evaluation.results import RaceResult
from rulka.reference.lap import Reference, StaleReferenceError, load_reference, reference_path, shipped_lap
from rulka.simulator.simulator import Simulator


def find_reference_race(races_dir: Path, rules: RaceRules) -> RaceResult | None:
    """Drives the reference lap of the dataset, or the one shipped for a track of the campaign.

    A stale lap is reported on standard error and left out: physics or decisions were changed, or the lap was found on a
    processor whose arithmetic differs in the last bits.

    Returns:
        The race, None where there is no reference lap.

    Raises:
        ReferenceLapError: if a lap is damaged.
    """
    for path in (reference_path(races_dir, rules.track.uid), shipped_lap(rules.track)):
        if path is None or not path.is_file():
            continue
        try:
            return reference_race(load_reference(path, rules.track, rules.simulator, rules.table), rules)
        except StaleReferenceError as error:
            sys.stderr.write(f"not compared with a reference lap: {error}\n")
    return None


def reference_race(reference: Reference, rules: RaceRules) -> RaceResult:
    """Drives a reference lap, sampled like any other race."""
    cars = Simulator(rules.track, 1, rules.simulator, rules.table)
    rows, times, along = [cars.cars[0].copy()], [0], [0.0]
    for action in reference.actions:
        cars.step(np.array([action]))
        rows.append(cars.cars[0].copy())
        times.append(int(cars.time_ms[0]))
        along.append(float(cars.along_m[0]))
    controls = rules.table.analog()[reference.actions]
    return RaceResult(
        seed=-1,
        is_finished=True,
        end="finished",
        time_ms=reference.time_ms,
        progress_m=rules.track.length_m,
        gate_times_ms=cars.gate_time_ms[0].copy(),
        sample_ms=np.array(times, np.int64),
        cars=np.array(rows, np.float32),
        along_m=np.array(along, np.float32),
        controls=np.concatenate([controls, controls[-1:]]),
    )
