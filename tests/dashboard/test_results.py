"""Nights on their page."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

from starlette.testclient import TestClient

from rulka.dashboard.history import nights, record_file
from rulka.operations.history import ALL_TRACKS, NightRow, append_history
from rulka.stages.folders import NIGHTS

ROW = NightRow(
    night="2026-11-20",
    raced_at="2026-11-20T03:04:00+00:00",
    seed=1,
    role="latest",
    agent="ppo-1f3a9c20",
    uid="all-1",
    track=ALL_TRACKS,
    trained_on=False,
    races=40,
    finished=37,
    best_time_s=None,
    median_time_s=None,
    pace_mps=44.0,
    pace_low_mps=43.0,
    pace_high_mps=45.0,
    before_mps=None,
    is_worse=False,
)


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split()).replace("\N{NO-BREAK SPACE}", " ")


def write_nights(count: int) -> None:
    for k in range(count):
        night = (date(2026, 11, 20) + timedelta(k)).isoformat()
        together = replace(ROW, night=night, raced_at=f"{night}T03:04:00+00:00", pace_mps=44.0 + k, is_worse=k == 1)
        single = replace(together, uid="tiny", track="Tiny <b>", trained_on=True, best_time_s=12.5, is_worse=False)
        append_history([together, single])


def test_nights_are_listed_newest_first(client: TestClient, project: Path) -> None:
    assert "No night was raced yet" in client.get("/nights").text
    write_nights(3)
    assert [night[0].night for night in nights()] == ["2026-11-22", "2026-11-21", "2026-11-20"]
    html = client.get("/nights").text
    said = text_of(html)
    assert "2026-11-21 latest ppo-1f3a9c20 37 of 40 45.00 m/s 43.00–45.00 – worse" in said  # noqa: RUF001
    assert said.count("worse ") == 2  # of that night, and in the words below the chart
    assert "Tiny &lt;b&gt;" in html
    assert "12.50 s" in said


def test_paces_are_in_time_and_all_tracks_come_first(client: TestClient, project: Path) -> None:
    """A night that was repeated counts as it was the last time."""
    append_history([replace(ROW, pace_mps=1.0, raced_at="2026-11-20T01:00:00+00:00")])
    write_nights(2)
    found = client.get("/nights.json").json()
    assert list(found["tracks"]) == ["all-1", "tiny"]
    rows = [(row["uid"], row["pace_mps"]) for row in found["rows"]]
    assert rows == [("all-1", 44.0), ("tiny", 44.0), ("all-1", 45.0), ("tiny", 45.0)]


def test_films_of_records_and_a_damaged_history(client: TestClient, project: Path) -> None:
    write_nights(1)
    (NIGHTS / "records").mkdir()
    (NIGHTS / "records/tiny.mp4").write_bytes(b"film")
    assert 'src="/records/tiny"' in client.get("/nights").text
    assert client.get("/records/tiny").content == b"film"
    assert client.get("/records/all-1").status_code == 404
    assert record_file("../history") is None
    for path in ("a" * 4200, "%00", "a" * 4200 + "/b"):
        for place in ("/", "/records/", "/evaluation/", "/static/", "/run.json?run=", "/laps.json?track="):
            assert client.get(place + path).status_code == 404
    with (NIGHTS / "history.csv").open("a") as file:
        file.write("x,y\n")
    said = client.get("/nights").text
    assert "history.csv, line 4, is damaged" in said
    assert "dvc checkout data/nights.dvc" in said
    assert client.get("/nights.json").status_code == 404
    (NIGHTS / "history.csv").unlink()
    append_history([replace(ROW, pace_mps=1e308)])
    assert "history.csv, line 2, is damaged: pace_mps" in client.get("/nights").text
    for content in (b"\xff", b"a\x00b", b"night\n"):
        (NIGHTS / "history.csv").write_bytes(content)
        assert client.get("/nights.json").status_code == 404
