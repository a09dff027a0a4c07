"""The pipeline and the nightly evaluation, on one Prefect server: starting it takes longer than all of this."""

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import State
from prefect.client.schemas.schedules import CronSchedule
from prefect.events.schemas.automations import AutomationCore
from prefect.flow_engine import run_flow
from prefect.settings import get_current_settings
from prefect.states import Scheduled

from flows import nightly as module
from flows.dvc import Outcome, with_upstream
from flows.nightly import nightly, result_of
from flows.pipeline import Stage, pipeline, reproduce, summary
from flows.process import CommandError
from rulka.machine.errors import UserError
from rulka.stages.graph import read_graph
from tests.flows.conftest import ROOT, change_command, dvc
from tests.flows.test_shown import shown_by
from tests.waiting import PATIENCE_S

RAN = {"racing", "capturing", "evaluating"}
"""What the commands of the toy project write."""
ZONE = "Pacific/Kiritimati"
"""Whose date is another than that of UTC for most of the day."""
pytestmark = pytest.mark.usefixtures("prefect_server")


def ran(log: pytest.LogCaptureFixture) -> list[str]:
    """The stages that ran since the log was last asked."""
    lines = [line for line in log.messages if line in RAN]
    log.clear()
    return lines


def test_stages_and_their_summary(toy_project: Path) -> None:
    assert with_upstream(["capture"]) == ["races", "capture"]
    assert with_upstream(["evaluate", "races"]) == ["races", "capture", "evaluate"]
    dvc("freeze", "capture")
    assert with_upstream(["evaluate"]) == ["capture", "evaluate"], "as `dvc repro` has it"
    outcomes = {"races": Outcome.UNCHANGED, "capture": Outcome.RAN, "clone": Outcome.RESTORED, "train": Outcome.RAN}
    assert summary(outcomes) == "ran: capture, train; taken from DVC's cache: clone; nothing had changed: races"


def test_a_deployment_may_name_every_stage_of_this_project() -> None:
    assert list(get_args(Stage)) == list(read_graph(ROOT / "dvc.yaml"))
    for deployment in yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]:
        assert set(deployment.get("parameters", {}).get("stages", ())) <= set(get_args(Stage))


def test_every_stage_once_then_nothing(toy_project: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = pipeline(return_state=True)
    assert state.message == "ran: races, capture, evaluate"
    assert ran(caplog) == ["racing", "capturing", "evaluating"]
    assert (toy_project / "data" / "evaluation" / "x").read_text() == "1\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flows.pipeline.reproduce_stage", lambda *_, **__: pytest.fail("DVC was asked again"))
        state = pipeline(return_state=True)
    assert state.is_completed()
    assert state.message == "nothing had changed: races, capture, evaluate"
    assert ran(caplog) == []


