"""Turns that are done once, whoever does them: several processes, killed ones, failed ones. The turns are made up.

A member gets further in each turn the nearer its learning rate is to 1e-3, and begins a decade below.
"""

from __future__ import annotations

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from rulka.machine.errors import UserError
from rulka.runtime.run_lock import locked
from rulka.study.population import POPULATIONS, PopulationFolder, read_population
from rulka.study.population_page import ancestry, format_standings
from rulka.study.population_run import run_population
from rulka.study.turn import Result
from tests.study.conftest import write_project
from tests.waiting import wait_for

POLL_INTERVAL_S = 0.05
TRANSFER = """
from pathlib import Path
Path("data/agent_init").mkdir()
Path("data/agent_init/weights").write_text("0.0")
"""
EVALUATE = """
import json
from pathlib import Path
reached = float(Path("data/agent/weights").read_text())
Path("data/evaluation").mkdir()
agent = {"lap_share": reached, "finish_rate": 1.0, "median_time_s": 1 / reached}
Path("data/evaluation/metrics.json").write_text(json.dumps({"agent": agent}))
"""
TURN = """
import json, math, yaml
from pathlib import Path
with open("starts", "a") as file:
    file.write("x")
order = json.loads(Path("order.json").read_text())
params = yaml.safe_load(Path("params.yaml").read_text())
rate = order["values"]["ppo.learning_rate"]
assert params["ppo"]["learning_rate"] == rate
assert params["train"]["max_env_steps"] == 1000 * (order["turn"] + 1)
begin = Path(order["begin"] or "data/agent_init/weights")
reached = float(begin.read_text()) + 1 - abs(math.log10(rate / 1e-3)) / 3
Path("runs/train").mkdir(parents=True, exist_ok=True)
Path("runs/train/checkpoint").write_text(str(reached))
Path("data/agent").mkdir(exist_ok=True)
Path("data/agent/weights").write_text(str(reached))
is_bad = params["ppo"]["gamma"] == 0.8 and (order["member"] == 2 or order["turn"] == 2)
result = {
    "order": order, "env_steps": 1000 * (order["turn"] + 1), "finish_rate": 1.0,
    "mean_time_s": 1 / reached, "checkpoint": None if is_bad else "runs/train/checkpoint",
    "scores": None if is_bad else [reached + race / 100 for race in range(order["races"])],
    "diverged": "no numbers" if is_bad else None,
}
Path("result.json").write_text(json.dumps(result))
"""
FILE: dict[str, Any] = {
    "title": "A test",
    "question": "Does it run?",
    "cost": "A second.",
    "members": 4,
    "turns": 3,
    "turn_env_steps": 1000,
    "seed": 1,
    "races": 10,
    "overrides": {"ppo": {"gamma": 0.99, "value_warmup_steps": 0}},
    "parameters": {"ppo.learning_rate": {"start": [0.00008, 0.00012], "range": [0.000001, 0.1]}},
    "explore": {"factors": [0.5, 2.0], "resample": 0.0},
}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose stages and turns are made up; the `rulka` in it hides the package from turns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rulka.study.work.POLL_INTERVAL_S", POLL_INTERVAL_S)
    stages = {
        "transfer": (TRANSFER, [], "data/agent_init", ["transfer"]),
        "train": ("", ["data/agent_init"], "data/agent", ["train", "ppo"]),
        "evaluate": (EVALUATE, ["data/agent", "data/agent_init"], "data/evaluation", ["evaluate"]),
    }
    write_project(stages, ["rulka/study"])
    for package in ("rulka", "rulka/study"):
        Path(package, "__init__.py").touch()
    Path("rulka/study/turn.py").write_text(TURN)
    Path("rulka/evaluation").mkdir()
    for name in ("study/selection", "evaluation/statistics"):
        Path(f"rulka/{name}.py").touch()
    return tmp_path


def write(gamma: float = 0.99, **changes: object) -> Path:
    path = Path("test.yaml")
    overrides = {"overrides": {"ppo": {"gamma": gamma, "value_warmup_steps": 0}}}
    path.write_text(yaml.safe_dump(FILE | overrides | changes, sort_keys=False))
    return path


def starts() -> dict[str, int]:
    """How often each turn was begun, by its folder."""
    found = POPULATIONS.glob("*/member-*/turn-*/starts")
    return {f"{path.parent.parent.name}/{path.parent.name}": len(path.read_text()) for path in found}


def results(file: Path) -> list[list[Result]]:
    return PopulationFolder(read_population(file)).finished()


