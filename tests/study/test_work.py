"""Work that is done once: killed, failed, interrupted, gone on with. The stages are made up and take no time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from rulka.machine.errors import UserError
from rulka.study.experiment import run_experiment
from rulka.study.plan import EXPERIMENTS, do_stages, read_plan
from tests.study.conftest import write_project
from tests.waiting import PATIENCE_S, wait_for

ROOT = Path(__file__).resolve().parents[2]
PRETRAIN = """
import json, yaml
from pathlib import Path
seed = yaml.safe_load(open("params.yaml"))["pretrain"]["seed"]
Path("data/encoder").mkdir()
times = {"time_s": 3.0 if seed == 2 else None, "never_s": None}
metrics = {"probes": {"speed_mps": {"pretrained_error": seed + 0.5}}, "loss": "low"} | times
Path("data/encoder/metrics.json").write_text(json.dumps(metrics))
"""
TRANSFER = """
import json, yaml
from pathlib import Path
parts = yaml.safe_load(open("params.yaml"))["transfer"]["ppo"]
Path("data/agent_init").mkdir()
Path("data/agent_init/report.json").write_text(json.dumps({"algorithm": "ppo", "parts": parts, "tensors": []}))
"""
TRAIN = """
import json, os, time, yaml
from pathlib import Path
params = yaml.safe_load(open("params.yaml"))
Path("runs").mkdir(exist_ok=True)
with open("runs/starts", "a") as file:
    file.write("x")
if params["ppo"]["gamma"] == 0.5:
    raise SystemExit("error: gamma is bad\\nand more")
while params["ppo"]["gamma"] == 0.6 and len(open("runs/starts").read()) < 2:
    time.sleep(0.05)
Path("data/agent").mkdir()
Path("data/agent/threads").write_text(os.environ.get("OMP_NUM_THREADS", "all"))
score = params["ppo"]["gamma"] + params["train"]["seed"] / 100
steps = [{"env_steps": 1000 * n, "cpu_minutes": n / 10, "minutes": n, "finish_rate": 1, "score": score} for n in (1, 2)]
checks = [{"env_steps": 10 * n, "check_finish_rate": rate} for n, rate in ((0, 0.8), (10, 0.6), (19, 0.9), (120, 0.0))]
for check in checks:
    check |= {"minutes": 0, "finish_rate": None, "check_mean_pace_mps": check["check_finish_rate"] * score}
steps = [{"cpu_minutes": check["env_steps"] / 100} | check for check in checks] + steps
training = {"run": "ppo-1", "repeats": "yes" if score < 0.9 else "max_cpu_minutes ended it"}
Path("runs/train/ppo-1").mkdir(parents=True)
Path("runs/train/ppo-1/metrics.jsonl").write_text("".join(json.dumps(step) + "\\n" for step in steps))
Path("data/agent/meta.json").write_text(json.dumps({"provenance": {"training": training}, "score": score}))
"""
EVALUATE = """
import json
from pathlib import Path
score = json.loads(Path("data/agent/meta.json").read_text())["score"]
agent = {"lap_share": score, "finish_rate": 1.0, "median_time_s": 10 / score, "mean_progress_m": 600.0}
Path("data/evaluation").mkdir()
driver = {"races": 2, "finished": 2, "median_time_s": 10 / score, "times_reference": 1 / score, "medal": "gold"}
slow = {"finished": 1, "median_time_s": None, "times_reference": None}
drivers = {"agent": driver, "cloned": driver | slow}
names = ["here", "there"] if score < 0.9 else ["here"]
tracks = [
    {"uid": name, "name": "A", "length_m": 600.0, "trained_on": name == "here", "drivers": drivers} for name in names
]
Path("data/evaluation/metrics.json").write_text(json.dumps({"agent": agent, "tracks": tracks}))
"""
FRESH = {"ppo": dict.fromkeys(("encoder", "float_head", "trunk", "heads"), "fresh")}
FILE = {
    "title": "A test",
    "question": "Does it run?",
    "cost": "A second.",
    "seeds": [1, 2],
    "baseline": "plain",
    "overrides": {"ppo": {"gamma": 0.99, "value_warmup_steps": 0}},
    "variants": {"plain": {"transfer": FRESH}, "low": {"ppo": {"gamma": 0.8}}},
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rulka.study.work.POLL_INTERVAL_S", 0.02)
    stages = {
        "pretrain": (PRETRAIN, [], "data/encoder", ["pretrain"]),
        "transfer": (TRANSFER, ["data/encoder"], "data/agent_init", ["transfer"]),
        "train": (TRAIN, ["data/agent_init"], "data/agent", ["train", "ppo"]),
        "evaluate": (EVALUATE, ["data/agent"], "data/evaluation", ["evaluate"]),
    }
    write_project(stages)
    return tmp_path


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages cost no processor time: what they really take, and the page shows in minutes, is the machine's matter."""
    monkeypatch.setattr("rulka.study.work._family", lambda _: [])


