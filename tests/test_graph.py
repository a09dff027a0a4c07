"""The real `dvc.yaml` under the real DVC, with commands that only write a constant output; and what reads the file."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc.repo import Repo

from rulka.graph import (
    changes_since,
    code_files,
    hash_code,
    is_recorded,
    note_inputs,
    read_graph,
    sections_of_stage,
    stage_of_module,
)

ROOT = Path(__file__).parents[1]
STAGES = ("races", "capture", "pretrain", "clone", "transfer", "train", "evaluate")
GRAPH = yaml.safe_load((ROOT / "dvc.yaml").read_text())
OUTPUTS = {name: parts["outs"] for name, parts in read_graph(ROOT / "dvc.yaml").items()}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project in which every stage has run."""
    project = tmp_path_factory.mktemp("project")
    for folder in ("flows", "tasks", "rulka", "models"):
        # Files of bytecode come and go while other processes import.
        shutil.copytree(ROOT / folder, project / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("params.yaml", ".dvcignore"):
        shutil.copy(ROOT / file, project / file)
    (project / "data" / "recordings").mkdir(parents=True)
    (project / "data" / "recordings" / ".gitkeep").touch()
    (project / ".dvc").mkdir()
    (project / ".dvc" / "config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    stages = {name: {**stage, "cmd": toy_command(OUTPUTS[name])} for name, stage in GRAPH["stages"].items()}
    (project / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}, sort_keys=False))
    assert reproduce(project) == list(STAGES)
    return project


def toy_command(outputs: list[str]) -> str:
    return " && ".join(f"mkdir -p {output} && echo {output} > {output}/file" for output in outputs)


def reproduce(project: Path) -> list[str]:
    """Runs `dvc repro`; returns the stages that ran."""
    command = [sys.executable, "-m", "dvc", "repro", "--no-run-cache"]
    answer = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return [line.split("'")[1] for line in answer.stdout.splitlines() if line.startswith("Running stage")]


def test_a_second_run_does_nothing(project: Path) -> None:
    (project / "rulka" / "__pycache__").mkdir()
    (project / "rulka" / "__pycache__" / "new.pyc").touch()
    assert reproduce(project) == []


def test_a_changed_parameter_touches_exactly_the_stages_that_read_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All sections at once, as DVC says for each stage which of them it would run again for."""
    monkeypatch.chdir(project)
    file = project / "params.yaml"
    before = file.read_text()
    params = yaml.safe_load(before)
    file.write_text(yaml.safe_dump({name: section | {"changed": True} for name, section in params.items()}))
    try:
        with Repo() as repo:
            status = repo.status()
    finally:
        file.write_text(before)
    found = {stage: set(changes[0]["changed deps"]["params.yaml"]) for stage, changes in status.items()}
    assert found == {stage: set(sections_of_stage(GRAPH["stages"][stage], params)) for stage in STAGES}
    assert set().union(*found.values()) == params.keys(), "every section is read by some stage"


@pytest.mark.slow
def test_a_changed_parameter_reruns_the_stages_that_read_it(project: Path) -> None:
    file = project / "params.yaml"
    params = yaml.safe_load(file.read_text())
    params["evaluate"]["seed"] += 1
    file.write_text(yaml.safe_dump(params))
    assert reproduce(project) == ["evaluate"]


@pytest.mark.slow
def test_a_new_recording_reruns_races(project: Path) -> None:
    (project / "data" / "recordings" / "new.Replay.Gbx").write_bytes(b"GBX")
    assert reproduce(project) == ["races"]


@pytest.mark.slow
def test_a_lost_output_is_made_again(project: Path) -> None:
    shutil.rmtree(project / "data" / "encoder")
    shutil.rmtree(project / ".dvc" / "cache")
    assert "pretrain" in reproduce(project)
    assert (project / "data" / "encoder" / "file").is_file()


# What DVC compares ----------------------------------------------------------------------------------------------------

MAKE = """
import json, pathlib, sys, yaml
seed = yaml.safe_load(open("params.yaml"))["evaluate"]["seed"]
out = pathlib.Path(sys.argv[1])
(out / "plots").mkdir(parents=True, exist_ok=True)
epochs = [{"epoch": epoch, "train_loss": seed + epoch, "validation_loss": seed - epoch} for epoch in range(3)]
(out / "metrics.json").write_text(json.dumps({"best_epoch": 2, "epochs": epochs}))
(out / "scores.json").write_text(json.dumps({"ppo": {"finish_rate": 1.0, "median_time_s": seed / 8}}))
pictures = "plots/times previews"
for picture in (f"{name}.png" for name in pictures.split()):
    (out / picture).write_bytes(b"%d" % seed)
