"""Every route, by Starlette's own client: what it answers, and what it says where there is nothing or damage."""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rulka.cli import main
from rulka.dashboard.app import PAGES, PortError, make_app, make_server, moment, open_port, size
from rulka.dashboard.stages import Pipeline
from rulka.errors import UserError
from rulka.report.words import NONE
from rulka.runtime.live import METRICS_FILE
from tests.dashboard.conftest import PIPELINE, ROOT
from tests.waiting import PATIENCE_S

PARTS = ("/part/stages", "/part/results", "/part/agents", "/part/frames")


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


@pytest.mark.parametrize("path", [*PAGES, *PARTS])
def test_every_page_of_a_project_in_which_nothing_has_run(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert "Traceback" not in answer.text
    if path in PAGES:
        assert f'<a href="{path}" aria-current="page">' in answer.text
        assert not re.findall(r'(?:src|href)="(?:https?:)?//', answer.text)  # nothing of another server


def test_stages_stand_as_dvc_and_its_lock_say(client: TestClient, project: Path) -> None:
    lock = {"stages": {name: {"cmd": "x"} for name in ("races", "capture", "train")}, "schema": "2.0"}
    (project / "dvc.lock").write_text(json.dumps(lock))
    said = text_of(client.get("/part/stages").text)
    assert "races has run capture running process 7, `dvc repro`" in said
    assert "train has run" in said
    assert "evaluate never ran" in said
    with TestClient(make_app(PIPELINE._replace(at_work=dict)), base_url="http://localhost") as asking:
        said = text_of(asking.get("/part/stages").text)
    assert "races up to date capture up to date" in said
    assert "train changed params.yaml: ppo data/frames modified" in said
    assert "evaluate never ran" in said
    assert "dvc repro" in said


def test_stages_are_shown_while_one_begins_and_dvc_cannot_compare(project: Path) -> None:
    """DVC refuses to compare outputs that a stage is writing: what the page is for in the first place."""
    at_work: list[dict[str, str]] = [{}, {"train": "process 7, `dvc repro`"}]

    def blocked() -> dict[str, list[str]]:
        message = "`dvc status` failed: 'data/agent' is busy"
        raise UserError(message)

    pipeline = PIPELINE._replace(at_work=lambda: at_work.pop(0), changes=blocked)
    with TestClient(make_app(pipeline), base_url="http://localhost") as asking:
        said = text_of(asking.get("/part/stages").text)
    assert "train running process 7" in said
    assert "is busy" not in said


def test_what_cannot_be_said_is_said_with_its_hint(project: Path) -> None:
    def broken() -> dict[str, list[str]]:
        message = "`dvc status` failed: a & <b>"
        raise UserError(message, hint="Look at it.")

    with TestClient(make_app(Pipeline(broken, dict)), base_url="http://localhost") as asking:
        said = asking.get("/part/stages").text
    assert "`dvc status` failed: a &amp; &lt;b&gt;" in said
    assert "Look at it." in said
    (project / "dvc.lock").write_text("stages: 3")
    with TestClient(make_app(PIPELINE), base_url="http://localhost") as asking:
        for path in ("/", "/origins"):
            assert "dvc.lock is damaged" in asking.get(path).text


def test_results_are_those_of_the_evaluation(client: TestClient, project: Path) -> None:
    assert "No agent was evaluated yet" in client.get("/part/results").text
    folder = project / "data/evaluation"
    folder.mkdir(parents=True)
    driver = {"races": 6, "finished": 4, "best_time_s": 12.746, "median_time_s": None, "times_reference": 1.061}
    track = {"name": "A <b>", "length_m": 600.0, "trained_on": True, "reference_s": 12.112}
    tracks = [track | {"drivers": {"agent": driver | {"medal": "gold"}}}]
    (folder / "metrics.json").write_text(json.dumps({"tracks": tracks}))
    (folder / "report.html").write_text("the report")
    said = client.get("/part/results").text
    assert f"agent 4 of 6 12.75 s {NONE} 1.061 gold" in text_of(said).replace("\N{NO-BREAK SPACE}", " ")
    assert "A &lt;b&gt;, 600 m" in said
    assert "/evaluation/report.html" in said
    assert "/evaluation/race.mp4" not in said
    answer = client.get("/evaluation/report.html")
    assert answer.text == "the report"
    assert "style-src 'unsafe-inline'" in answer.headers["content-security-policy"]
    (folder / "metrics.json").write_text("{")
    assert "dvc checkout --force evaluate" in client.get("/part/results").text


@pytest.mark.parametrize("name", ["race.mp4", "metrics.json", "..%2F..%2Fparams.yaml", "../../params.yaml"])
def test_no_other_file_is_served(client: TestClient, project: Path, name: str) -> None:
    (project / "data/evaluation").mkdir(parents=True)
    (project / "data/evaluation/metrics.json").write_text("{}")
    assert client.get(f"/evaluation/{name}").status_code == 404


def test_curves_of_all_trainings(client: TestClient, run: Path, project: Path) -> None:
    other = project / "data/agents/iqn-2"
    other.mkdir(parents=True)
    (other / "training.jsonl").write_text('{"env_steps": 10, "minutes": 2.0, "loss": 5.0}\n')
    agent = project / "data/agent"
    agent.mkdir()
    (agent / "training.jsonl").write_text((run / METRICS_FILE).read_text())  # the same training, handed on
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
    refused = client.get("/curves.json?metric=loss&axis=years")
    assert (refused.status_code, "env_steps" in refused.json()["text"]) == (400, True)
    page = client.get("/runs").text
    assert 'data-label="ppo-1"' in page
    chosen = re.findall(r'<option value="(\w+)" selected', page)
    assert chosen == ["loss"], "of numbers that there are, none that only comes first by its letter"
    assert 'data-label="promoted, iqn-2"' in page
    assert "at work" in page


def test_a_training_with_its_track(client: TestClient, run: Path) -> None:
    shown = client.get("/run.json").json()
    assert (shown["key"], shown["run"], shown["is_running"]) == ("runs/train/ppo-1", "ppo-1", True)
    assert len(shown["cars"]) == 3
    assert shown["track"]["length_m"] == 300.0
    assert client.get("/run.json?run=runs/train/ppo-1").json()["latest"]["loss"] == 1.0
    assert 'value="runs/train/ppo-1" selected' in client.get("/live").text
    missing = client.get("/run.json?run=../../etc")
    assert (missing.status_code, missing.json()["hint"] != "") == (404, True)
    (run / "track.npz").write_bytes(b"no track")
    damaged = TestClient(make_app(PIPELINE), base_url="http://127.0.0.1").get("/run.json")
    assert damaged.status_code == 404
    assert "track.npz is not a readable track file" in damaged.json()["text"]


def test_nothing_trained_is_said(client: TestClient) -> None:
    assert "nothing was trained yet" in client.get("/live").text
    assert client.get("/run.json").json()["text"] == "nothing was trained yet"


def test_origins_are_those_of_the_lock(client: TestClient, project: Path) -> None:
    def made(path: str, digest: str) -> dict[str, object]:
        return {"path": path, "md5": digest, "size": 1_500_000}

    stages = {
        "races": {"outs": [made("data/races", "aaaaaaaaaa")]},
        "capture": {
            "deps": [made("data/races", "bbbbbbbbbb"), made("rulka/datasets", "cc")],
            "outs": [made("data/frames", "dddddddddd")],
            "params": {"params.yaml": {"capture": {}, "actions": {}}},
        },
    }
    (project / "dvc.lock").write_text(json.dumps({"stages": stages}))
    said = text_of(client.get("/origins").text)
    assert "data/races bbbbbbbb 2 MB not what races made last" in said
    assert "data/frames dddddddd" in said
    assert "capture, actions 1 paths" in said
    assert "There is no agent yet" in client.get("/part/agents").text


def test_a_damaged_agent_is_named(client: TestClient, project: Path) -> None:
    folder = project / "data/agent"
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text("{")
    said = client.get("/part/agents").text
    assert "data/agent" in said
    assert "cannot be used" in said


def test_other_names_of_this_machine_are_refused(client: TestClient) -> None:
    assert client.get("/", headers={"host": "evil.example"}).status_code == 400
    assert client.get("/", headers={"host": "localhost:8480"}).status_code == 200


def test_nothing_may_come_from_elsewhere(client: TestClient) -> None:
    for path in ("/", "/runs", "/static/common.js", "/nothing"):
        headers = client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'self'")
        assert headers["cache-control"] == "no-store"
    assert "immutable" in client.get("/static/plotly.js").headers["cache-control"]


def test_a_page_that_there_is_not(client: TestClient) -> None:
    answer = client.get("/nothing")
    assert answer.status_code == 404
    assert "there is no page /nothing" in answer.text


def test_events_are_told_and_end_with_the_server(run: Path) -> None:
    """A page hears of a training at once, of its next report, of results that changed; Ctrl-C does not wait for it."""
    with open_port(0) as door:
        host, port = door.getsockname()
        assert host == "127.0.0.1"
        server = make_server(PIPELINE)
        thread = threading.Thread(target=server.run, args=([door],), daemon=True)
        thread.start()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/events", timeout=PATIENCE_S) as events:
            assert told(events)[1]["key"] == "runs/train/ppo-1"
            with (run / METRICS_FILE).open("a") as file:
                file.write('2, "loss": 0.5}\n')
            name, run_now = told(events)
            assert (name, run_now["latest"]["loss"]) == ("training", 0.5)
            assert "curves" not in run_now
            Path("dvc.lock").write_text("stages: {}")
            assert told(events) == ("changed", ["dvc.lock"])
            server.should_exit = True
            thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_a_port_that_is_taken_is_named() -> None:
    with open_port(0) as door, pytest.raises(PortError, match=str(door.getsockname()[1])):
        open_port(door.getsockname()[1])


def told(events: urllib.request.http.client.HTTPResponse) -> tuple[str, object]:
    name = ""
    while line := events.readline().decode():
        if line.startswith("event: "):
            name = line[7:].strip()
        elif line.startswith("data: "):
            return name, json.loads(line[6:])
    pytest.fail("the server has ended")


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


def test_elsewhere_than_in_a_project_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["rulka", "dashboard"])
    with pytest.raises(SystemExit):
        main()
    assert "there is no dvc.yaml" in capsys.readouterr().err


def test_moments_and_sizes() -> None:
    assert moment("2026-11-23T22:24:51") == "2026-11-23 22:24"
    assert moment("yesterday") == "yesterday"
    assert [size(number) for number in (0, 999, 1000, 25_400_000, 3_210_000_000)] == [
        "0 B",
        "999 B",
        "1 kB",
        "25 MB",
        "3.2 GB",
    ]


def test_no_drawing_is_copied_into_the_repository() -> None:
    """The pages' own scripts are small; what is large comes out of a wheel."""
    scripts = list((ROOT / "rulka/dashboard/static").glob("*.js"))
    assert len(scripts) > 3
    assert max(path.stat().st_size for path in scripts) < 20_000
