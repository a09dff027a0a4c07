"""Races a driver on the board's tracks and makes an entry of it: an agent, a function, a model, or a list of inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from rulka.agents.load import CLONING, load_policy
from rulka.board.entry import MAX_CONTROLS, Card, Entry, EntryError, Sees, drive
from rulka.board.rules import MAX_TICKS, NUM_STARTS, rules
from rulka.contracts.actions import Held, action_table
from rulka.contracts.artifacts import META_FILE, read_meta
from rulka.contracts.observation_params import ObservationParams, Part
from rulka.contracts.problems import problems_of
from rulka.datasets.drives import SUFFIX as DRIVE_SUFFIX
from rulka.datasets.drives import read_drive
from rulka.evaluation.contest import Driver, race_all
from rulka.evaluation.external_policy import find_guest, is_guest
from rulka.machine.errors import UserError
from rulka.operations.kept import find_agent, name_of
from rulka.reference.lap import read_reference

STEPS = np.array([127.0, 7.0, 7.0], np.float32)
"""Steps of steer, gas and brake to which continuous decisions are rounded: at most 14 bits, so that a file is small."""

Inputs = Mapping[str, NDArray[np.float32]]
"""[T, 3] steer, gas and brake of every tick, by UID of the track."""
_Races = list[NDArray[np.float32]]
"""[D, K, 3] controls of the decisions of each race, starts of a track after one another."""


def enter(name: str, facts: Mapping[str, Any], stream: TextIO | None = None) -> Entry:
    """Races a driver from all starts.

    Args:
        name: of an agent, see `rulka.operations.kept.find_agent`; MODULE:NAME or an ONNX file, see
            `rulka.evaluation.external_policy`; or a folder of drive files and reference laps, whose inputs are played.
        facts: fields of the card, which take precedence over what the driver itself tells.
        stream: stream for progress; None is standard output.

    Raises:
        UserError: if there is no such driver, or a fact is out of range.
    """
    folder = Path(name)
    lists = inputs_in(folder) if folder.is_dir() and not (folder / META_FILE).exists() else {}
    if lists:
        card = _card({"name": folder.name, "algorithm": "list of inputs", **facts})
        none = np.zeros((1, 3), np.float32)
        each = [lists.get(uid, none)[:MAX_TICKS, None] for uid in rules().uids]
        return _entry(card, 1, [inputs for inputs in each for _ in range(NUM_STARTS)])
    if is_guest(name):
        policy = find_guest(name)
        known = {"name": policy.label.replace(":", ".")}
    else:
        folder = find_agent(name)
        policy, known = load_policy(folder), _told(folder)
    known["sees"] = sees(policy.observation)
    card = _card({**known, **facts})
    driver = Driver("agent", card.name, _Rounded(policy) if policy.actions.is_analog else policy)
    raced: _Races = []
    for races in rules().races:
        (contestant,) = race_all([driver], races, [], stream=stream, label=races.track.name).contestants
        for each in contestant.races:
            held = each.controls[:, None] if each.chunk_controls is None else each.chunk_controls
            raced.append(held[:-1])
    return _entry(card, policy.actions.ticks_per_action, raced)


def _card(facts: Mapping[str, Any]) -> Card:
    try:
        return Card.model_validate(facts)
    except ValidationError as error:
        raise UserError("; ".join(problems_of(error, Card))) from error


def sees(observation: ObservationParams) -> Sees:
    """Returns the class of an observation."""
    shown = {*get_args(Part)} - {*observation.withheld}
    if shown == {"image"}:
        return "images alone"
    return "everything" if "waypoints" in shown else "no waypoints"


def inputs_in(folder: Path) -> Inputs:
    """Reads the drive files and reference laps in a folder that are of the board's tracks; the fastest of each counts.

    Raises:
        UserError: if a file is damaged, or none is of the board's tracks though there are some.
    """
    found: dict[str, NDArray[np.float32]] = {}
    files = sorted([*folder.glob(f"*{DRIVE_SUFFIX}"), *folder.glob("*.txt")])
    for path in files:
        if path.suffix == ".txt":
            table = action_table(5)
            lap = read_reference(path, table)
            uid, controls = lap.track_uid, np.repeat(table.analog()[lap.actions], lap.ticks_per_action, axis=0)
        else:
            race, track = read_drive(path)
            uid, controls = track.uid, race.controls
        if uid in rules().uids and (uid not in found or len(controls) < len(found[uid])):
            found[uid] = controls
    if files and not found:
        raise UserError(f"no file in {folder} is of a track of the board: {', '.join(rules().uids)}")
    return found


class _Rounded:
    """A policy with its continuous decisions rounded to `STEPS`."""

    def __init__(self, policy: Any) -> None:
        self.observation, self.actions, self._policy = policy.observation, policy.actions, policy

    def __call__(self, image: NDArray[np.uint8], floats: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.rint(self._policy(image, floats) * STEPS) / STEPS


def _told(folder: Path) -> dict[str, Any]:
    """Returns what the metadata of an agent or a cloned policy tell for the card."""
    meta = read_meta(folder)
    training = meta["provenance"].get("training", {})
    return {
        "name": name_of(folder),
        "algorithm": meta["config"].get("algorithm", CLONING),
        "decisions": training.get("env_steps") or None,
        "trained_on": training.get("tracks", ()),
    }


def _entry(card: Card, ticks_per_action: Held, races: Sequence[NDArray[np.float32]]) -> Entry:
    """Drives races [D, K, 3] by their inputs alone, as whoever verifies the entry will."""
    decided = np.concatenate(races)
    controls, rows = np.unique(decided.reshape(-1, 3), axis=0, return_inverse=True)
    if len(controls) > MAX_CONTROLS:
        raise EntryError(f"the races have {len(controls):,} different controls, {MAX_CONTROLS:,} is the most")
    shape = rules().starts.shape[:2]
    entry = Entry(
        card,
        ticks_per_action,
        controls,
        np.array([len(race) for race in races]).reshape(shape),
        rows.reshape(decided.shape[:2]).astype(np.uint16),
        np.zeros(shape, np.int64),
        np.zeros(shape, np.uint32),
    )
    times_ms, ends = drive(entry)
    return replace(entry, times_ms=times_ms, ends=ends)
