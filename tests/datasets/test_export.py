"""Races as input scripts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rulka.datasets.export import NoSuchRaceError, export_race
from rulka.datasets.formats.races import Race
from rulka.machine.errors import UserError
from rulka.recordings.input_script import read_script
from tests.datasets.conftest import random_race


def with_keys(race: Race) -> Race:
    return replace(race, controls=np.rint(race.controls).clip([-1, 0, 0], 1))


def set_races(monkeypatch: pytest.MonkeyPatch, *races: Race) -> None:
    monkeypatch.setattr("rulka.datasets.export.load_races", lambda _: type("Set", (), {"races": races}))


def test_a_race_is_found_by_the_beginning_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    races = [random_race(name, 20) for name in ("driver-1-0001", "driver-1-0010", "driver-1-001")]
    set_races(monkeypatch, *map(with_keys, races))
    assert export_race(tmp_path, "driver-1-0001", tmp_path / "a.txt").race_id == "driver-1-0001"
    assert export_race(tmp_path, "driver-1-001", tmp_path / "b.txt").race_id == "driver-1-001"
    with pytest.raises(NoSuchRaceError, match="more than one"):
        export_race(tmp_path, "driver", tmp_path / "c.txt")
    with pytest.raises(NoSuchRaceError, match="no race") as caught:
        export_race(tmp_path, "other", tmp_path / "c.txt")
    assert "driver-1-0010" in caught.value.hint


def test_a_script_reads_back_to_the_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    race, out = replace(with_keys(random_race("driver-1-0001", 303)), player="$f00Ni\nck\n"), tmp_path / "race.txt"
    set_races(monkeypatch, race)
    assert export_race(tmp_path, "driver", out) is race
    text = out.read_text()
    assert text.startswith("# race: driver-1-0001")
    assert "# player: $f00Ni ck\n" in text
    np.testing.assert_array_equal(read_script(text, race.num_ticks), race.controls)
    with pytest.raises(UserError, match="exists"):
        export_race(tmp_path, "driver", out)
    with pytest.raises(UserError, match="cannot be written"):
        export_race(tmp_path, "driver", tmp_path / "nowhere" / "x.txt")
