import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.client.schemas.objects import Artifact
from starlette.testclient import TestClient

from flows.pipeline import pipeline
from flows.shown import StageProgress, numbers_of, show_results
from rulka.dashboard.app import make_app
from rulka.machine.progress import Progress
from tests.flows.conftest import change_command

STAGE = """
import json, sys
from pathlib import Path
for done in (0, 25, 50):
    print(f"evaluate: {done}/50 races ({2 * done} %), 5 races/s" + ", done" * (done == 50), flush=True)
out = Path("data/evaluation")
out.mkdir(parents=True)
(out / "metrics.json").write_text(json.dumps({"agent": {"finish_rate": 0.5, "laps": [1, 2]}, "seed": 3, "note": "x"}))
(out / "report.html").write_text("<p>won</p>")
"""


def shown_by(run_id: Any) -> dict[str | None, Artifact]:
    """What a run of the flow left on Prefect's pages, by key."""
    of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]))
    with get_client(sync_client=True) as client:
        return {artifact.key: artifact for artifact in client.read_artifacts(artifact_filter=of_run)}


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_a_stage_shows_how_far_it_is_and_what_came_of_it(toy_project: Path) -> None:
    Path("stage.py").write_text(STAGE)
    change_command("evaluate", f"{sys.executable} stage.py")
    state = pipeline(return_state=True)
    assert state.is_completed(), state.message
    shown = shown_by(state.state_details.flow_run_id)
    of_evaluation = {"evaluate-progress", "evaluate-numbers", "evaluate-report"}
    assert set(shown) == {"races-progress", "capture-progress"} | of_evaluation
    assert (shown["races-progress"].data, shown["races-progress"].description) == (100.0, "races: done")
    link = re.fullmatch(
        r"\[The report of this evaluation\]\(http://127\.0\.0\.1:8480(.*)\)", str(shown["evaluate-report"].data)
    )
    assert link is not None
    assert (shown["evaluate-report"].description or "").endswith(f"in `{toy_project}`.")
    with TestClient(make_app(), base_url="http://127.0.0.1:8480") as browser:
        assert browser.get(link[1]).text == "<p>won</p>"
    progress = shown["evaluate-progress"]
    assert progress.data == 100.0
    assert progress.description == "evaluate: 50/50 races (100 %), 5 races/s, done"
    assert json.loads(str(shown["evaluate-numbers"].data)) == [
        {"measure": "seed", "value": 3},
        {"measure": "note", "value": "x"},
        {"measure": "agent.finish_rate", "value": 0.5},
    ]
    again = pipeline(return_state=True)
    assert shown_by(again.state_details.flow_run_id) == {}, "nothing had changed"


def test_the_progress_of_a_stage_is_what_its_lines_say(capsys: pytest.CaptureFixture[str]) -> None:
    """What `rulka.machine.progress` writes is what is read here."""
    told: list[float] = []
    links: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flows.shown.create_link_artifact", lambda link, **_: links.append(link))
        patch.setattr("flows.shown.create_progress_artifact", lambda percent, **_: told.append(percent))
        # A clock that stands: after some seconds there would be a line before the last one.
        patch.setattr("rulka.machine.progress.time", SimpleNamespace(monotonic=lambda: 0.0))
        with Progress("train", 8, "steps", stream=sys.stdout) as progress:
            progress.advance(3)
        said: list[str] = []
        listener = StageProgress("train", said.append)
        listener("compiling")
        listener(capsys.readouterr().out.strip())
    assert told == [38.0]
    assert links == ["http://127.0.0.1:8480/live"], "of a training alone, and once"
    assert said == ["compiling", "train: 3/8 steps (38 %), 0 steps/s, done"]


def test_a_stage_without_numbers_shows_its_beginning_and_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[float] = []
    monkeypatch.setattr("flows.shown.create_progress_artifact", lambda percent, **_: told.append(percent) or 7)
    monkeypatch.setattr("flows.shown.update_progress_artifact", lambda _, percent, **__: told.append(percent))
    listener = StageProgress("transfer", lambda _: None)
    listener("Running stage 'transfer':")
    listener("> python -m tasks.transfer")
    assert told == [0.0]
    listener.end()
    listener.end()
    assert told == [0.0, 100.0]
    assert numbers_of(tmp_path) == {}


def test_a_server_that_is_away_costs_no_stage(toy_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> None:
        message = "connection refused"
        raise httpx.ConnectError(message)

    monkeypatch.setattr("flows.shown.create_progress_artifact", away)
    monkeypatch.setattr("flows.shown.create_table_artifact", away)
    said: list[str] = []
    StageProgress("evaluate", said.append)("evaluate: 1/2 races (50 %)")
    Path("data/evaluation").mkdir(parents=True)
    Path("data/evaluation/metrics.json").write_text('{"seed": 1}')
    show_results("evaluate", said.append)
    assert said == ["evaluate: 1/2 races (50 %)", *["not shown on Prefect's pages: connection refused"] * 2]