def write(**changes: object) -> Path:
    path = Path("test.yaml")
    path.write_text(yaml.safe_dump(FILE | changes, sort_keys=False))
    return path


def starts(pattern: str) -> int:
    return sum(len(path.read_text()) for path in EXPERIMENTS.glob(f"{pattern}/runs/starts"))


@pytest.mark.usefixtures("project", "free")
def test_an_experiment_is_run_once_and_has_a_page() -> None:
    said: list[str] = []
    table, rows = run_experiment(write(), (), 2, Path("page.md"), said.append)
    assert said[0] == "A test: 4 cells, 11 stages. A second."
    assert len([line for line in said if "is done" in line]) == 11
    assert "| plain | 2 | 1.005 (0.941 to 1.069) |  | 100% | 9.95 s | 0.75 | 2,000 | 0.2 | 0.0 |" in table
    assert "| low | 2 | 0.815 (0.751 to 0.879) | 0.00 (p = 0.33) | 100% | 12.27 s | 0.75 | 2,000 | 0.2 |" in table
    assert [(row["variant"], row["score_interval"]) for row in json.loads(json.dumps(rows))] == [
        ("plain", pytest.approx([0.941, 1.069], abs=1e-3)),
        ("low", pytest.approx([0.751, 0.879], abs=1e-3)),
    ]
    page = Path("page.md").read_text()
    assert table in page
    assert "| low | 2 | 0.820 | 100% | 12.20 s | 0.75 | 2,000 | 0 | 0.2 | 0.0 | 2.0 | yes |" in page
    assert "| plain | 2 | 1.010 | 100% | 9.90 s | 0.75 | 2,000 | 0 | 0.2 | 0.0 | 2.0 | no |" in page
    assert "| plain | 1 of 2 | 190 | 1.00 | 1.9 |" in page, "0.9 / 9.90 s is the better one's"
    assert "| low | 0 of 2 | - | - | - |" in page
    first = page[page.index("## The first finish") : page.index("## As good as")]
    assert "| low | 2 of 2 | 0 (0 to 0) | - | 0.0 (0.0 to 0.0) |" in first
    assert "| low | agent | 100.0% (100.0% to 100.0%) |" in page
    assert "| low | cloned | 50.0% (50.0% to 50.0%) |" in page
    assert "| low | agent | A | 600 m | no | 4 | 4 | 12.27 s | 1.227 |" in page
    assert "| low | cloned | A | 600 m | no | 2 | 4 | - | - |" in page
    assert "| plain | agent | A | 600 m | yes | 4 | 4 |" in page
    assert "| plain | agent | 1" not in page, "it was trained on all of its tracks"
    assert Path("images/test-curves.png").stat().st_size > 10_000
    said.clear()
    assert run_experiment(write(), (), 1, None, said.append) == (table, rows)
    assert said[1:] == ["11 of 11 stages were done before"]
    said.clear()
    mixed = {"plain": {}, "loose": {"train": {"order": "free"}}}
    run_experiment(write(variants=mixed), ["plain/1", "loose/1"], 2, None, said.append)
    assert said[1] == "in free order, so that their trainings do not repeat bit by bit: loose"


@pytest.mark.usefixtures("project", "free")
@pytest.mark.slow
def test_what_came_before_counts_for_those_who_take_it_over() -> None:
    run_experiment(write(seeds=[1]), (), 2, None, lambda _: None)
    (done,) = EXPERIMENTS.glob("pretrain-*/done.json")
    done.write_text(json.dumps({"cpu_seconds": 72.0}))
    table = run_experiment(write(seeds=[1]), (), 2, Path("page.md"), lambda _: None).text
    assert [line.split(" | ")[-1] for line in table.splitlines()[2:]] == ["0.0 |", "1.2 |"]
    run_experiment(write(seeds=[1], baseline="low"), (), 2, Path("page.md"), lambda _: None)
    assert "| low | 1 of 1 | 190 | 1.00 | 3.1 |" in Path("page.md").read_text()


