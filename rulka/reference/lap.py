"""Reference lap files: input scripts with a header that states track, physics, time and driver.

A lap is only valid on its own track and physics. Loading it drives it again and rejects it unless it finishes at
exactly the stated millisecond.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.actions import ActionTable
from rulka.machine.disk import check_readable
from rulka.machine.errors import UserError
from rulka.recordings.input_script import MAX_TICKS, InputScriptError, read_comments, read_script, write_script
from rulka.simulator.params import SimulatorParams
from rulka.simulator.simulator import Simulator
from rulka.tracks.campaign import UID_PREFIX
from rulka.tracks.track import Track, geometry_hash

LAPS_DIR = Path(__file__).parent / "laps"
"""Laps of the tracks of the campaign, `<slug>.txt`, and of the board's held-out ones, `<uid>.txt`."""
NUMBERS = ("time_ms", "ticks_per_action", "seed", "budget")
TEXTS = ("track", "geometry", "physics", "driver")
SEARCH = "search"


class ReferenceLapError(UserError):
    """A reference lap is missing or unreadable."""


class StaleReferenceError(ReferenceLapError):
    """A reference lap is for another track, other physics or another decision rate, or misses its stated time."""


@dataclass(frozen=True)
class Reference:
    """A reference lap.

    Attributes:
        track_uid: UID of its track.
        geometry: hash of that track.
        physics: hash of the physics.
        ticks_per_action: ticks of 10 ms in a decision.
        time_ms: time at the finish.
        seed, budget: of the search; 0 if an agent drove it.
        actions: [T] decisions.
        searched_ms: lap times of all searches with this budget, each with its own seed; their spread indicates how
            close the fastest is to the optimum.
        driver: "search", or the agent that was faster.
    """

    track_uid: str
    geometry: str
    physics: str
    ticks_per_action: int
    time_ms: int
    seed: int
    budget: int
    actions: NDArray[np.int64]
    searched_ms: tuple[int, ...] = ()
    driver: str = SEARCH


def physics_hash(simulator: SimulatorParams) -> str:
    """Returns a hash of the physics parameters."""
    text = json.dumps(simulator.physics.model_dump(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def drive(
    track: Track, simulator: SimulatorParams, table: ActionTable, actions: NDArray[np.int64]
) -> tuple[int | None, float]:
    """Drives decisions [T] from the start; returns the finish time or None, and the metres along the track."""
    cars = Simulator(track, 1, simulator, table)
    for action in actions:
        cars.step(np.array([action]))
    return int(cars.gate_time_ms[0, -1]) if cars.is_finished[0] else None, float(cars.along_m[0])


def store_reference(reference: Reference, table: ActionTable, path: Path) -> None:
    """Writes a reference lap to a file."""
    controls = np.repeat(table.analog()[reference.actions], table.decision_ticks, axis=0)
    facts = {
        "track": reference.track_uid,
        "geometry": reference.geometry,
        "physics": reference.physics,
        **{name: getattr(reference, name) for name in NUMBERS},
        "decisions": len(reference.actions),
        "driver": reference.driver,
    }
    if reference.searched_ms:
        facts["searches"] = " ".join(map(str, reference.searched_ms))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(write_script(controls, tuple(f"{name}: {value}" for name, value in facts.items())), "utf-8")


def load_reference(path: Path, track: Track, simulator: SimulatorParams, table: ActionTable) -> Reference:
    """Reads a reference lap and verifies it by driving it.

    Raises:
        ReferenceLapError: if the file is missing or not a reference lap.
        StaleReferenceError: if it is for another track, other physics or another decision rate, or does not finish at
            its stated time.
    """
    reference = read_reference(path, table)
    stated = {
        f"another track than {track.uid!r}": (reference.track_uid, track.uid),
        "another shape of the track": (reference.geometry, geometry_hash(track)),
        "other physics": (reference.physics, physics_hash(simulator)),
        "another decision rate": (reference.ticks_per_action, table.decision_ticks),
    }
    hint = f"`rulka track reference TRACK --out {path}` finds a new one."
    for what, (found, wanted) in stated.items():
        if found != wanted:
            message = f"the reference lap {path} is stale: it was driven on {what} ({found}, here {wanted})"
            raise StaleReferenceError(message, hint=hint)
    time_ms, _ = drive(track, simulator, table, reference.actions)
    if time_ms != reference.time_ms:
        ends = "does not reach the finish" if time_ms is None else f"needs {time_ms} ms"
        message = f"the reference lap {path} is stale: it states {reference.time_ms} ms, but here it {ends}"
        raise StaleReferenceError(message, hint=hint)
    return reference


def read_reference(path: Path, table: ActionTable) -> Reference:
    """Reads a reference lap without driving it; actions are indices into `table`.

    Raises:
        ReferenceLapError: if the file is missing or not a reference lap.
    """
    try:
        text = check_readable(path).read_text("utf-8")
        facts = dict(comment.split(": ", 1) for comment in read_comments(text) if ": " in comment)
        numbers = {name: int(facts[name]) for name in NUMBERS}
        texts = {name: facts[name] for name in TEXTS}
        num_decisions = int(facts["decisions"])
        searched_ms = tuple(map(int, facts.get("searches", "").split()))  # missing for an agent's lap
        num_ticks = num_decisions * numbers["ticks_per_action"]
        if not (num_decisions > 0 and 0 < num_ticks <= MAX_TICKS):
            message = f"{path} is no reference lap: it states {num_decisions} decisions of {num_ticks} ticks in all"
            raise ReferenceLapError(message)
        controls = read_script(text, num_ticks)
    except ReferenceLapError:
        raise
    except (OSError, UnicodeDecodeError, KeyError, InputScriptError, ValueError) as error:
        raise ReferenceLapError(f"{path} is no reference lap: {error}") from error
    ticks = controls.reshape(num_decisions, numbers["ticks_per_action"], 3)
    if (ticks != ticks[:, :1]).any() or not np.isin(ticks, (-1.0, 0.0, 1.0)).all():
        raise ReferenceLapError(f"{path} is no reference lap: its keys change within a decision")
    steer, gas, brake = ticks[:, 0].T
    return Reference(
        track_uid=texts["track"],
        geometry=texts["geometry"],
        physics=texts["physics"],
        actions=table.index_of(gas, brake, steer, 0.5),
        searched_ms=searched_ms,
        driver=texts["driver"],
        **numbers,
    )


def shipped_lap(track: Track) -> Path | None:
    """Returns the path of the lap in this package that belongs to a track of the campaign or the board, or None."""
    found = {path.stem: path for path in LAPS_DIR.glob("*.txt")}
    return found.get(track.uid.removeprefix(UID_PREFIX))
