"""Races as replays of the game, which embed the map: what an outside judge, and the game, can drive again."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rulka.actions import TICK_MS
from rulka.datasets.from_recordings import find_recordings
from rulka.datasets.races import Race
from rulka.errors import UserError
from rulka.folders import RECORDINGS, utf8_path
from rulka.outputs import new_file
from rulka.recordings.errors import RecordingError
from rulka.recordings.reader import read_header, read_recording
from rulka.recordings.stream import Ident
from rulka.recordings.writer import UnwritableRaceError, replay_bytes

ENVIRONMENT = "Stadium"
"""Agents and the built-in driver know its car alone."""


class NoMapError(UserError):
    """No file holds the map that a race was driven on, as of races on generated tracks, which are none of the game."""


class GameMap(NamedTuple):
    """A map of the game.

    Attributes:
        ident: its UID, environment and author.
        data: bytes of its file.
    """

    ident: Ident
    data: bytes


def find_map(uid: str, file: Path | None = None) -> GameMap:
    """Returns the map of a UID, from a recording that embeds it or from its own file.

    Args:
        uid: of the map.
        file: the recording or map file; None looks through `data/recordings`.

    Raises:
        NoMapError: if it is not there, or of another environment than Stadium.
        RecordingError: if the named file is damaged.
    """
    for path in find_recordings(RECORDINGS) if file is None else [file]:
        try:
            found = _map_in(path, uid)
        except RecordingError:
            if file is not None:
                raise
            continue
        if found.data and found.ident.collection == ENVIRONMENT:
            return found
    where = utf8_path(file) if file else f"a file in {RECORDINGS.as_posix()}"
    message = f"the race was driven on {uid!r}, and no such {ENVIRONMENT} map is in {where}"
    hint = "Generated tracks are no maps of the game. Of a map, put a replay there, or name it or its file by --map."
    raise NoMapError(message, hint=hint)


def _map_in(path: Path, uid: str) -> GameMap:
    """Returns the map in a file, with no data where it has another UID or only its name is there."""
    header, data = read_header(path), b""
    if header.map_uid == uid and header.kind != "unknown":
        data = path.read_bytes() if header.kind == "map" else read_recording(path).map_data
    return GameMap(Ident(header.map_uid, header.environment, header.map_author), data)


def write_replay(path: Path, race: Race, game_map: GameMap) -> None:
    """Writes a finished race as a `.Replay.Gbx`, in place of an older one.

    The game's clock goes in ticks of 10 ms, the simulator's gates are passed between them: times are rounded up.

    Raises:
        UnwritableRaceError: if the race was not finished, or a pedal is pressed in part.
        OutputError: if the file cannot be written.
    """
    if race.race_time_ms is None:
        message = "the race was not finished, and the game keeps no inputs of such a race"
        raise UnwritableRaceError(message, hint="Train the agent until it finishes, or name a race that did.")
    data = replay_bytes(
        map_ident=game_map.ident,
        map_data=game_map.data,
        player=race.player,
        checkpoint_times_ms=[-(-time_ms // TICK_MS) * TICK_MS for time_ms in race.checkpoint_times_ms],
        controls=race.controls,
        state_time_ms=race.state_time_ms,
        state=race.state,
    )
    with new_file(path) as beside:
        beside.write_bytes(data)
