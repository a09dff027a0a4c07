from pathlib import Path
from typing import get_args

import pytest
import yaml

from flows.dvc import Outcome, with_upstream
from flows.pipeline import Stage, pipeline, reproduce, summary
from rulka.graph import read_graph
from tests.flows.conftest import ROOT, change_command

RAN = {"racing", "capturing", "evaluating"}
"""What the commands of the toy project write."""


def ran(log: pytest.LogCaptureFixture) -> list[str]:
    """The stages that ran since the log was last asked."""
    lines = [line for line in log.messages if line in RAN]
    log.clear()
    return lines


def test_stages_and_their_summary(toy_project: Path) -> None:
    assert with_upstream(["capture"]) == ["races", "capture"]
    assert with_upstream(["evaluate", "races"]) == ["races", "capture", "evaluate"]
    outcomes = {"races": Outcome.UNCHANGED, "capture": Outcome.RAN, "clone": Outcome.RESTORED, "train": Outcome.RAN}
    assert summary(outcomes) == "ran: capture, train; taken from DVC's cache: clone; nothing had changed: races"


def test_a_deployment_may_name_every_stage_of_this_project() -> None:
    assert list(get_args(Stage)) == list(read_graph(ROOT / "dvc.yaml"))
    for deployment in yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]:
        assert set(deployment.get("parameters", {}).get("stages", ())) <= set(get_args(Stage))


@pytest.mark.usefixtures("prefect_server")
class TestRuns:
    def test_every_stage_once_then_nothing(self, toy_project: Path, caplog: pytest.LogCaptureFixture) -> None:
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
    def test_what_has_changed_and_what_follows_from_it(
        self, toy_project: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert pipeline(return_state=True).message == "ran: races, capture, evaluate"
        change_command("capture", "echo capturing && mkdir -p data/frames && echo 3 > data/frames/x")
        caplog.clear()
        state = pipeline(return_state=True)
        assert state.message == "ran: capture, evaluate; nothing had changed: races"
        assert ran(caplog) == ["capturing", "evaluating"], "what had not changed by then is asked of DVC once more"
        Path("data/evaluation/x").write_text("spoiled")
        assert (
            pipeline(return_state=True).message
            == "taken from DVC's cache: evaluate; nothing had changed: races, capture"
        )
        assert Path("data/evaluation/x").read_text() == "3\n"
        state = pipeline(["capture"], force=True, return_state=True)
        assert state.message == "ran: races, capture"
        assert ran(caplog) == ["racing", "capturing"], "as `dvc repro --force capture`"

    @pytest.mark.slow
    def test_what_was_killed_and_can_go_on_is_started_once_more(
        self, toy_project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("flows.pipeline.reproduce", reproduce.with_options(retry_delay_seconds=0))
        killed_once = "echo capturing && test -e again || (touch again && kill -9 $$)"
        change_command("capture", f"{killed_once}; mkdir -p data/frames && cp data/races/x data/frames/x")
        state = pipeline(["races", "capture"], return_state=True)
        assert state.is_failed(), "capture has no checkpoint to go on from"
        monkeypatch.setattr("flows.pipeline.GOES_ON", ("capture",))
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
            "  Mend that, then `dvc repro capture`, which goes on from its last checkpoint.",
        ]

    def test_a_failed_stage_ends_the_flow_with_its_name_and_last_lines(
        self, toy_project: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
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
