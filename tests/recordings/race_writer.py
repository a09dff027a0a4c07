"""Races as `.Replay.Gbx` files that the game would write: without a map, as their tracks are none of the game."""

from __future__ import annotations

from pathlib import Path

import pytest

from rulka.datasets.formats.races import Race
from rulka.datasets.replay import GameMap, write_replay
from rulka.recordings import writer
from rulka.recordings.stream import Ident


def write_race(path: Path, race: Race) -> None:
    """Writes a finished race under the name of the game: Rulka's own is none that physics are fitted to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "PROGRAM", "TmForever.2011-02-21")
        write_replay(path, race, GameMap(Ident(race.map_uid, "Stadium", ""), b""))
