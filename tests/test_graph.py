"""The real `dvc.yaml` under the real DVC, with commands that only write a constant output; and what reads the file."""

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
    is_cached,
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


def test_a_changed_parameter_touches_the_stages_that_read_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


# What reads dvc.yaml --------------------------------------------------------------------------------------------------


def test_dvc_removes_no_output_before_a_stage() -> None:
    outs = [out for stage in GRAPH["stages"].values() for out in stage["outs"]]
    assert [options for out in outs for options in out.values()] == [{"persist": True}] * len(STAGES)


def paths_of(plot: str | dict[str, Any]) -> list[str]:
    """The files of a plot: an image or a folder of them, or the curves of one that has a name."""
    return [plot] if isinstance(plot, str) else [file for curves in plot.values() for file in curves["y"]]


def test_what_dvc_compares_lies_in_outputs() -> None:
    outs = [out for outs in OUTPUTS.values() for out in outs]
    for path in (*GRAPH["metrics"], *(path for plot in GRAPH["plots"] for path in paths_of(plot))):
        assert any(Path(path).is_relative_to(out) for out in outs), path


def test_a_stage_is_found_by_its_module_and_what_dvc_holds(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert stage_of_module("tasks.train") == "train"
    assert stage_of_module("train") is None
    monkeypatch.chdir(project / "tasks")
    assert stage_of_module("tasks.train") is None
    monkeypatch.chdir(project)
    assert is_cached(Path("data/agent"))
    assert not is_cached(Path("data/agent/compared"))
    (project / ".dvc" / "cache").rename(project / ".dvc" / "elsewhere")
    assert not is_cached(Path("data/agent"))
    (project / ".dvc" / "elsewhere").rename(project / ".dvc" / "cache")
    monkeypatch.chdir(project / "tasks")
    assert not is_cached(Path("data/agent"))


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
