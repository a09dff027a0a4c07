"""How far keys lead a car astray from analog steering: `python -m benchmarks.analog_labels --recordings DIR`.

Simulated cars set out every 200 ms with the state of a recording (`rulka.calibration.windows`). One drives with the
recorded steering, another with the keys that a label makes of it; how far apart they are after a second and after two
says what the label loses. Median and 90th percentile, over the stretches of which a fifth or more of the first half
second is steered by less than full. Recordings of the simulated car alone, map by map.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rulka.actions import TICK_MS, ActionTable, action_table
from rulka.calibration.gather import gather
from rulka.calibration.windows import HORIZONS_MS, Windows, cut_windows, simulate
from rulka.datasets.races import Race
from rulka.params import Params, read_params
from rulka.recordings.controls import label_decisions, tapped_steer

LEAST_PARTIAL = 0.2
SHOWN_MS = (1000, 2000)
QUANTILES = (0.5, 0.9)
HOLDOUT = 0.34

Keys = Callable[[Race], NDArray[np.float32]]
"""Returns the steering [T] of a race's labels."""


def keys_by_name(params: Params) -> dict[str, Keys]:
    """Returns what is compared."""
    dead_zone, table = params.capture.steer_dead_zone, action_table(params.actions.ticks_per_action)
    return {
        "any steering is a full key": lambda race: _beyond(race, dead_zone),
        "more than half is a full key": lambda race: _beyond(race, 0.5),
        "taps": lambda race: tapped_steer(race.controls[:, 0], dead_zone),
        "taps, the longest action of a decision": lambda race: _decided(race, table, dead_zone),
    }


def _beyond(race: Race, least: float) -> NDArray[np.float32]:
    steer = race.controls[:, 0]
    return np.where(np.abs(steer) > least, np.sign(steer), np.float32(0))


def _decided(race: Race, table: ActionTable, dead_zone: float) -> NDArray[np.float32]:
    first = np.arange(0, race.num_ticks, table.ticks_per_action)
    action = label_decisions(race.controls, table, first, dead_zone).action
    return np.repeat(table.analog()[action, 0], table.ticks_per_action)[: race.num_ticks]


def apart_m(windows: Windows, races: list[Race], keys: Keys, params: Params) -> NDArray[np.float64]:
    """Returns [W, H] metres between the cars of windows that were cut from races."""
    relabelled = [replace(race, controls=race.controls.copy()) for race in races]
    for race in relabelled:
        race.controls[:, 0] = keys(race)
    labels = replace(windows, controls=cut_windows(windows.track, relabelled, 0).controls)
    recorded, by_labels = (simulate(each, params.simulator.physics, HORIZONS_MS)[0] for each in (windows, labels))
    return np.linalg.norm(recorded - by_labels, axis=2)[:, [HORIZONS_MS.index(ms) for ms in SHOWN_MS]]


def measure(folder: Path, params: Params) -> dict[str, dict[str, Any]]:
    """Returns by map how many stretches there are, and by label the quantiles [H, Q] of the distance in metres."""
    dead_zone, num_ticks = params.capture.steer_dead_zone, HORIZONS_MS[0] // TICK_MS
    material = gather(folder, HOLDOUT, lambda: None)
    found: dict[str, dict[str, Any]] = {}
    for windows in material.windows:
        uid = windows.track.uid
        races = [drive.race for drive in material.drives if drive.race.map_uid == uid]
        steer = np.abs(windows.controls[:, :num_ticks, 0])
        is_partial = ((steer > dead_zone) & (steer < 1)).mean(axis=1) >= LEAST_PARTIAL
        if is_partial.any():
            found[uid] = {"stretches": int(is_partial.sum())} | {
                name: np.quantile(apart_m(windows, races, keys, params)[is_partial], QUANTILES, axis=0).T.tolist()
                for name, keys in keys_by_name(params).items()
            }
    return found


def main() -> None:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recordings", type=Path, required=True, help="folder of Gbx files")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    params = read_params()
    found = measure(arguments.recordings, params)
    if arguments.json:
        print(json.dumps(found))
        return
    for uid, values in found.items():
        print(f"{uid}, {values.pop('stretches')} stretches: metres after 1 s (median, 90 %) and after 2 s\n")
        for name, quantiles in values.items():
            print(f"  {name:40s} {np.array(quantiles).round(2).tolist()}")
        print()


if __name__ == "__main__":
    main()
