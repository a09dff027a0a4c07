"""Races as input scripts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rulka.datasets.export import NoSuchRaceError, export_race
from rulka.datasets.races import Race
from rulka.errors import UserError
from rulka.input_script import read_script
from rulka.observation import CAR, NUM_CAR_FIELDS


def make_race(race_id: str = "driver-1-0001", *, period_ms: int = 50) -> Race:
    """Straight ahead at 20 m/s for 3.03 s, keys pressed at random."""
    rng = np.random.default_rng(0)
    time_ms = np.arange(0, 3001 + period_ms, period_ms)
    state = np.zeros((len(time_ms), NUM_CAR_FIELDS), np.float32)
    state[:, CAR["position"]] = np.stack([0 * time_ms, 0 * time_ms + 9, 0.02 * time_ms], axis=1)
    state[:, CAR["rotation"]] = np.eye(3).reshape(-1)
    state[:, CAR["velocity"]] = [0, 0, 20]
    state[:, CAR["has_contact"]], state[:, CAR["material"]], state[:, CAR["damper"]] = 1, 16, 0.05
    state[:, CAR["rpm"]] = 4380
    keys = rng.integers(0, 2, (61, 3)).repeat(5, axis=0)[:303]
    controls = np.stack([keys[:, 0] - rng.integers(0, 2, 61).repeat(5)[:303], keys[:, 1], keys[:, 2]], axis=1)
    return Race(
        race_id, "driver", "", "Nick", "map-a", 3030, True, (1500, 3030), 1, controls.astype(np.float32), time_ms, state
    )


def set_races(monkeypatch: pytest.MonkeyPatch, *races: Race) -> None:
    monkeypatch.setattr("rulka.datasets.export.load_races", lambda _: type("Set", (), {"races": races}))


def test_a_race_is_found_by_the_beginning_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_races(monkeypatch, *map(make_race, ("driver-1-0001", "driver-1-0010", "driver-1-001")))
    assert export_race(tmp_path, "driver-1-0001", tmp_path / "a.txt").race_id == "driver-1-0001"
    assert export_race(tmp_path, "driver-1-001", tmp_path / "b.txt").race_id == "driver-1-001"
    with pytest.raises(NoSuchRaceError, match="more than one"):
        export_race(tmp_path, "driver", tmp_path / "c.txt")
    with pytest.raises(NoSuchRaceError, match="no race") as caught:
        export_race(tmp_path, "other", tmp_path / "c.txt")
    assert "driver-1-0010" in caught.value.hint


def test_a_script_reads_back_to_the_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    race, out = make_race(), tmp_path / "race.txt"
    set_races(monkeypatch, race)
    assert export_race(tmp_path, "driver", out) is race
    text = out.read_text()
    assert text.startswith("# race: driver-1-0001")
    np.testing.assert_array_equal(read_script(text, race.num_ticks), race.controls)
    with pytest.raises(UserError, match="exists"):
        export_race(tmp_path, "driver", out)
    with pytest.raises(UserError, match="cannot be written"):
        export_race(tmp_path, "driver", tmp_path / "nowhere" / "x.txt")
