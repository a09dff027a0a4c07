"""Exports races as game replays with the map embedded, which the game or an external validator can re-drive."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rulka.contracts.actions import TICK_MS
from rulka.datasets.formats.races import Race
from rulka.datasets.from_recordings import find_recordings
from rulka.machine.errors import UserError
from rulka.recordings.errors import RecordingError
from rulka.recordings.reader import read_header, read_recording
from rulka.recordings.stream import Ident
from rulka.recordings.writer import replay_bytes
from rulka.stages.folders import RECORDINGS, utf8_path
from rulka.stages.outputs import new_file

ENVIRONMENT = "Stadium"
"""Agents and the built-in driver only know its car."""


class GameMap(NamedTuple):
    """A map of the game.

    Attributes:
        ident: its UID, environment and author.
        data: bytes of its file.
    """

    ident: Ident
    data: bytes


def find_map(uid: str, file: Path | None = None) -> GameMap:
    """Finds a map by UID, in a recording that embeds it or in its own file.

    Args:
        uid: UID of the map.
        file: the recording or map file; None searches `data/recordings`.

    Raises:
        UserError: if it is not found, or its environment is not Stadium.
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
    raise UserError(message, hint=hint)


def _map_in(path: Path, uid: str) -> GameMap:
    """Returns the map in a file; its data is empty if the UID differs or the file only names the map."""
    header, data = read_header(path), b""
    if header.map_uid == uid and header.kind != "unknown":
        data = path.read_bytes() if header.kind == "map" else read_recording(path).map_data
    return GameMap(Ident(header.map_uid, header.environment, header.map_author), data)


def write_replay(path: Path, race: Race, game_map: GameMap) -> None:
    """Writes a finished race as a `.Replay.Gbx`, replacing an existing file.

    Gate times are rounded up to the game's ticks of 10 ms: in the simulator, gates are passed between ticks.

    Raises:
        UserError: if the race was not finished, a pedal is partially pressed, or the file cannot be written.
    """
    if race.race_time_ms is None:
        message = "the race was not finished, and the game keeps no inputs of such a race"
        raise UserError(message, hint="Train the agent until it finishes, or name a race that did.")
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
