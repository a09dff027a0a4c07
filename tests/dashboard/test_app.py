"""Every route, by Starlette's own client: what it answers, and what it says where there is nothing or damage."""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rulka.cli import main
from rulka.dashboard import runs
from rulka.dashboard.app import PAGES, make_server, moment, open_port
from rulka.runtime.live import METRICS_FILE
from tests.waiting import PATIENCE_S


def test_every_page_of_a_project_in_which_nothing_has_run(client: TestClient) -> None:
    assert client.get("/").url.path == "/runs"
    for path in PAGES:
        answer = client.get(path)
        assert answer.status_code == 200
        assert "Traceback" not in answer.text
        assert f'<a href="{path}" aria-current="page">' in answer.text
        assert answer.headers["content-security-policy"].startswith("default-src 'self'")
        assert answer.headers["cache-control"] == "no-cache"
        assert not re.findall(r'(?:src|href)="(?:https?:)?//', answer.text)  # nothing of another server
        own = re.findall(r'(?:src|href)="(/static/[^"]+)"', answer.text)
        assert {client.get(address).status_code for address in [*own, "/static/plotly.min.js"]} == {200}
    assert "Nothing was trained yet" in client.get("/live").text
    assert client.get("/run.json").json()["text"] == "nothing was trained yet"
    answer = client.get("/nothing")
    assert (answer.status_code, "there is no page /nothing" in answer.text) == (404, True)


def test_the_report_is_served_with_its_own_style(client: TestClient, project: Path) -> None:
    folder = project / "data/evaluation"
    folder.mkdir(parents=True)
    assert "report.html" not in client.get("/replay").text
    (folder / "report.html").write_text("the report")
    assert "/evaluation/report.html" in client.get("/replay").text
    answer = client.get("/evaluation/report.html")
    assert answer.text == "the report"
    assert "style-src 'unsafe-inline'" in answer.headers["content-security-policy"]


def test_no_other_file_and_no_other_host(client: TestClient, project: Path) -> None:
    (project / "data/evaluation").mkdir(parents=True)
    (project / "data/evaluation/metrics.json").write_text("{}")
    for name in ("race.mp4", "metrics.json", "..%2F..%2Fparams.yaml", "../../params.yaml"):
        assert client.get(f"/evaluation/{name}").status_code == 404
    assert client.get("/", headers={"host": "evil.example"}).status_code == 400
    assert client.get("/", headers={"host": "localhost:8480"}).status_code == 200
    assert moment("2026-11-23T22:24:51") == "2026-11-23 22:24"
    for beyond in ("yesterday", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-23:59", 1e100):
        assert moment(beyond) == str(beyond)


def test_curves_of_all_trainings(client: TestClient, run: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = project / "data/agents/iqn-2"
    other.mkdir(parents=True)
    (other / "training.jsonl").write_text('{"env_steps": 10, "minutes": 2.0, "loss": 5.0}\n')
    monkeypatch.setattr(runs, "_run_of", lambda agent: run.name if agent == Path("data/agent") else None)
    agent = project / "data/agent"
    agent.mkdir()
    (agent / "training.jsonl").write_text('{"env_steps": 64, "loss": 2.0}\n')  # the same training, handed on
    curves = {curve["key"]: curve for curve in client.get("/curves.json?metric=loss&axis=env_steps").json()}
    assert {key: (curve["x"], curve["y"]) for key, curve in curves.items()} == {
        "runs/train/ppo-1": ([64, 128], [2.0, 1.0]),
        "data/agents/iqn-2": ([10], [5.0]),
    }
    by_minutes = client.get("/curves.json?metric=loss&axis=minutes").json()
    assert {curve["key"]: curve["x"] for curve in by_minutes} == {
        "runs/train/ppo-1": [0.5, 1.5],
        "data/agents/iqn-2": [2.0],
    }
    assert client.get("/curves.json?metric=nothing&axis=minutes").json() == []
    with (other / "training.jsonl").open("a") as file:
        file.write('{"env_steps": 1e308, "minutes": 1e308, "loss": 1e308}\n')
        file.write('{"env_steps": 20, "minutes": 3, "loss": 1e99}\n')
    for axis in ("env_steps", "minutes"):  # a number that overflows when it is rounded, and one that does not
        curves = client.get(f"/curves.json?metric=loss&axis={axis}").json()
        assert {curve["key"]: curve["y"] for curve in curves}["data/agents/iqn-2"] == [5.0, 1e99]
    refused = client.get("/curves.json?metric=loss&axis=years")
    assert (refused.status_code, "env_steps" in refused.json()["text"]) == (400, True)
    page = client.get("/runs").text
    assert 'data-label="ppo-1"' in page
    chosen = re.findall(r'<option value="(\w+)"[^>]* selected', page)
    assert chosen == ["loss"], "of numbers that there are, none that only comes first by its letter"
    assert 'data-label="promoted, iqn-2"' in page
    assert "at work" in page


def test_a_training_with_its_track(client: TestClient, run: Path) -> None:
    shown = client.get("/run.json").json()
    newest = client.get("/newest.json?run=runs/train/ppo-1").json()
    assert newest == {key: value for key, value in shown.items() if key not in ("curves", "track")}
    assert (shown["key"], shown["run"], shown["is_running"]) == ("runs/train/ppo-1", "ppo-1", True)
    assert len(shown["cars"]) == 3
    assert shown["track"]["length_m"] == 300.0
    assert client.get("/run.json?run=runs/train/ppo-1").json()["latest"]["loss"] == 1.0
    assert 'value="runs/train/ppo-1" selected' in client.get("/live").text
    missing = client.get("/run.json?run=../../etc")
    assert (missing.status_code, missing.json()["hint"] != "") == (404, True)
    (run / "track.npz").write_bytes(b"no track")
    damaged = client.get("/run.json")
    assert damaged.status_code == 404
    assert "track.npz is not a readable track file" in damaged.json()["text"]


def test_the_server_answers_and_ends(run: Path) -> None:
    """On this machine alone; of a training that goes on it tells the newest at the next request."""
    with open_port(0) as door:
        host, port = door.getsockname()
        assert host == "127.0.0.1"
        assert door.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), "what is sent need not wait for what was"
        server = make_server()
        thread = threading.Thread(target=server.run, args=([door],), daemon=True)
        thread.start()

        def newest() -> dict[str, Any]:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/newest.json", timeout=PATIENCE_S) as answer:
                return json.load(answer)

        assert newest()["latest"]["loss"] == 1.0
        with (run / METRICS_FILE).open("a") as file:
            file.write('2, "loss": 0.5}\n')
        assert newest()["latest"]["loss"] == 0.5
        server.should_exit = True
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_a_busy_port_is_one_line(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(sys, "argv", ["rulka", "dashboard", "--port", str(port)])
        with pytest.raises(SystemExit) as end:
            main()
    assert end.value.code == 1
    said = capsys.readouterr().err
    assert f"port {port} of this machine is taken" in said
    assert "--port" in said
