from pathlib import Path

import pytest
import yaml

from flows.pipeline import check_inputs, chosen_stages, pipeline
from rulka.errors import UserError
from rulka.stage import StageInputError

RAN = {"racing", "capturing", "evaluating"}
"""What the commands of the toy project write."""


def ran(log: pytest.LogCaptureFixture) -> list[str]:
    """The stages that ran since the log was last asked."""
    lines = [line for line in log.messages if line in RAN]
    log.clear()
    return lines


def test_stages_come_in_the_order_of_the_graph(toy_project: Path) -> None:
    assert chosen_stages(None) == ["races", "capture", "evaluate"]
    assert chosen_stages(["evaluate", "races"]) == ["races", "evaluate"]


def test_an_unknown_stage_is_named(toy_project: Path) -> None:
    with pytest.raises(UserError, match="no stage is called rases; the stages are races, capture, evaluate"):
        chosen_stages(["rases"])


def test_a_missing_input_names_the_stage_to_run_first(toy_project: Path) -> None:
    check_inputs("races")
    with pytest.raises(StageInputError, match="data/races is missing or incomplete: run `dvc repro races` first"):
        check_inputs("capture")


@pytest.mark.usefixtures("prefect_server")
class TestRuns:
    def test_every_stage_once_then_nothing(self, toy_project: Path, caplog: pytest.LogCaptureFixture) -> None:
        assert pipeline(return_state=True).is_completed()
        assert ran(caplog) == ["racing", "capturing", "evaluating"]
        assert (toy_project / "data" / "evaluation" / "x").read_text() == "1\n"
        assert pipeline(return_state=True).is_completed()
        assert sum("didn't change, skipping" in line for line in caplog.messages) == 3
        assert ran(caplog) == []
        assert pipeline(["evaluate"], force=True, return_state=True).is_completed()
        assert ran(caplog) == ["evaluating"]

    def test_a_failed_stage_ends_the_flow_with_its_name(
        self, toy_project: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        graph = yaml.safe_load(Path("dvc.yaml").read_text())
        graph["stages"]["capture"]["cmd"] = "echo no races && false"
        Path("dvc.yaml").write_text(yaml.safe_dump(graph, sort_keys=False))
        state = pipeline(return_state=True)
        assert state.is_failed()
        assert state.message
        assert state.message.startswith("stage capture: ")
        assert "no races" in caplog.messages
        assert not Path("data/evaluation").exists()

    def test_a_stage_that_takes_too_long_fails(self, toy_project: Path) -> None:
        graph = yaml.safe_load(Path("dvc.yaml").read_text())
        graph["stages"]["races"]["cmd"] = "sleep 60"
        Path("dvc.yaml").write_text(yaml.safe_dump(graph, sort_keys=False))
        state = pipeline(timeout_h=2.0 / 3600, return_state=True)
        assert state.is_failed()
        assert state.message
        assert "took longer than 2 s" in state.message
