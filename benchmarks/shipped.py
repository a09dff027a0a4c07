"""What the shipped driver can do: `python -m benchmarks.shipped [DRIVER] [--ship] [--roads N] [--maps FOLDER]`.

Races it once on each of N generated roads that no training has seen, in equal parts of five difficulties and four
widths, with the planner beside it, then ten times on the map of every recording of a StadiumCar in a folder. Of roads:
the share finished, and the median of its time over the planner's where both finish. `--ship` first writes DRIVER, the
folder of a cloned policy, to the package, with weights in half precision.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pandas import DataFrame

from benchmarks.harness import show
from rulka.agents.load import SHIPPED, SHIPPED_AGENT, GreedyPolicy, load_policy
from rulka.contracts.artifacts import load_artifact, save_artifact
from rulka.datasets.from_recordings import find_recordings, read_race_dataset
from rulka.evaluation.race import EvaluationRaces, racing, side_by_side
from rulka.machine.progress import Progress
from rulka.operations.kept import find_agent
from rulka.params import Params, reference_params
from rulka.planner.demonstrations import record_demonstrations
from rulka.planner.params import DriverParams
from rulka.tracks.campaign import campaign_track
from rulka.tracks.difficulty import DIFFICULTIES, VARIED
from rulka.tracks.find import chosen_tracks
from rulka.tracks.params import GeneratedTracksParams
from rulka.tracks.track import Track

KINDS, WIDTHS_M = (*DIFFICULTIES, VARIED), (10.0, 13.0, 16.0, 20.0)
SEED = 700_000
"""First seed of the roads: trainings take those below 60,000."""
TOGETHER = 25
"""Roads on which cars race side by side."""
MAP_RACES = 10
NO_MAIN = campaign_track("copper-oval")
"""Of a set that does not name it."""
PLANNER = DriverParams(pace=2.0, pace_low=2.0)
SINGLE = ("float_mean", "float_std")
"""Tensors in single precision: half has no place for the largest."""


def ship(folder: Path) -> None:
    """Writes a cloned policy to the package."""
    artifact = load_artifact(folder, "policy")
    halved = {name: tensor if name in SINGLE else tensor.half() for name, tensor in artifact.tensors.items()}
    save_artifact(SHIPPED_AGENT, replace(artifact, tensors=halved))


def times_s(driver: GreedyPolicy, tracks: list[Track], num_races: int, params: Params) -> list[list[float | None]]:
    """Races from the line, on all tracks side by side; returns the time of each race, None if it did not finish."""
    evaluate = params.evaluate.model_copy(update={"num_races": num_races})
    together = [EvaluationRaces.of(track, params, evaluate) for track in tracks]
    driven = side_by_side(driver, [racing(races, driver.actions) for races in together])
    return [[result.time_s for result in results] for results in driven]


def planned_s(track: Track, params: Params) -> float | None:
    """Returns the time of the planner, which races at sight."""
    settings = EvaluationRaces.of(track, params).settings
    (race,) = record_demonstrations(track, settings, PLANNER, 1, SEED)
    return None if race.race_time_ms is None else race.race_time_ms / 1000.0


def on_roads(driver: GreedyPolicy, count: int, params: Params) -> dict[str, Any]:
    """Returns figures of generated roads: of all, by difficulty and by width."""
    rows = list[tuple[str, float, float | None, float | None]]()
    num_each = max(1, count // (len(KINDS) * len(WIDTHS_M)))
    with Progress("roads", num_each * len(KINDS) * len(WIDTHS_M), "roads", stream=sys.stderr) as bar:
        for kind in KINDS:
            for number, width_m in enumerate(WIDTHS_M):
                seed = SEED + number * num_each
                shape = {"seed": seed, "length_m": 800.0, "width_m": width_m, "difficulty": kind, "count": num_each}
                tracks = chosen_tracks([GeneratedTracksParams(**shape)], main=NO_MAIN)
                for first in range(0, num_each, TOGETHER):
                    some = tracks[first : first + TOGETHER]
                    for track, (time_s,) in zip(some, times_s(driver, some, 1, params), strict=True):
                        rows.append((kind, width_m, time_s, planned_s(track, params)))
                        bar.advance(1)
    table = DataFrame(rows, columns=["kind", "width", "ours", "planned"]).astype({"ours": float, "planned": float})
    found = {"all": _figures(table)}
    found |= {str(kind): _figures(group) for kind, group in table.groupby("kind", sort=False)}
    return found | {f"{width:g} m wide": _figures(group) for width, group in table.groupby("width")}


def _figures(roads: DataFrame) -> dict[str, float]:
    return {
        "roads": len(roads),
        "finished": float(roads.ours.notna().mean()),
        "the planner finished": float(roads.planned.notna().mean()),
        "time over the planner's": float((roads.ours / roads.planned).median()),
    }


def on_maps(driver: GreedyPolicy, folder: Path, params: Params) -> dict[str, Any]:
    """Returns figures of the maps of recordings, by name."""
    recorded = read_race_dataset(folder, find_recordings(folder), None, params.races.select, lambda: None)
    maps = [recorded.main_track, *recorded.other_tracks]
    found = dict[str, Any]()
    for track, times in zip(maps, times_s(driver, maps, MAP_RACES, params), strict=True):
        finished = [time_s for time_s in times if time_s is not None]
        recorded_ms = [race.race_time_ms for race in recorded.races if race.map_uid == track.uid]
        best_s = min(time_ms for time_ms in recorded_ms if time_ms is not None) / 1000.0
        found[track.name] = {"finished": len(finished) / len(times), "fastest recording, s": best_s}
        if finished:
            found[track.name]["fastest, s"] = min(finished)
    return {"finished": sum(each["finished"] for each in found.values()) / len(found), **found}


def main() -> None:
    """Prints the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("driver", nargs="?", default=SHIPPED, help="name or folder of an agent or a cloned policy")
    parser.add_argument("--ship", action="store_true", help="write it to the package first")
    parser.add_argument("--roads", type=int, default=1000, help="generated roads, one of each kind at least; 0: none")
    parser.add_argument("--maps", type=Path, help="folder of recordings, to race on their maps as well")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args()
    if options.ship:
        ship(Path(options.driver))
    torch.set_num_threads(1)  # for few cars, threads wait for each other longer than they compute
    driver = load_policy(find_agent(SHIPPED if options.ship else options.driver))
    params = reference_params().model_copy(update={"observation": driver.observation})
    found = {"roads": on_roads(driver, options.roads, params)} if options.roads else {}
    if options.maps:
        found["maps"] = on_maps(driver, options.maps, params)
    show(found, options.json)


if __name__ == "__main__":
    main()
