import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
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
from flows.nightly import nightly
from tests.flows.conftest import ROOT
from tests.flows.test_shown import shown_by
from tests.waiting import PATIENCE_S

FOUND: dict[str, Any] = {"rows": [{"role": "latest", "pace_mps": 20.5}], "worse": [], "text": "all is well"}


def today() -> str:
    return datetime.now(UTC).date().isoformat()


@pytest.fixture
def commands(toy_project: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What the flow ran; `rulka night` says `FOUND`."""
    asked: list[list[str]] = []

    def run(command: list[str], say: Any, timeout_s: float) -> list[str]:
        asked.append(command)
        return [json.dumps(FOUND)]

    monkeypatch.setattr(module, "run_in_group", run)
    return asked


@pytest.mark.usefixtures("prefect_server")
class TestRuns:
    def test_it_races_and_shows_what_came_of_it(self, commands: list[list[str]]) -> None:
        days = [today()]
        state = nightly(("main",), races=3, return_state=True)
        assert state.is_completed()
        assert (state.name, state.message) == ("Completed", "all is well")
        days.append(today())  # midnight may have come between
        (command,) = commands
        assert command[3:] in [["night", "--json", "--date", day, "--tracks", "main", "--races", "3"] for day in days]
        shown = shown_by(state.state_details.flow_run_id)
        assert set(shown) == {"nightly-evaluation", "nights"}
        assert str(shown["nights"].data).endswith("(http://127.0.0.1:8480/nights)")

    def test_a_worse_night_shows_in_the_name_of_the_state(
        self, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(FOUND, "worse", ["latest"])
        state = nightly(return_state=True)
        assert (state.name, state.is_completed()) == ("Worse", True)
        assert commands[0][-4:] == ["--tracks", "main", "campaign", "held-out"]


def planned_by_prefect(run: UUID) -> None:
    """Marks a run as made from a schedule, which only Prefect's scheduler can, and it does not run in tests."""
    database = get_current_settings().server.database.connection_url
    assert database is not None
    file = database.get_secret_value().partition("///")[2]
    with closing(sqlite3.connect(file, timeout=PATIENCE_S)) as connection, connection:
        assert connection.execute("UPDATE flow_run SET auto_scheduled = 1 WHERE id = ?", [str(run)]).rowcount == 1


@pytest.mark.usefixtures("prefect_server")
class TestLate:
    """Of a schedule in a zone whose date is another than that of UTC for most of the day."""

    ZONE = "Pacific/Kiritimati"

    def night(self, late: timedelta) -> State:
        """What came of a night that began so late."""
        schedule = DeploymentScheduleCreate(schedule=CronSchedule(cron="0 3 * * *", timezone=self.ZONE))
        with get_client(sync_client=True) as client:
            deployment = client.create_deployment(client.create_flow(nightly), name="night", schedules=[schedule])
            state = Scheduled(scheduled_time=datetime.now(UTC) - late)
            run = client.create_flow_run_from_deployment(deployment, state=state)
            planned_by_prefect(run.id)
            run = client.read_flow_run(run.id)
            found = run_flow(nightly, flow_run=run, parameters={}, return_type="state")
            client.delete_deployment(deployment)
        assert isinstance(found, State)
        return found

    def test_it_is_the_night_of_the_schedule_and_says_that_it_is_late(self, commands: list[list[str]]) -> None:
        late = timedelta(hours=2)
        state = self.night(late)
        assert state.is_completed(), state.message
        meant = (datetime.now(UTC) - late).astimezone(ZoneInfo(self.ZONE))
        (command,) = commands
        assert command[command.index("--date") + 1] == meant.date().isoformat()
        assert str(state.message).startswith(f"all is well\nlate: planned for {meant.date()} ")

    def test_a_night_that_the_next_one_has_followed_is_missed(self, commands: list[list[str]]) -> None:
        state = self.night(timedelta(days=2))
        assert (state.name, state.is_cancelled()) == ("Missed", True)
        assert commands == []


def test_prefect_would_take_the_notification() -> None:
    """What `deploy/notify.yaml` asks for, with the block that its user names."""
    automation = yaml.safe_load((ROOT / "deploy" / "notify.yaml").read_text())
    automation["actions"][0]["block_document_id"] = "00000000-0000-0000-0000-000000000000"
    assert AutomationCore.model_validate(automation).actions[0].type == "send-notification"