"""


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with what `dvc.yaml` says of metrics and plots, a commit, and `dvc exp run -S` after it."""
    project = tmp_path_factory.mktemp("compared")
    outs = {"pretrain": "data/encoder", "clone": "data/policy", "evaluate": "data/evaluation"}
    stages = {
        name: {"cmd": f"{sys.executable} make.py {out}", "params": ["evaluate"], "outs": [{out: {"persist": True}}]}
        for name, out in outs.items()
    }
    graph = {"stages": stages, "metrics": GRAPH["metrics"], "plots": GRAPH["plots"]}
    (project / "dvc.yaml").write_text(yaml.safe_dump(graph, sort_keys=False))
    (project / "make.py").write_text(MAKE)
    (project / ".gitignore").write_text("/data/\n")
    shutil.copy(ROOT / "params.yaml", project)
    for command in (
        "git init -q",
        "git config user.name test",
        "git config user.email test@localhost",
        "dvc init -q",
        "dvc config core.analytics false",
        "dvc repro -q",
        "git add -A",
        "git commit -qm before",
        "dvc exp run -q -S evaluate.seed=200",
    ):
        ask(project, command)
    return project


def ask(project: Path, command: str) -> str:
    words = command.split()
    if words[0] == "dvc":
        words[:1] = [sys.executable, "-m", "dvc"]
    answer = subprocess.run(words, cwd=project, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="DVC compares commits of git, which is not here")
def test_what_dvc_says_of_an_experiment(compared: Path) -> None:
    changed = [line for line in ask(compared, "git diff -U0 params.yaml").splitlines() if line[0] in "+-"]
    assert changed[2:] == ["-  seed: 100", "+  seed: 200"]
    shown = json.loads(ask(compared, "dvc metrics show --json"))[""]["data"]
    assert shown["data/evaluation/scores.json"]["data"] == {"ppo": {"finish_rate": 1.0, "median_time_s": 25.0}}
    assert json.loads(ask(compared, "dvc metrics diff --json HEAD")) == {
        "data/evaluation/scores.json": {"ppo.median_time_s": {"old": 12.5, "new": 25.0, "diff": 12.5}}
    }
    plots = json.loads(ask(compared, "dvc plots diff --json --split HEAD"))
    assert not plots.get("errors")
    assert {"loss of Level 0", "loss of Level 1", "data/evaluation/plots/times.png"} <= set(plots["data"])
    for level in ("loss of Level 0", "loss of Level 1"):
        (curves,) = plots["data"][level]
        assert set(curves["revisions"]) == {"HEAD", "workspace"}
    assert {image["revisions"][0] for image in plots["data"]["data/evaluation/plots/times.png"]} == {
        "HEAD",
        "workspace",
    }


# What reads dvc.yaml --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
def test_dvc_removes_no_output_before_a_stage(stage: str) -> None:
    options = [options for out in GRAPH["stages"][stage]["outs"] for options in out.values()]
    assert options == [{"persist": True}] * len(OUTPUTS[stage])


def paths_of(plot: str | dict[str, Any]) -> list[str]:
    """The files of a plot: an image or a folder of them, or the curves of one that has a name."""
    return [plot] if isinstance(plot, str) else [file for curves in plot.values() for file in curves["y"]]