@pytest.mark.slow
def test_what_has_changed_and_what_follows_from_it(toy_project: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert pipeline(return_state=True).message == "ran: races, capture, evaluate"
    change_command("capture", "echo capturing && mkdir -p data/frames && echo 3 > data/frames/x")
    caplog.clear()
    state = pipeline(return_state=True)
    assert state.message == "ran: capture, evaluate; nothing had changed: races"
    assert ran(caplog) == ["capturing", "evaluating"], "what had not changed by then is asked of DVC once more"
    Path("data/evaluation/x").write_text("spoiled")
    assert (
        pipeline(return_state=True).message == "taken from DVC's cache: evaluate; nothing had changed: races, capture"
    )
    assert Path("data/evaluation/x").read_text() == "3\n"
    state = pipeline(["capture"], force=True, return_state=True)
    assert state.message == "ran: races, capture"
    assert ran(caplog) == ["racing", "capturing"], "as `dvc repro --force capture`"


@pytest.mark.slow
def test_what_was_killed_and_can_go_on_is_started_once_more(
    toy_project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("flows.pipeline.reproduce", reproduce.with_options(retry_delay_seconds=0))
    killed_once = "echo capturing && test -e again || (touch again && kill -9 $$)"
    change_command("capture", f"{killed_once}; mkdir -p data/frames && cp data/races/x data/frames/x")
    with monkeypatch.context() as patch:
        patch.setattr("flows.pipeline.RESUMABLE_STAGES", ())
        assert pipeline(["races", "capture"], return_state=True).is_failed(), "it would begin anew"
    Path("again").unlink()
    caplog.clear()
    assert pipeline(["capture"], return_state=True).is_completed()
    assert ran(caplog) == ["capturing", "capturing"]
    hint = "echo '  Make some.' && echo bye && echo '  indented'"
    change_command("capture", f"echo capturing && echo 'error: no frames' && {hint} && false")
    state = pipeline(["capture"], return_state=True)
    assert ran(caplog) == ["capturing"], "an error of its own would come again"
    assert state.message
    assert state.message.splitlines()[-3:] == [
        "error: no frames",
        "  Make some.",
        "  Mend that, then `dvc repro capture`, which resumes.",
    ]


def test_a_failed_stage_ends_the_flow_with_its_last_lines(toy_project: Path, caplog: pytest.LogCaptureFixture) -> None:
    bars = " && ".join(f"echo 'race: {done} of 30 ({done} %)'" for done in range(30))
    change_command("races", f"echo racing && {bars} && echo Traceback && false")
    state = pipeline(return_state=True)
    assert state.is_failed()
    assert state.message
    assert state.message.startswith("stage races: ")
    assert ran(caplog) == ["racing"]
    assert state.message.splitlines()[-5:] == [
        "racing",
        "race: 29 of 30 (29 %)",
        "Traceback",
        "ERROR: failed to reproduce 'races': failed to run: "
        + f"echo racing && {bars} && echo Traceback && false, exited with 1",
        "  Mend that, then `dvc repro races`.",
    ]


# The nightly evaluation ----------------------------------------------------------------------------------------------


FOUND: dict[str, Any] = {"rows": [{"role": "latest", "pace_mps": 20.5}], "worse": [], "text": "all is well"}


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def test_the_result_stands_among_the_lines() -> None:
    assert result_of(["races 3/20", json.dumps(FOUND), "note"]) == FOUND
    with pytest.raises(UserError, match="ended without a result"):
        result_of(["races 3/20"])


@pytest.fixture
def commands(toy_project: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What the flow ran; `rulka night` says `FOUND`."""
    asked: list[list[str]] = []

    def run(command: list[str], say: Any, timeout_s: float) -> list[str]:
        asked.append(command)
        return [json.dumps(FOUND)]

    monkeypatch.setattr(module, "run_in_group", run)
    return asked


def test_it_races_and_shows_what_came_of_it(commands: list[list[str]]) -> None:
    days = [today()]
    state = nightly(("main",), races=12, return_state=True)
    assert state.is_completed()
    assert (state.name, state.message) == ("Completed", "all is well")
    days.append(today())  # midnight may have come between
    (command,) = commands
    assert command[3:] in [["night", "--json", "--date", day, "--tracks", "main", "--races", "12"] for day in days]
    shown = shown_by(state.state_details.flow_run_id)
    assert set(shown) == {"nightly-evaluation", "nights"}
    assert str(shown["nights"].data).endswith("(http://127.0.0.1:8480/nights)")


def test_a_worse_night_shows_in_the_states_name(commands: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FOUND, "worse", ["latest"])
    state = nightly(return_state=True)
    assert (state.name, state.is_completed()) == ("Worse", True)
    assert commands[0][-4:] == ["--tracks", "main", "campaign", "held-out"]


def test_a_missing_agent_is_the_reason(toy_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def race(*_: object) -> list[str]:
        message = "`rulka night` failed"
        raise CommandError(message, ["racing", "error: data/agent holds no complete artifact"])

    monkeypatch.setattr(module, "run_in_group", race)
    state = nightly(return_state=True)
    assert state.is_failed()
    assert state.message == (
        "the nightly evaluation failed: `rulka night` failed\nerror: data/agent holds no complete artifact"
    )


def planned_by_prefect(run: UUID) -> None:
    """Marks a run as made from a schedule, which only Prefect's scheduler can, and it does not run in tests."""
    database = get_current_settings().server.database.connection_url
    assert database is not None
    file = database.get_secret_value().partition("///")[2]
    with closing(sqlite3.connect(file, timeout=PATIENCE_S)) as connection, connection:
        assert connection.execute("UPDATE flow_run SET auto_scheduled = 1 WHERE id = ?", [str(run)]).rowcount == 1


def night_of(late: timedelta) -> State:
    """What came of a night that began so late, by the second of the deployment's schedules."""
    schedules = [
        DeploymentScheduleCreate(schedule=CronSchedule(cron="0 3 * * *", timezone=zone))
        for zone in ("Pacific/Niue", ZONE)  # never of one date
    ]
    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(client.create_flow(nightly), name="night", schedules=schedules)
        known = client.read_deployment(deployment).schedules
        (ours,) = [each.id for each in known if each.schedule.timezone == ZONE]
        planned = datetime.now(UTC) - late
        run = client.create_flow_run_from_deployment(
            deployment,
            state=Scheduled(scheduled_time=planned),
            idempotency_key=f"scheduled {deployment} {ours} {planned}",  # as Prefect's scheduler writes it
        )
        planned_by_prefect(run.id)
        run = client.read_flow_run(run.id)
        found = run_flow(nightly, flow_run=run, parameters={}, return_type="state")
        client.delete_deployment(deployment)
    assert isinstance(found, State)
    return found


def test_it_is_the_night_of_the_schedule_and_says_that_it_is_late(commands: list[list[str]]) -> None:
    late = timedelta(hours=2)
    state = night_of(late)
    assert state.is_completed(), state.message
    meant = (datetime.now(UTC) - late).astimezone(ZoneInfo(ZONE))
    (command,) = commands
    assert command[command.index("--date") + 1] == meant.date().isoformat()
    assert str(state.message).startswith(f"all is well\nlate: planned for {meant.date()} ")


def test_a_night_that_the_next_one_has_followed_is_missed(commands: list[list[str]]) -> None:
    state = night_of(timedelta(days=2))
    assert (state.name, state.is_cancelled()) == ("Missed", True)
    assert commands == []


def test_prefect_would_take_the_notification() -> None:
    """What `deploy/notify.yaml` asks for, with the block that its user names."""
    automation = yaml.safe_load((ROOT / "deploy" / "notify.yaml").read_text())
    automation["actions"][0]["block_document_id"] = "00000000-0000-0000-0000-000000000000"
    assert AutomationCore.model_validate(automation).actions[0].type == "send-notification"
