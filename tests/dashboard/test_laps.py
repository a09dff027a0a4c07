"""Laps to replay: which are chosen, and that what is drawn is what was driven."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from rulka.dashboard import laps
from rulka.dashboard.laps import known_laps, replay, tracks_of
from rulka.datasets.formats.races import Race, RaceDataset, write_races
from rulka.machine.errors import UserError
from rulka.stages.folders import EVALUATION, LAPS, RACES
from rulka.tracks.track import Track
from tests.dashboard.conftest import lap_of


def write(folder: Path, track: Track, *races: Race) -> None:
    folder.mkdir(parents=True)
    write_races(folder, RaceDataset(races, track, ()))


def test_the_best_of_each_kind_are_chosen(project: Path, track: Track) -> None:
    names = ("a", "a", "b", "b", "$f00c")  # the last in red, as the game writes it
    people = [lap_of(track, f"p{k}", 10.0 + k, source="recording", player=name) for k, name in enumerate(names)]
    drivers = [lap_of(track, f"driver-1-{k:04d}", 12.0 + k) for k in range(5)]
    write(RACES, track, *people, lap_of(track, "d", 9.0, source="drive", player="c"), *drivers)
    write(EVALUATION / LAPS, track, lap_of(track, "agent-x", 20.0, player="Agent"), lap_of(track, "reference-x", 25.0))
    found = [(lap.kind, lap.label, lap.race_id) for lap in known_laps()]
    assert found == [
        ("reference", "unnamed driver", "reference-x"),
        ("agent", "Agent", "agent-x"),
        ("recording", "c", "p4"),
        ("recording", "b", "p3"),
        ("recording", "a", "p1"),
        ("recording", "c, in the simulator", "d"),
        ("demonstration", "built-in driver, race 4", "driver-1-0004"),
        ("demonstration", "built-in driver, race 3", "driver-1-0003"),
        ("demonstration", "built-in driver, race 2", "driver-1-0002"),
    ]
    assert tracks_of(known_laps()) == {track.uid: track.name}


def test_a_lap_is_drawn_where_it_was_driven(project: Path, track: Track) -> None:
    """30 m/s along the middle of 300 m: after 4 s 120 m, and the path ends with the first sample behind the finish."""
    write(RACES, track, lap_of(track, "driver-1-0000", 30.0))
    shown = replay("")
    assert shown["uid"] == track.uid
    path = shown["laps"][0]["path"]
    at = path["t"].index(4.0)
    assert path["along"][at] == pytest.approx(120.0, abs=0.6)
    left, right = (np.array(shown["track"][side][60]) for side in ("left", "right"))  # a point each 2 m
    np.testing.assert_allclose([path["x"][at], path["y"][at]], (left + right)[:2] / 2, atol=0.7)
    assert shown["laps"][0]["time_s"] == 10.0
    assert 10.0 <= path["t"][-1] <= 10.1
    assert {len(values) for values in path.values()} == {len(path["t"])}
    assert set(path["v"]) == {30.0}


def test_a_lap_is_drawn_to_its_end_and_thinned(project: Path, track: Track) -> None:
    dense = lap_of(track, "driver-1-0000", 30.0, sample_ms=10)
    state, time_ms = dense.state[:201], dense.state_time_ms[:201]
    write(RACES, track, replace(dense, is_finished=False, race_time_ms=None, state=state, state_time_ms=time_ms))
    lap = replay(track.uid)["laps"][0]
    assert (lap["time_s"], lap["path"]["t"][-1]) == (None, 2.0)
    assert np.diff(lap["path"]["t"]) == pytest.approx(laps.SAMPLE_MS / 1000.0)


def test_no_lap_and_damage_are_said(client: TestClient, track: Track) -> None:
    with pytest.raises(UserError, match="no lap to replay yet"):
        replay("")
    assert "There is no lap yet" in client.get("/replay").text
    write(RACES, track, lap_of(track, "driver-1-0000", 30.0))
    assert track.name in client.get("/replay").text
    assert len(client.get("/laps.json").json()["laps"]) == 1
    missing = client.get("/laps.json?track=nowhere")
    assert (missing.status_code, missing.json()["text"]) == (404, "there is no lap on 'nowhere'")
    with (RACES / "states.parquet").open("ab") as file:
        file.write(b"x")
    with pytest.raises(UserError, match="damaged"):
        replay(track.uid)
    damaged = client.get("/laps.json").json()
    assert "states.parquet is damaged" in damaged["text"]
    assert damaged["hint"] == "`dvc repro races` makes it.", "nothing was recorded that could be brought back"
    (RACES / "races.parquet").write_bytes(b"")
    assert "races.parquet is damaged" in client.get("/replay").text
