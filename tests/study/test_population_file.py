"""What a population's file may say: everything wrong is named before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rulka.contracts.schedule import Moment
from rulka.machine.errors import UserError
from rulka.params import checked_params
from rulka.study.population import Population, read_population

ROOT = Path(__file__).resolve().parents[2]
RATE = {"start": [1e-5, 1e-4], "range": [1e-6, 1e-1]}
IN_GAME = {"environment": "game", "order": "free", "algorithm": "impala", "cars_per_collector": 1, "check_races": 1}
IN_GAME |= dict.fromkeys(("start_anywhere", "start_from_earlier", "start_lateral_m", "start_heading_deg"), 0.0)
FILE: dict[str, Any] = {
    "title": "A test",
    "question": "Is it read?",
    "cost": "Nothing.",
    "members": 3,
    "turns": 4,
    "turn_env_steps": 1000,
    "seed": 7,
    "races": 10,
    "overrides": {
        "train": {"algorithm": "impala"},
        "transfer": {"impala": {"encoder": "fresh"}},
        "impala": {"value_warmup_steps": 0},
    },
    "parameters": {"impala.learning_rate": RATE},
    "explore": {"factors": [0.8, 1.25], "resample": 0.25},
}


def read(tmp_path: Path, **changes: object) -> Population:
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump(FILE | changes, sort_keys=False), encoding="utf-8")
    return read_population(path)


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_members_turns_and_schedules(tmp_path: Path) -> None:
    population = read(tmp_path)
    assert population.name == "test"
    assert [cell.params.train.seed for cell in population.cells] == [7, 8, 9]
    assert list(population.cells[0].jobs) == ["races", "capture", "pretrain", "clone", "transfer"]
    assert population.cells[0].params.train.compared == ()
    sections = read(tmp_path).sections(1, 2, {"impala.learning_rate": 3e-5})
    params = checked_params(sections, "a turn")
    assert params.train.max_env_steps == 3000
    assert (params.train.max_minutes, params.train.max_cpu_minutes) == (None, None)
    assert params.impala.learning_rate.at(Moment(123)) == 3e-5
    # `impala.entropy_weight` is [[0, 0.003], [1, 0.0]] in the parameters; a turn is but a quarter of the budget.
    params = checked_params(read(tmp_path).sections(0, 0, {}), "a turn")
    assert params.impala.entropy_weight.at(Moment(1000, share=1.0)) == pytest.approx(0.003 * 0.75)
    assert params.impala.entropy_weight.at(Moment(4000, share=1.0)) == 0.0
    base_schedule = read(tmp_path).base_schedules["impala.learning_rate"]
    assert [base_schedule.at(Moment(0, share)) for share in (0.0, 1.0)] == [0.0002, 0.00002]


@pytest.mark.parametrize("path", sorted((ROOT / "populations").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_population_that_ships_can_be_run(path: Path) -> None:
    assert read_population(path).cells


def test_the_key_tells_populations_apart_and_not_what_is_for_people(tmp_path: Path) -> None:
    key = read(tmp_path).key
    assert read(tmp_path, title="Another", question="?", cost="-").key == key
    for changes in (
        {"seed": 8},
        {"turns": 5},
        {"parameters": {"impala.learning_rate": RATE | {"start": [1e-5, 1e-5]}}},
    ):
        assert read(tmp_path, **changes).key != key


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"members": 1}, "members: must be greater than or equal to 2 .got 1"),
        ({"parameters": {"impala.learning_rat": RATE}}, "unknown key impala.learning_rat; did you mean learning_rate"),
        ({"parameters": {"ppo.learning_rate": RATE}}, "ppo.learning_rate is nothing that a run learns by"),
        ({"parameters": {"impala.batch_size": RATE}}, "impala.batch_size is 512, and a population searches"),
        ({"parameters": {"impala.correction.kind": RATE}}, "impala.correction.kind is 'vtrace'"),
        ({"parameters": {"train.checkpoint_s": RATE}}, "train.checkpoint_s is nothing that a run learns by"),
        ({"parameters": {"impala.learning_rate": RATE | {"range": [1e-6, 5]}}}, "the greatest values cannot be"),
        ({"parameters": {"impala.learning_rate": RATE | {"start": [1, 2]}}}, "start must rise and lie in the range"),
        ({"seeded": ["train.sead"]}, "unknown key train.sead"),
        ({"overrides": {"train": {"max_env_steps": 5}}}, "train.max_env_steps is the population's own matter"),
        ({"overrides": {"train": IN_GAME, "impala": {"value_warmup_steps": 0}}}, "train.environment is game"),
    ],
)
def test_what_cannot_be_is_named_before_anything_runs(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, **changes)