def rate(result: Result) -> float:
    return result.order.values["ppo.learning_rate"]


def score(result: Result) -> float:
    assert result.scores is not None
    return sum(result.scores) / len(result.scores)


@pytest.mark.slow
def test_members_find_a_rate_that_is_a_decade_off() -> None:
    num_turns = 14
    said: list[str] = []
    ended = run_population(write(turns=num_turns), Path("page.md"), said.append)
    assert 5e-4 < ended[0].values["ppo.learning_rate"] < 2e-3
    assert ended[0].score == max(each.score or 0.0 for each in ended)
    assert sum(each.num_copies for each in ended) >= 4
    assert Path(ended[0].folder, "data/agent/weights").is_file()
    assert len([line for line in said if "is done: " in line and line.startswith("turn")]) == 4 * num_turns
    (metrics,) = POPULATIONS.glob("*/evaluation/data/evaluation/metrics.json")
    agent = float(Path(ended[0].folder, "data/agent/weights").read_text())
    assert json.loads(metrics.read_text())["agent"]["lap_share"] == agent, "the best member's agent is evaluated"
    page = Path("page.md").read_text()
    assert format_standings(ended) in page
    assert f"lap share {agent:.3f}" in page
    turns = results(write(turns=num_turns))
    way = ancestry(turns, ended[0].member)
    for before, result in pairwise(way):
        assert result.order.parent == before.order.member
        assert f"| {result.env_steps:,} | {result.order.member} | {rate(result):.3g} | {score(result):.2f} |" in page
    copied = [result.order for each in turns for result in each if result.order.is_copied]
    assert page.split("## Copies")[1].count("\n| ") == 1 + len(copied)
    assert Path("images/population-test-schedule.png").stat().st_size > 10_000


def test_a_replaced_member_goes_on_from_the_best_and_what_is_finished_is_not_done_again() -> None:
    path, said = write(turns=4), list[str]()
    ended = run_population(path, None, lambda _: None)
    assert run_population(path, None, said.append) == ended
    assert list(starts().values()) == [1] * 16
    assert len(said) == 4
    kept = [path.parts[-4] for path in POPULATIONS.glob("*/member-*/turn-*/runs/train/checkpoint")]
    assert sorted(kept) == ["turn-0003"] * 4, "older ones are gone"
    turns = results(path)
    copied = [result.order for turn in turns for result in turn if result.order.is_copied]
    assert copied
    for order in copied:
        parent = turns[order.turn - 1][order.parent]
        factor = order.values["ppo.learning_rate"] / parent.order.values["ppo.learning_rate"]
        assert factor == pytest.approx(0.5) or factor == pytest.approx(2.0)
        assert order.begin == f"../../member-{order.parent:03d}/turn-{order.turn - 1:04d}/runs/train/checkpoint"
        means = [score(each) for each in turns[order.turn - 1]]
        assert means.index(min(means)) == order.member
        assert means.index(max(means)) == order.parent


def test_two_at_work_do_no_turn_twice_and_come_to_the_same() -> None:
    """Threads of this process, each with locks of its own, as processes have them."""
    path = write(turns=2)
    alone = run_population(path, None, lambda _: None)
    turns = results(path)
    shutil.rmtree("runs")
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(run_population, path, None, lambda _: None) for _ in range(2)]
    assert [each.result() for each in both] == [alone, alone]
    assert set(starts().values()) == {1}
    assert len(starts()) == 4 * 2
    assert results(path) == turns


@pytest.mark.slow
def test_a_member_that_diverges_is_replaced_and_all_of_them_are_an_end() -> None:
    with pytest.raises(UserError, match="all members have diverged in turn 2, none is left to go on from: no numbers"):
        run_population(write(gamma=0.8), None, lambda _: None)
    turns = results(write(gamma=0.8))
    assert [result.order.parent == 2 for result in turns[1]] == [False] * 4
    assert turns[1][2].order.is_copied


def test_a_turn_that_somebody_is_at_is_left_alone() -> None:
    folder = PopulationFolder(read_population(write(turns=2)))
    left = [folder.turn_folder(2, 0)]
    with ThreadPoolExecutor(1) as pool, locked(*left):
        ended = pool.submit(run_population, Path("test.yaml"), None, lambda _: None)
        wait_for(lambda: [job.folder for job in folder.due()] == left, "the turns that nobody is at")
        time.sleep(10 * POLL_INTERVAL_S)
        assert [job.folder for job in folder.due()] == left, "nobody begins the next turn, or this one"
        assert not ended.done()
    assert len(ended.result()) == 4
    assert set(starts().values()) == {1}