@pytest.mark.parametrize("path", [*GRAPH["metrics"], *(path for plot in GRAPH["plots"] for path in paths_of(plot))])
def test_what_dvc_compares_lies_in_outputs(path: str) -> None:
    assert any(Path(path).is_relative_to(out) for outs in OUTPUTS.values() for out in outs)


def test_outputs_are_plain_paths() -> None:
    assert OUTPUTS["train"] == ["data/agent"]


def test_a_stage_is_found_by_the_module_it_runs(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert stage_of_module("tasks.train") == "train"
    assert stage_of_module("train") is None
    monkeypatch.chdir(project / "tasks")
    assert stage_of_module("tasks.train") is None


def test_dvc_knows_which_outputs_it_has_recorded(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    assert is_recorded(Path("data/agent"))
    assert not is_recorded(Path("data/agent/compared"))
    monkeypatch.chdir(project / "tasks")
    assert not is_recorded(Path("data/agent"))


GRAPH_OF_ONE = """
stages:
  one:
    cmd: python -m tasks.one
    deps: [data/in, tasks/one.py, rulka/part]
    params: [a]
    outs: [data/out]
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one stage, and the working directory of the test."""
    for path, text in {
        "dvc.yaml": GRAPH_OF_ONE,
        ".dvcignore": "__pycache__/\n/rulka/part/shown.py\n",
        "params.yaml": "a: {x: 1}\nb: {x: 1}\n",
        "data/in/1": "1",
        "tasks/one.py": "pass\n",
        "rulka/part/code.py": "pass\n",
        "rulka/part/laps.txt": "lap\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "text", "changes"),
    [
        ("params.yaml", "# note\na:\n  x: 1\nb: {x: 2}\n", []),
        ("params.yaml", "a: {x: 2}\nb: {x: 1}\n", ["a in params.yaml"]),
        ("params.yaml", "a: {x: 1\n", ["a in params.yaml"]),
        ("dvc.yaml", "stages: {\n", []),
        ("tasks/one.py", "print()\n", ["tasks/one.py"]),
        ("tasks/one.py", "pass\n", []),
        ("tasks/two.py", "print()\n", []),
        ("rulka/part/laps.txt", "other\n", ["rulka/part/laps.txt"]),
        ("rulka/part/more.py", "pass\n", ["rulka/part/more.py"]),
        ("rulka/part/shown.py", "pass\n", []),
        ("rulka/part/__pycache__/code.pyc", "x", []),
        ("data/in/1", "2", ["data/in/1"]),
        ("data/in/2", "2", ["data/in/2"]),
        ("data/out/1", "2", []),
    ],
)
def test_what_decides_a_result_is_compared(small: Path, path: str, text: str, changes: list[str]) -> None:
    entry = read_graph()["one"]
    before = note_inputs(entry)
    assert changes_since(before, note_inputs(entry)) == []
    (small / path).parent.mkdir(parents=True, exist_ok=True)
    (small / path).write_text(text)
    assert changes_since(before, note_inputs(entry)) == changes


def test_what_is_removed_is_a_change_and_many_files_are_counted(small: Path) -> None:
    for number in range(9):
        (small / "data" / "in" / f"{number}").write_text("x")
    before = note_inputs(read_graph()["one"])
    (small / "tasks" / "one.py").unlink()
    shutil.rmtree(small / "data" / "in")
    changes = changes_since(before, note_inputs(read_graph()["one"]))
    assert changes == ["tasks/one.py", "data/in/0", "data/in/1", "8 more"]


def test_the_hash_of_code_knows_names_and_contents(small: Path) -> None:
    assert [file.as_posix() for file in code_files("one")] == [
        "rulka/part/code.py",
        "rulka/part/laps.txt",
        "tasks/one.py",
    ]
    before = hash_code(code_files("one"))
    (small / "rulka" / "part" / "code.py").rename(small / "rulka" / "part" / "node.py")
    assert hash_code(code_files("one")) != before
