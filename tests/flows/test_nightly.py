import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest
from prefect.blocks.abstract import NotificationBlock
from prefect.blocks.system import Secret
from pydantic import SecretStr

from flows import nightly as module
from flows.nightly import nightly, notification_block, result_of
from flows.process import CommandError
from rulka.errors import UserError
from tests.flows.test_shown import shown_by

FOUND: dict[str, Any] = {"rows": [{"role": "latest", "pace_mps": 20.5}], "worse": [], "text": "all is well"}


class FakeNotification(NotificationBlock):
    """A block that notes what it is given."""

    sent: ClassVar[list[tuple[str, str | None]]] = []
    is_down: bool = False

    async def notify(self, body: str, subject: str | None = None) -> None:
        if self.is_down:
            message = "nobody is there"
            raise ConnectionError(message)
        FakeNotification.sent.append((body, subject))


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
    FakeNotification.sent.clear()
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

    def test_a_missing_agent_is_the_reason(self, toy_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def race(*_: object) -> list[str]:
            message = "`rulka night` failed"
            raise CommandError(message, ["racing", "error: data/agent holds no complete artifact"])

        monkeypatch.setattr(module, "run_in_group", race)
        state = nightly(return_state=True)
        assert state.is_failed()
        assert state.message == (
            "the nightly evaluation failed: `rulka night` failed\nerror: data/agent holds no complete artifact"
        )


@pytest.mark.usefixtures("prefect_server")
class TestNotifications:
    def test_what_came_of_the_night_is_sent(self, commands: list[list[str]]) -> None:
        FakeNotification().save("team", overwrite=True)
        days = [today()]
        nightly(notify="fakenotification/team", return_state=True)
        days.append(today())
        assert FakeNotification.sent in [[("all is well", f"Rulka: night of {day}, Completed")] for day in days]

    def test_a_service_that_is_down_does_not_cost_the_night(self, commands: list[list[str]]) -> None:
        FakeNotification(is_down=True).save("down", overwrite=True)
        state = nightly(notify="fakenotification/down", return_state=True)
        assert state.is_completed()
        assert FakeNotification.sent == []

    def test_a_block_that_is_not_there_is_said_before_anybody_races(self, commands: list[list[str]]) -> None:
        state = nightly(notify="slack-webhook/nobody", return_state=True)
        assert state.is_failed()
        assert "there is no block 'slack-webhook/nobody' to notify with" in (state.message or "")
        assert commands == []

    def test_a_block_of_another_kind_is_refused(self) -> None:
        Secret(value=SecretStr("word")).save("word", overwrite=True)
        with pytest.raises(UserError, match="the block 'secret/word' sends no notifications"):
            notification_block("secret/word")
