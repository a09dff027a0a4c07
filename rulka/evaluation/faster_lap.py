"""An agent that is faster than the reference lap: its lap becomes the reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from rulka.device import CPU
from rulka.errors import UserError
from rulka.evaluation.contest import agent_driver
from rulka.evaluation.race import EvaluationRaces, find_reference_race, race
from rulka.folders import TRACKS
from rulka.outputs import new_file
from rulka.params import Params
from rulka.reference.command import FoundLap, describe
from rulka.reference.lap import Reference, geometry_hash, load_reference, physics_hash, shipped_lap, store_reference
from rulka.tracks.find import find_track


class NoFasterLapError(UserError):
    """An agent whose lap cannot be the reference."""


def take_over(
    name: str, agent_dir: Path, params: Params, races_dir: Path, out: Path | None, say: Callable[[str], None]
) -> FoundLap:
    """Lets an agent drive twice from where reference laps start, and writes its lap if it is faster than the one there.

    Args:
        name: a slug of the campaign, a track file, or the UID of a track in `data/races`.
        agent_dir: its artifact.
        params: physics, and when races end.
        races_dir: the race dataset, for the reference laps of its tracks.
        out: file to write; None: that of the campaign, or `<uid>.reference.txt` here for other tracks.
        say: takes what happened.

    Raises:
        NoFasterLapError: if it does not finish, drives another time or otherwise the second time, or is not faster.
        UserError: if the agent or the track is missing or damaged.
    """
    track = find_track(name, TRACKS)
    straight = {"num_races": 1, "start_lateral_m": 0.0, "start_heading_deg": 0.0}
    evaluate = params.evaluate.model_copy(update=straight)
    races = EvaluationRaces.of(track, params.observation, params.actions, params.simulator, evaluate, params.race_end)
    driver = agent_driver(agent_dir, races, CPU)
    first, second = (race(driver.policy, races)[0] for _ in range(2))
    known = find_reference_race(races_dir, races)
    is_of_single_keys = getattr(driver.policy, "actions", races.settings.table).space == races.settings.table.space
    if first.time_ms is None or not is_of_single_keys:
        message = f"the lap of {driver.label} on {track.name!r} cannot be a reference: "
        message += f"it {first.end}" if first.time_ms is None else "its decisions are chunks of actions, or numbers"
        raise NoFasterLapError(message)
    if first.time_ms != second.time_ms or not np.array_equal(first.controls, second.controls):
        message = f"{driver.label} drove {first.time_ms} ms on {track.name!r}, and not the same lap again"
        raise NoFasterLapError(message)
    if known is not None and known.time_ms is not None and known.time_ms <= first.time_ms:
        message = f"{driver.label} drove {first.time_ms} ms on {track.name!r}, and the reference lap {known.time_ms} ms"
        raise NoFasterLapError(message)
    steer, gas, brake = first.controls[:-1].T  # the last sample is after the last decision
    lap = Reference(
        track_uid=track.uid,
        geometry=geometry_hash(track),
        physics=physics_hash(params.simulator),
        ticks_per_action=races.settings.table.ticks_per_action,
        time_ms=first.time_ms,
        seed=0,
        budget=0,
        actions=races.settings.table.index_of(gas, brake, steer, 0.5),
        driver=driver.label,
    )
    path = out or shipped_lap(track) or Path(f"{track.uid}.reference.txt")
    with new_file(path) as beside:
        store_reference(lap, races.settings.table, beside)
        load_reference(beside, track, params.simulator, races.settings.table)
    say(describe(track, lap))
    say(f"written to {path}")
    return FoundLap(track, lap, path)
