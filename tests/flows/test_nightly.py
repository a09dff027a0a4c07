import json
from datetime import date
from pathlib import Path

import pytest

from flows import nightly as module
from flows.nightly import RECORD_FILE, SEEDS_A_NIGHT, nightly, result_of, seed_of
from flows.process import CommandError
from rulka.errors import UserError
from rulka.params import read_params
from tests.flows.conftest import ROOT

RACED = {
    "races": 20,
    "finished": 18,
    "finish_rate": 0.9,
    "best_time_s": 12.5,
    "median_time_s": 13.25,
    "mean_progress_m": 590.4,
}


def test_nights_share_no_start_and_have_valid_seeds() -> None:
    evaluate = type(read_params(ROOT / "params.yaml").evaluate)
    for night in (date(2020, 1, 1), date(2026, 11, 22), date(2060, 12, 31)):
        following = date.fromordinal(night.toordinal() + 1)
        assert seed_of(following) - seed_of(night) == SEEDS_A_NIGHT
        values = read_params(ROOT / "params.yaml").evaluate.model_dump()
        evaluate.model_validate(values | {"seed": seed_of(night), "num_races": SEEDS_A_NIGHT})


def test_the_result_stands_among_the_lines() -> None:
    assert result_of(["races 3/20", json.dumps({"agent": RACED}), "note"]) == RACED
    with pytest.raises(UserError, match="ended without a result"):
        result_of(["races 3/20"])


@pytest.mark.usefixtures("prefect_server")
class TestRuns:
    def test_it_says_that_it_raced_and_leaves_the_evaluation_alone(
        self, toy_project: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commands: list[list[str]] = []

        def race(command: list[str], *_: object) -> list[str]:
            commands.append(command)
            return [json.dumps({"agent": RACED})]

        monkeypatch.setattr(module, "run_in_group", race)
        state = nightly(return_state=True)
        seed = int(commands[0][commands[0].index("--seed") + 1])
        assert state.is_completed()
        assert state.message == (
            f"data/agent raced 20 times from seed {seed}: 18 finished, median 13.25 s, best 12.50 s, 590 m on average"
        )
        line = json.loads(RECORD_FILE.read_text())
        assert line["seed"] == seed == seed_of(date.fromisoformat(line["night"]))
        assert line["finished"] == 18
        assert not Path("data").exists()
        assert not Path("dvc.lock").exists()

    def test_a_missing_agent_is_the_reason(self, toy_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def race(*_: object) -> list[str]:
            message = "`rulka evaluate` failed"
            raise CommandError(message, ["racing", "error: data/agent is missing"])

        monkeypatch.setattr(module, "run_in_group", race)
        state = nightly(return_state=True)
        assert state.is_failed()
        assert state.message == "data/agent did not race: `rulka evaluate` failed\nerror: data/agent is missing"
        assert not RECORD_FILE.exists()
