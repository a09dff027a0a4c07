"""The live page: what it shows of a run, and that it is served to this machine."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from rulka.runtime.live import LIVE_FILE, TRACK_FILE, LiveCars
from rulka.runtime.metrics_log import METRICS_FILE
from rulka.runtime.page.server import PortError, make_server, open_port
from rulka.runtime.page.snapshot import MAX_POINTS, NoRunError, RunReader, find_run, track_outline
from rulka.tracks.generate import generate_track


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with two reports and four cars on a generated track."""
    folder = tmp_path / "train" / "ppo-1"
    folder.mkdir(parents=True)
    lines = [{"env_steps": 64, "loss": 2.0, "best_time_s": None}, {"env_steps": 128, "loss": 1.0, "best_time_s": 13.5}]
    (folder / METRICS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"env_steps": 19')
    generate_track(1, 300.0, 16.0, 0.1, 100.0).save(folder / TRACK_FILE)
    cars = LiveCars(folder)
    cars.add(1, np.array([[300.0, 30.0], [0.0, 0.0]], np.float32))
    cars.add(0, np.array([[10.0, 5.0], [20.0, 6.0]], np.float32))
    cars.write()
    return folder


def test_snapshot_by_hand(run: Path) -> None:
    track = generate_track(1, 300.0, 16.0, 0.1, 100.0)
    shown = RunReader(run, track).snapshot()
    assert shown["latest"] == {"env_steps": 128, "loss": 1.0, "best_time_s": 13.5}
    assert shown["curves"] == {"loss": [[64, 2.0], [128, 1.0]], "best_time_s": [[128, 13.5]]}
    assert shown["is_running"]
    places = [track.centre_m[round(along * 2)][[0, 2]] for along in (10.0, 20.0, 300.0, 0.0)]
    np.testing.assert_allclose([car[:2] for car in shown["cars"]], places, atol=0.01)
    assert [car[2] for car in shown["cars"]] == [5.0, 6.0, 30.0, 0.0]


def test_a_run_without_reports_yet_shows_nothing(tmp_path: Path) -> None:
    shown = RunReader(tmp_path, None).snapshot()
    assert (shown["latest"], shown["curves"], shown["cars"], shown["is_running"]) == ({}, {}, [], False)
    assert track_outline(tmp_path)["points"] == []


def test_long_curves_are_thinned_and_keep_their_newest_point(run: Path) -> None:
    lines = [json.dumps({"env_steps": k, "loss": k}) + "\n" for k in range(1001)]
    (run / METRICS_FILE).write_text("".join(lines))
    curve = RunReader(run, None).snapshot()["curves"]["loss"]
    assert len(curve) <= MAX_POINTS
    assert curve[-1] == [1000, 1000]


def test_the_run_written_to_last_is_found(run: Path, tmp_path: Path) -> None:
    assert find_run(tmp_path) == run
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoRunError, match="empty"):
        find_run(tmp_path / "empty")


def test_page_is_served_to_this_machine(run: Path) -> None:
    with open_port(0) as door:
        host, port = door.getsockname()
        assert host == "127.0.0.1"
        server = make_server(run)
        thread = threading.Thread(target=server.run, args=([door],), daemon=True)
        thread.start()
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10).read().decode()
        assert "run.json" in page
        shown = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/run.json?x=1", timeout=10))
        assert shown["run"] == "ppo-1"
        assert len(shown["cars"]) == 4
        with pytest.raises(urllib.error.HTTPError) as missing:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/{LIVE_FILE}", timeout=10)
        assert missing.value.code == 404
        with pytest.raises(PortError, match=str(port)):
            open_port(port)
        server.should_exit = True
        thread.join(10.0)
        assert not thread.is_alive()


def lines_of(*numbers: int) -> str:
    return "".join(json.dumps({"env_steps": number, "loss": float(number)}) + "\n" for number in numbers)


def test_only_what_is_new_is_parsed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that grows by half a line between two looks: each line is parsed once, when it is whole."""
    path, parsed, loads = run / METRICS_FILE, [], json.loads

    def note(text: str | bytes) -> object:
        if isinstance(text, bytes):  # the file of the cars is read as text
            parsed.append(text)
        return loads(text)

    monkeypatch.setattr(json, "loads", note)
    path.write_text("")
    reader = RunReader(run, None)
    for number in range(50):
        with path.open("a") as file:
            file.write(lines_of(number)[:9])
        assert len(reader.snapshot()["curves"].get("loss", [])) == number
        with path.open("a") as file:
            file.write(lines_of(number)[9:])
        assert reader.snapshot()["latest"]["loss"] == number
    assert len(parsed) == 50


@pytest.mark.parametrize("after", [(1, 2), (1, 2, 7), (1, 2, 7, 8, 9, 10), ()])
def test_a_run_that_went_on_from_an_earlier_checkpoint_is_read_anew(run: Path, after: tuple[int, ...]) -> None:
    """It cuts its metrics off behind the checkpoint, and may have written more than before until the next look."""
    path = run / METRICS_FILE
    path.write_text(lines_of(1, 2, 3, 4))
    reader = RunReader(run, None)
    assert reader.snapshot()["curves"]["loss"][-1] == [4, 4.0]
    path.write_text(lines_of(*after))
    assert [point[0] for point in reader.snapshot()["curves"].get("loss", [])] == list(after)
