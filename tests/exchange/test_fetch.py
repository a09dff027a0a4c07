"""Fetching against a site on a real socket."""

from __future__ import annotations

import hashlib
import json
import socket
from pathlib import Path

import pytest

from rulka.exchange.client import BadAnswerError, Client, ExchangeError, NotThereError, UnavailableError
from rulka.exchange.command import check_wanted, run_fetch
from rulka.exchange.fetch import Wanted, fetch
from rulka.exchange.listing import MapQuery, best_replays, find_maps
from rulka.exchange.manifest import Manifest

UID = "AbCdEfGhIjKlMnOpQrStUvWxYz0"
EVERYTHING = MapQuery(max_maps=100)


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_maps_come_page_by_page(site, client) -> None:
    for number in range(5):
        site.add_map(number, f"uid-{number}")
    assert [entry.map_id for entry in find_maps(client.get_json, EVERYTHING)] == [0, 1, 2, 3, 4]
    assert site.asked["/api/tracks"] == 3
    assert len(list(find_maps(client.get_json, MapQuery(max_maps=2)))) == 2
    assert site.asked["/api/tracks"] == 4  # the third page was not needed


def test_filters_hold_even_where_the_site_ignores_them(site, client) -> None:
    site.add_map(1, "a", AuthorTime=10_000)
    site.add_map(2, "b", TrackName="Some Road", Uploader={"Name": "OTHER"})
    site.add_map(3, "c", AuthorTime=None)

    def found(**query) -> list[int]:
        return [entry.map_id for entry in find_maps(client.get_json, MapQuery(**query))]

    assert found(ids=(2,)) == [2]
    assert found(uids=("c",)) == [3]
    assert found(name="road") == [2]
    assert found(author="other") == [2]
    assert found(max_length_ms=20_000) == [1]
    assert found(min_length_ms=20_000) == [2]


def test_ranks_are_numbers(site, client) -> None:
    """9 comes before 10, whether written as a number or as text; recordings without a rank come last, by time."""
    for replay_id, rank in ((7, "10"), (6, None), (1, "9"), (2, 2), (3, 100), (5, None)):
        site.add_replay(1, replay_id, rank)
    found = best_replays(client.get_json, 1, 10)
    assert [(entry.replay_id, entry.rank) for entry in found] == [
        (2, 2), (1, 9), (7, 10), (3, 100), (5, None), (6, None),
    ]  # fmt: skip
    assert [entry.replay_id for entry in best_replays(client.get_json, 1, 2)] == [2, 1]


def test_everything_is_fetched_and_noted(site, client, tmp_path: Path) -> None:
    site.add_map(11, UID)
    site.add_replay(11, 100, 1)
    site.add_replay(11, 101, 10)
    site.add_replay(11, 102, 2)
    report = fetch(client, Wanted(EVERYTHING, 2, with_maps=True), tmp_path)
    assert (report.num_maps, report.num_new, report.num_rejected) == (1, 3, 0)
    assert names(tmp_path) == [
        "11/00001_24100ms_100.Replay.Gbx",
        "11/00002_24102ms_102.Replay.Gbx",
        "11/11.Challenge.Gbx",
        "fetched.jsonl",
    ]
    rows = [json.loads(line) for line in (tmp_path / "fetched.jsonl").read_text().splitlines()]
    for row in (row for row in rows if row["kind"] == "file"):
        assert row["sha256"] == hashlib.sha256((tmp_path / row["file"]).read_bytes()).hexdigest()
        assert row["map_uid"] == UID


def test_nothing_is_asked_for_twice(site, client, tmp_path: Path) -> None:
    site.add_map(11, UID)
    site.add_replay(11, 100, 1)
    wanted = Wanted(EVERYTHING, 5, with_maps=True)
    fetch(client, wanted, tmp_path)
    asked = site.asked.copy()
    report = fetch(client, wanted, tmp_path)
    assert site.asked == asked
    assert (report.num_new, report.num_known) == (0, 2)
    site.add_replay(11, 101, 2)
    assert fetch(client, wanted, tmp_path, is_fresh=True).num_new == 1
    assert site.asked["/recordgbx/100"] == 1


