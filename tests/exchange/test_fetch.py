"""Fetching against a site on a real socket."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from rulka.exchange.fetch import fetch
from rulka.exchange.site import MAX_BYTES, BadAnswerError, MapQuery, NotThereError, Site, UnavailableError
from rulka.machine.errors import UserError

UID = "AbCdEfGhIjKlMnOpQrStUvWxYz0"
EVERYTHING = MapQuery(max_maps=100)


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_maps_come_page_by_page(site, client) -> None:
    for number in range(5):
        site.add_map(number, f"uid-{number}")
    assert [entry.map_id for entry in client.maps(EVERYTHING)] == [0, 1, 2, 3, 4]
    assert site.asked["/api/tracks"] == 3
    assert len(list(client.maps(MapQuery(max_maps=2)))) == 2
    assert site.asked["/api/tracks"] == 4  # the third page was not needed


def test_filters_hold_even_where_the_site_ignores_them(site, client) -> None:
    site.add_map(1, "a", AuthorTime=10_000)
    site.add_map(2, "b", TrackName="Some Road", Uploader={"Name": "OTHER"})
    site.add_map(3, "c", AuthorTime=None)

    def found(**query) -> list[int]:
        return [entry.map_id for entry in client.maps(MapQuery(max_maps=100, **query))]

    assert found(ids=(2,)) == [2]
    assert found(uids=("c",)) == [3]
    assert found(name="road") == [2]
    assert found(author="other") == [2]
    assert found(max_length_ms=20_000) == [1]


def test_ranks_are_numbers(site, client) -> None:
    """9 comes before 10, whether written as a number or as text; recordings without a rank come last, by time."""
    for replay_id, rank in ((7, "10"), (6, None), (1, "9"), (2, 2), (3, 100), (5, None)):
        site.add_replay(1, replay_id, rank)
    found = client.best_replays(1, 10)
    assert [(entry.replay_id, entry.rank) for entry in found] == [
        (2, 2), (1, 9), (7, 10), (3, 100), (5, None), (6, None),
    ]  # fmt: skip
    assert [entry.replay_id for entry in client.best_replays(1, 2)] == [2, 1]


def test_everything_is_fetched_once_also_where_a_rank_has_changed(site, client, tmp_path: Path) -> None:
    site.add_map(11, UID)
    for replay_id, rank in ((100, 1), (101, 10), (102, 2)):
        site.add_replay(11, replay_id, rank)
    report = fetch(client, EVERYTHING, tmp_path, num_replays=2)
    assert (report.num_maps, report.num_new, report.num_rejected) == (1, 3, 0)
    best = "11/00001_24100ms_100.Replay.Gbx"
    assert names(tmp_path) == [best, "11/00002_24102ms_102.Replay.Gbx", "11/11.Challenge.Gbx"]
    assert (tmp_path / best).read_bytes() == site.files["/recordgbx/100"]
    site.replays[11][0]["Position"] = 3
    mine = tmp_path / "11" / "11.Challenge.Gbx"
    mine.write_bytes(b"mine")
    report = fetch(client, EVERYTHING, tmp_path, num_replays=5)
    assert (report.num_new, report.num_known) == (1, 3)
    assert site.asked["/recordgbx/100"] == site.asked["/trackgbx/11"] == 1
    assert mine.read_bytes() == b"mine"


def test_a_file_is_whole_or_not_there(site, client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the second file is written."""
    site.add_map(11, UID)
    for replay_id in (100, 101):
        site.add_replay(11, replay_id, replay_id)
    write = Path.write_bytes

    def interrupted(path: Path, data: bytes) -> int:
        if "_101." not in path.name:  # a number alone may be that of the process, too
            return write(path, data)
        write(path, b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch(client, EVERYTHING, tmp_path, num_replays=5)
    assert names(tmp_path) == ["11/00100_24100ms_100.Replay.Gbx", "11/11.Challenge.Gbx"]
    assert fetch(client, EVERYTHING, tmp_path, num_replays=5).num_new == 1


def test_a_busy_site_is_waited_for_as_long_as_it_says(site, client, clock, tmp_path: Path) -> None:
    site.add_map(11, UID)
    site.retry_after = "7"
    site.failures["/trackgbx/11"] = [429, 503]
    assert fetch(client, EVERYTHING, tmp_path, num_replays=0).num_new == 1
    assert clock.slept.count(7.0) == 2
    assert site.asked["/trackgbx/11"] == 3


def test_waits_have_an_end(site, client, clock) -> None:
    """Without a word of the site they double, the first being none; none is longer than five minutes."""
    site.failures["/api/tracks"] = [500, 502, 504]
    assert list(client.maps(EVERYTHING)) == []
    assert clock.slept == [2, 4]
    for when in ("100000", "Fri, 01 Jan 2100 00:00:00 GMT"):
        site.failures["/api/tracks"], site.retry_after = [429], when
        assert list(client.maps(EVERYTHING)) == []
    assert clock.slept == [2, 4, 300, 300]
    site.failures["/api/tracks"] = [503] * 99
    num_before = site.asked["/api/tracks"]
    with pytest.raises(UnavailableError, match="503") as caught:
        list(client.maps(EVERYTHING))
    assert "goes on" in caught.value.hint
    assert site.asked["/api/tracks"] == num_before + 5


def test_requests_keep_their_distance(site, client, clock) -> None:
    for _ in range(3):
        list(client.maps(EVERYTHING))
    assert clock.slept == [1.0, 1.0]


def test_a_file_that_breaks_off_is_asked_for_again(site, client, tmp_path: Path) -> None:
    site.add_map(11, UID)
    site.failures["/trackgbx/11"] = ["cut"]
    assert fetch(client, EVERYTHING, tmp_path, num_replays=0).num_new == 1
    assert (tmp_path / "11/11.Challenge.Gbx").read_bytes() == site.files["/trackgbx/11"]
    site.failures["/trackgbx/11"] = ["cut"] * 9
    with pytest.raises(UnavailableError):
        client.file("/trackgbx/11")
    assert site.asked["/trackgbx/11"] == 2 + 5
    site.failures.clear()
    site.files["/trackgbx/11"] = bytes(MAX_BYTES + 1)
    with pytest.raises(BadAnswerError, match="more than"):
        client.file("/trackgbx/11")
    with pytest.raises(NotThereError):
        client.file("/recordgbx/1")
    assert site.asked["/recordgbx/1"] == 1, "what is not there is not asked for again"


def test_lies_are_put_aside(site, client, tmp_path: Path) -> None:
    """A recording of another map, a page of words, a map instead of a recording, and half of a recording."""
    site.add_map(11, UID)
    for replay_id in range(100, 105):
        site.add_replay(11, replay_id, replay_id)
    site.add_replay(11, 200, 200, uid="another-map")
    site.files["/recordgbx/100"] = b"<html>Come back later</html>"
    site.files["/recordgbx/101"] = site.files["/trackgbx/11"]
    site.files["/recordgbx/102"] = site.files["/recordgbx/103"][:-50]
    del site.files["/recordgbx/104"]
    report = fetch(client, EVERYTHING, tmp_path, num_replays=10)
    assert (report.num_new, report.num_rejected) == (2, 5)
    reasons = {line.split("_")[2].split(".")[0]: line for line in report.problems}
    assert "NotGbxError" in reasons["100"]
    assert "kind map" in reasons["101"]
    assert "TruncatedError" in reasons["102"]
    assert "404" in reasons["104"]
    assert "another-map" in reasons["200"]
    assert len(list((tmp_path / "rejected").iterdir())) == 4
    assert not [path for path in (tmp_path / "rejected").iterdir() if path.suffix.lower() == ".gbx"]
    assert fetch(client, EVERYTHING, tmp_path, num_replays=10).num_known == 6
    assert [site.asked[f"/recordgbx/{number}"] for number in (100, 101, 102, 103, 104, 200)] == [1, 1, 1, 1, 2, 1]
    report = fetch(client, EVERYTHING, tmp_path / "other", num_replays=0, environment="Island")
    assert "environment 'Stadium'" in report.problems[0]


def test_answers_that_are_none(site, client) -> None:
    for answer in (b"no json", b"[]", b'{"Results": 5}', b'{"Results": [{"UId": "x"}]}'):
        site.answer = lambda *_, answer=answer: (answer, "application/json")
        with pytest.raises(BadAnswerError):
            list(client.maps(EVERYTHING))


def test_a_site_that_pages_in_circles_ends(site, client) -> None:
    row = {"TrackId": 1, "UId": "x"}
    site.answer = lambda *_: (json.dumps({"Results": [row], "More": True}).encode(), "application/json")
    assert len(list(client.maps(MapQuery(max_maps=5)))) == 1
    assert site.asked["/api/tracks"] == 2


def test_nobody_there(clock) -> None:
    with socket.socket() as kept:  # nobody listens on it, and nobody else gets it
        kept.bind(("127.0.0.1", 0))
        client = Site(f"http://127.0.0.1:{kept.getsockname()[1]}", 1.0)
        with pytest.raises(UnavailableError, match="refused"):
            list(client.maps(EVERYTHING))
    with pytest.raises(UnavailableError, match="no address"):
        Site("tmnf.exchange", 1.0)


def test_what_cannot_be_asked() -> None:
    for requests_per_s in (0.0, 11.0, float("nan")):
        with pytest.raises(UserError, match="requests a second"):
            Site("https://tmnf.exchange", requests_per_s)
    for query in ({}, {"name": "A01"}, {"max_maps": 0}, {"ids": (1,), "max_maps": -1}):
        with pytest.raises(UserError, match="maps"):
            MapQuery(**query)