@pytest.mark.usefixtures("project")
def test_an_experiment_may_end_before_anything_races() -> None:
    measured: dict[str, Any] = {"last_stage": "pretrain", "seeded": ["pretrain.seed"], "seeds": [1, 2]}
    measured |= {"variants": {"plain": {}}, "measures": ["probes.speed_mps.pretrained_error", "time_s", "never_s"]}
    table, rows = run_experiment(write(**measured), (), 2, Path("page.md"), lambda _: None)
    assert [row["probes.speed_mps.pretrained_error"] for row in rows] == [1.5, 2.5]
    assert table.splitlines()[2:] == ["| plain | 2 | 2 (1.5 to 2.5) | 3 | - |"]
    page = Path("page.md").read_text()
    assert table in page
    assert "| plain | 1 | 1.5 | - | - |" in page
    assert "| plain | 2 | 2.5 | 3 | - |" in page
    for name, message in (
        ("probes.speed.pretrained_error", "where speed is looked for there is speed_mps"),
        ("loss", "no number"),
    ):
        with pytest.raises(UserError, match=message):
            run_experiment(write(**measured | {"measures": [name]}), (), 2, None, lambda _: None)


@pytest.mark.usefixtures("project")
def test_stages_find_recordings_takeovers_and_backbones() -> None:
    names = {"recordings", "takeovers", "backbones"}
    for name in names:
        Path("data", name).mkdir()
    run_experiment(write(seeds=[1], variants={"plain": {}}), (), 1, None, lambda _: None)
    (folder,) = EXPERIMENTS.glob("pretrain-*")
    assert {path.name for path in (folder / "data").iterdir() if path.is_symlink()} == names


@pytest.mark.usefixtures("project")
def test_a_seed_more_runs_that_seed_alone() -> None:
    run_experiment(write(seeds=[1]), (), 2, None, lambda _: None)
    said: list[str] = []
    run_experiment(write(), (), 2, None, said.append)
    assert said[1] == "7 of 11 stages were done before"
    Path("tasks/evaluate.py").write_text(EVALUATE + "# edited\n")
    said.clear()
    run_experiment(write(), (), 2, None, said.append)
    assert said[1] == "7 of 11 stages were done before", "what was edited is done anew, what comes before it is not"


@pytest.mark.usefixtures("project")
def test_stages_that_run_at_once_compute_as_one_alone_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads decide the last bits of sums."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    run_experiment(write(seeds=[1], variants={"plain": {}}), (), 2, None, lambda _: None)
    assert {path.read_text() for path in EXPERIMENTS.glob("train-*/data/agent/threads")} == {"all"}


@pytest.mark.usefixtures("project")
def test_a_cell_that_fails_is_named_and_stops_no_other() -> None:
    said: list[str] = []
    path = write(variants={"plain": {}, "bad": {"ppo": {"gamma": 0.5}}})
    with pytest.raises(UserError, match=r"2 of 4 cells .* bad/1, bad/2"):
        run_experiment(path, (), 2, Path("page.md"), said.append)
    failures = [line for line in said if "failed" in line]
    assert len(failures) == 2
    assert all("failed: gamma is bad; see runs/experiments/train-" in line for line in failures)
    assert "Unfinished cells: `bad/1`, `bad/2`." in Path("page.md").read_text()
    Path("tasks/train.py").write_text(TRAIN.replace("== 0.5", "== 0.55"))
    run_experiment(path, (), 2, None, lambda _: None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on_and_leaves_no_process(project: Path, number: signal.Signals) -> None:
    """The training waits for its second start; its folder, where it would have a checkpoint, is as it left it."""
    path = write(seeds=[1], variants={"plain": {"ppo": {"gamma": 0.6}}})
    command = [sys.executable, "-m", "rulka.cli", "experiment", str(path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    shutil.rmtree("rulka")  # it would hide the package from the command; to the stages, links to it are nothing
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True) as first:
        try:
            wait_for(lambda: starts("train-*"), "the training")
            first.send_signal(number)
            text, _ = first.communicate(timeout=PATIENCE_S)
        finally:
            first.kill()
    assert first.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL), text
    assert starts("train-*") == 1
    said: list[str] = []
    run_experiment(path, (), 1, None, said.append)
    assert len([line for line in said if "is done" in line]) == 2


@pytest.mark.usefixtures("project")
def test_two_at_work_do_no_stage_twice_and_wait_for_each_other() -> None:
    """They are threads of this process, each with locks of its own, as processes have them."""
    cells, said = read_plan(write()).cells, list[str]()
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(do_stages, cells, 1, said.append) for _ in range(2)]
    assert not any(each.result().failures for each in both)
    assert len([line for line in said if "is done" in line]) == 11
    assert all(cell.last.cpu_seconds is not None for cell in cells)


@pytest.mark.usefixtures("project")
def test_a_stage_that_is_killed_goes_on() -> None:
    kill = "if os.path.getsize('runs/starts') == 1:\n    os.kill(os.getpid(), 9)\n"
    Path("tasks/train.py").write_text(TRAIN.replace("if params", f"{kill}if params", 1))
    said: list[str] = []
    run_experiment(write(seeds=[1], variants={"plain": {}}), (), 1, None, said.append)
    assert [line.endswith("was killed: it goes on") for line in said if line.startswith("train")] == [True, False]
