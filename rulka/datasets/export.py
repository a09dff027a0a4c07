"""Exports races as TMInterface input scripts."""

from __future__ import annotations

from pathlib import Path

from rulka.datasets.formats.races import Race, load_races
from rulka.machine.errors import UserError
from rulka.recordings.input_script import write_script
from rulka.stages.outputs import new_file

PROGRAM = "rulka"
NUM_SHOWN = 20


class NoSuchRaceError(UserError):
    """No race of the dataset, or more than one, matches a name."""


def export_race(folder: Path, race_id: str, out: Path) -> Race:
    """Writes the inputs of a race of the dataset as a script.

    Args:
        folder: `data/races`.
        race_id: id of the race, or an unambiguous prefix of it.
        out: file to write, which must not exist.

    Returns:
        The race that was written.

    Raises:
        NoSuchRaceError: if no race, or more than one, matches.
        InputScriptError: if a script cannot hold its inputs.
        UserError: if the file exists or cannot be written.
    """
    race = find_race(folder, race_id)
    write_race(race, out)
    return race


def find_race(folder: Path, race_id: str) -> Race:
    """Finds a race of a dataset by its id or an unambiguous prefix of it.

    Raises:
        NoSuchRaceError: if no race, or more than one, matches.
        UserError: if there is no complete race dataset.
    """
    races = load_races(folder).races
    found = [race for race in races if race.race_id == race_id] or [
        race for race in races if race.race_id.startswith(race_id)
    ]
    if len(found) != 1:
        known = ", ".join(race.race_id for race in (found or races)[:NUM_SHOWN])
        message = f"{'more than one race begins' if found else 'no race begins'} with {race_id!r}"
        raise NoSuchRaceError(message, hint=f"There are {known}{', ...' if len(found or races) > NUM_SHOWN else ''}.")
    return found[0]


def write_race(race: Race, out: Path) -> None:
    """Writes the inputs of a race as a script with a header about the race; never overwrites a file.

    Raises:
        InputScriptError: if a script cannot hold its inputs.
        UserError: if the file exists or cannot be written.
    """
    time = "not finished" if race.race_time_ms is None else f"{race.race_time_ms} ms"
    player = " ".join(race.player.split()) or PROGRAM  # a nickname can hold line breaks
    head = (f"race: {race.race_id}", f"map: {race.map_uid}", f"player: {player}", f"time: {time}")
    with new_file(out, may_replace=False) as beside:
        beside.write_text(write_script(race.controls, head), encoding="utf-8")