def test_an_interrupted_fetch_goes_on(site, client, tmp_path: Path) -> None:
    """Ctrl-C in the middle of the second file, and a manifest whose last line was cut off."""
    site.add_map(11, UID)
    for replay_id in (100, 101, 102):
        site.add_replay(11, replay_id, replay_id)
    wanted = Wanted(EVERYTHING, 5, with_maps=False)
    save = client._save

    def interrupted(path: str, target: Path) -> bytes:
        if path.endswith("101"):
            target.write_bytes(b"half")
            raise KeyboardInterrupt
        return save(path, target)

    client._save = interrupted
    with pytest.raises(KeyboardInterrupt):
        fetch(client, wanted, tmp_path)
    client._save = save
    with (tmp_path / "fetched.jsonl").open("a") as file:
        file.write('{"kind": "file", "item": "rep')
    report = fetch(client, wanted, tmp_path)
    assert (report.num_new, report.num_known) == (2, 1)
    assert site.asked["/recordgbx/100"] == 1
    assert site.asked["/api/tracks"] == 1
    assert not list(tmp_path.rglob("*.part"))
    assert len(Manifest(tmp_path).items) == 3


def test_a_busy_site_is_waited_for_as_long_as_it_says(site, client, clock, tmp_path: Path) -> None:
    site.add_map(11, UID)
    site.retry_after = "7"
    site.failures["/trackgbx/11"] = [429, 503]
    assert fetch(client, Wanted(EVERYTHING, 0, with_maps=True), tmp_path).num_new == 1
    assert clock.slept.count(7.0) == 2
    assert site.asked["/trackgbx/11"] == 3


def test_without_an_answer_waits_double(site, client, clock) -> None:
    site.failures["/api/tracks"] = [500, 502, 504]
    assert list(find_maps(client.get_json, EVERYTHING)) == []
    assert [wait for wait in clock.slept if wait >= 2] == [2, 4, 8]


def test_a_site_that_stays_busy_ends_the_fetch(site, client, clock) -> None:
    site.failures["/api/tracks"] = [503] * 99
    with pytest.raises(UnavailableError, match="503") as caught:
        client.get_json("/api/tracks", {})
    assert "goes on" in caught.value.hint
    assert site.asked["/api/tracks"] == clock.pace().max_tries


@pytest.mark.parametrize("when", ["100000", "Fri, 01 Jan 2100 00:00:00 GMT"])
def test_a_site_that_asks_for_too_long_a_wait_is_left_alone(when: str, site, client, clock) -> None:
    site.failures["/api/tracks"] = [429]
    site.retry_after = when
    with pytest.raises(UnavailableError) as caught:
        client.get_json("/api/tracks", {})
    assert "come back" in caught.value.hint
    assert site.asked["/api/tracks"] == 1
    assert clock.slept == []


def test_requests_keep_their_distance(site, client, clock) -> None:
    for _ in range(3):
        client.get_json("/api/tracks", {})
    assert clock.slept == [1.0, 1.0]


def test_a_file_that_breaks_off_is_asked_for_again(site, client, tmp_path: Path) -> None:
    site.add_map(11, UID)
    site.failures["/trackgbx/11"] = ["cut"]
    assert fetch(client, Wanted(EVERYTHING, 0, with_maps=True), tmp_path).num_new == 1
    assert (tmp_path / "11/11.Challenge.Gbx").read_bytes() == site.files["/trackgbx/11"]


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
    wanted = Wanted(EVERYTHING, 10, with_maps=False)
    report = fetch(client, wanted, tmp_path)
    assert (report.num_new, report.num_rejected) == (1, 5)
    reasons = {line.split("_")[2].split(".")[0]: line for line in report.problems}
    assert "NotGbxError" in reasons["100"]
    assert "kind map" in reasons["101"]
    assert "TruncatedError" in reasons["102"]
    assert "404" in reasons["104"]
    assert "another-map" in reasons["200"]
    assert len(list((tmp_path / "rejected").iterdir())) == 4
    assert not [path for path in (tmp_path / "rejected").iterdir() if path.suffix.lower() == ".gbx"]
    asked = site.asked.copy()
    assert fetch(client, wanted, tmp_path).num_known == 6
    assert site.asked == asked


