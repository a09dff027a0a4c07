"""What takeovers are worth: `python -m benchmarks.takeovers [--seeds N] [--minutes M] [--epochs E] [--json]`.

Needs the stages up to `pretrain`. For each seed, a clone of the demonstrations alone (no DAgger) drives on the main
track as on the driving page. The planner is the person: it takes over where the car comes near the edge of the road or
stands, and drives until it is safe. A clone with the same seed and as many gradient steps then learns from the
takeovers, too. Finish rates and mean times are of the same races of both, from other starts; `labels` counts decisions.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.harness import show
from rulka.contracts.actions import action_table
from rulka.contracts.observation import CAR
from rulka.dashboard.autopilot import Autopilot
from rulka.dashboard.driving import TICKS_PER_S
from rulka.datasets.drives import MAX_TICKS, Recorder, save_drive
from rulka.datasets.formats.races import load_main_track
from rulka.evaluation.contest import agent_driver
from rulka.evaluation.race import EvaluationRaces
from rulka.machine.device import CPU
from rulka.params import Params, read_params
from rulka.planner.planner import Planner
from rulka.stages.folders import ENCODER, FRAMES, METRICS_FILE, RACES
from tasks.clone import Folders, clone

NEAR_EDGE_M, SAFE_M = 1.0, 2.5
"""The person takes over nearer to the edge than the one, and lets go beyond the other."""
STANDING_MPS, STANDING_S = 3.0, 2.0
"""The person also takes over from a car that is slower than this, so long after the start."""
LEAST_S = 1.0
"""Nobody lets go sooner."""


def taught(params: Params, seed: int, epochs: int, out: Path, takeovers: Path | None) -> dict[str, Any]:
    """Trains a clone; returns its metrics."""
    changes = {"seed": seed, "epochs": epochs, "dagger": None, "takeovers": takeovers is not None}
    own = params.model_copy(update={"clone": params.clone.model_copy(update=changes)})
    clone(own, folders=Folders(RACES, FRAMES, ENCODER, out, out.parent / "runs", takeovers or out.parent))
    return json.loads((out / METRICS_FILE).read_text(encoding="utf-8"))


def take_over(params: Params, policy: Path, folder: Path, minutes: float, seed: int) -> tuple[float, float]:
    """Drives with a clone, of whom the planner takes over, and keeps these races in a folder.

    Returns:
        Minutes driven, and minutes of these by the person.
    """
    races = EvaluationRaces.of(load_main_track(RACES), params)
    track, table = races.track, action_table(params.actions.ticks_per_action)
    recorder = Recorder(track, params.simulator)
    agent = Autopilot(agent_driver(policy, races, CPU), recorder, races.settings)
    planner = Planner(track, params.simulator.physics, table, 1, params.races.driver, seed=seed)
    num_ticks = num_by_person = 0
    while num_ticks < minutes * 60 * TICKS_PER_S:
        recorder.begin()
        held_from: int | None = None
        ours = np.zeros(3, np.float32)
        while not recorder.has_ended and recorder.num_ticks < MAX_TICKS:
            theirs, tick = agent.controls(), recorder.num_ticks
            if tick % table.decision_ticks == 0:
                ours = table.analog()[planner.actions(recorder.car.save())[0]]
                zone = int(recorder.car.zone_index[0])
                edge_m = 0.5 * float(track.width_m[zone]) - abs(float(recorder.car.lateral_m[0]))
                stands = np.linalg.norm(recorder.car.cars[0, CAR["velocity"]]) < STANDING_MPS
                if held_from is None and (edge_m < NEAR_EDGE_M or (stands and tick > STANDING_S * TICKS_PER_S)):
                    held_from = tick
                elif held_from is not None and edge_m > SAFE_M and tick - held_from >= LEAST_S * TICKS_PER_S:
                    held_from = None
            recorder.tick(ours if held_from is not None else theirs, by_person=held_from is not None)
        race = recorder.race("planner")
        num_ticks += race.num_ticks
        if not recorder.has_person:
            break  # it needs nobody, and would drive the same race again
        num_by_person += race.num_ticks if race.by_person is None else int(np.count_nonzero(race.by_person))
        save_drive(folder, race, track, params.simulator)
    return num_ticks / TICKS_PER_S / 60, num_by_person / TICKS_PER_S / 60


def measure(params: Params, seed: int, epochs: int, minutes: float) -> dict[str, Any]:
    """Compares a clone with one that also learned from takeovers of it."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (takeovers := folder / "takeovers").mkdir()
        before = taught(params, seed, epochs, folder / "before", None)
        driven, by_person = take_over(params, folder / "before", takeovers, minutes, seed)
        after = taught(params, seed, epochs, folder / "after", takeovers)
    found = {"minutes driven": driven, "by the person": by_person, "labels": after["num_takeover_frames"]}
    for when, metrics in (("before", before), ("after", after)):
        found[f"finished {when}"] = metrics["driven"]["finish_rate"]
        found[f"mean time {when}, s"] = metrics["driven"]["mean_time_s"]
    return found


def main() -> None:
    """Prints the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="clones, with seeds from 1 on")
    parser.add_argument("--minutes", type=float, default=10.0, help="of driving, the person's and the clone's")
    parser.add_argument("--epochs", type=int, help="of each clone; if omitted, that of params.yaml")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args()
    params = read_params()
    epochs = options.epochs or params.clone.epochs
    seeds = range(1, options.seeds + 1)
    show({f"seed {seed}": measure(params, seed, epochs, options.minutes) for seed in seeds}, options.json)


if __name__ == "__main__":
    main()