def test_files_that_are_there_stay_as_they_are(site, client, tmp_path: Path) -> None:
    site.add_map(11, UID)
    (tmp_path / "11").mkdir()
    mine = tmp_path / "11" / "11.Challenge.Gbx"
    mine.write_bytes(b"mine")
    assert fetch(client, Wanted(EVERYTHING, 0, with_maps=True), tmp_path).num_known == 1
    assert mine.read_bytes() == b"mine"
    assert site.asked["/trackgbx/11"] == 0


def test_only_the_wanted_environment(site, client, tmp_path: Path) -> None:
    site.add_map(11, UID)
    report = fetch(client, Wanted(EVERYTHING, 0, with_maps=True, environment="Island"), tmp_path)
    assert "environment 'Stadium'" in report.problems[0]
    assert names(tmp_path) == ["fetched.jsonl", "rejected/11.Challenge.Gbx.rejected"]


@pytest.mark.parametrize("answer", [b"no json", b"[]", b'{"Results": 5}', b'{"Results": [{"UId": "x"}]}'])
def test_answers_that_are_none(answer: bytes, site, client) -> None:
    site.answer = lambda *_: (answer, "application/json")
    with pytest.raises(BadAnswerError):
        list(find_maps(client.get_json, EVERYTHING))


def test_a_site_that_pages_in_circles_ends(site, client) -> None:
    row = {"TrackId": 1, "UId": "x"}
    site.answer = lambda *_: (json.dumps({"Results": [row], "More": True}).encode(), "application/json")
    assert len(list(find_maps(client.get_json, MapQuery(max_maps=5)))) == 1
    assert site.asked["/api/tracks"] == 2


def test_nobody_there(clock) -> None:
    with socket.socket() as kept:  # nobody listens on it, and nobody else gets it
        kept.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{kept.getsockname()[1]}"
        with Client(address, clock.pace()) as client, pytest.raises(UnavailableError, match="ConnectError"):
            client.get_json("/api/tracks", {})
    with pytest.raises(UnavailableError, match="no address"):
        Client("tmnf.exchange", clock.pace())


def test_not_there_is_not_retried(site, client, tmp_path: Path) -> None:
    with pytest.raises(NotThereError):
        client.download("/recordgbx/1", tmp_path / "x")
    assert site.asked["/recordgbx/1"] == 1


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    (tmp_path / "fetched.jsonl").write_text("[1]\n")
    with pytest.raises(ExchangeError, match="manifest"):
        Manifest(tmp_path)


def test_the_command(site, clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add_map(11, UID)
    site.add_replay(11, 100, 1)
    monkeypatch.setenv("RULKA_EXCHANGE_URL", site.url)
    said: list[str] = []
    wanted = Wanted(MapQuery((11,)), 3, True)
    settings = {"url": None, "requests_per_s": 1.0, "refresh": False, "say": said.append, "pace": clock.pace()}
    listed = run_fetch(wanted, tmp_path, only_list=True, **settings)
    assert isinstance(listed, list)
    assert [entry.uid for entry in listed] == [UID]
    assert UID in said[-1]
    assert names(tmp_path) == []
    run_fetch(wanted, tmp_path, only_list=False, **settings)
    assert "1 maps: 2 files fetched" in said[-1]


@pytest.mark.parametrize(
    ("query", "num_replays", "with_maps"),
    [
        (MapQuery(), 3, True),
        (MapQuery((1,)), -1, True),
        (MapQuery((1,)), 0, False),
        (MapQuery((1,), min_length_ms=9000, max_length_ms=3000), 3, True),
        (MapQuery((1,), min_length_ms=-1), 3, True),
    ],
)
def test_wishes_that_make_no_sense(query: MapQuery, num_replays: int, with_maps: bool) -> None:
    from rulka.errors import UserError

    with pytest.raises(UserError):
        check_wanted(Wanted(query, num_replays, with_maps))
