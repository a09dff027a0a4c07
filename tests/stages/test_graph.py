"""Content of `dvc.yaml`, and the files that decide a stage's result; with the real DVC: `test_stage_in_dvc.py`."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from rulka.stages.graph import (
    changes_since,
    code_files,
    hash_code,
    note_inputs,
    read_graph,
    stage_of_module,
)

ROOT = Path(__file__).parents[2]
STAGES = ("races", "capture", "pretrain", "clone", "transfer", "train", "evaluate")
GRAPH = yaml.safe_load((ROOT / "dvc.yaml").read_text())
OUTPUTS = {name: parts["outs"] for name, parts in read_graph(ROOT / "dvc.yaml").items()}


def test_dvc_removes_no_output_before_a_stage() -> None:
    outs = [out for stage in GRAPH["stages"].values() for out in stage["outs"]]
    assert [options for out in outs for options in out.values()] == [{"persist": True}] * len(STAGES)


def paths_of(plot: str | dict[str, Any]) -> list[str]:
    """Returns the files of a plot: an image or a folder of images, or the curves of a named plot."""
    return [plot] if isinstance(plot, str) else [file for curves in plot.values() for file in curves["y"]]


def test_what_dvc_compares_lies_in_outputs() -> None:
    outs = [out for outs in OUTPUTS.values() for out in outs]
    for path in (*GRAPH["metrics"], *(path for plot in GRAPH["plots"] for path in paths_of(plot))):
        assert any(Path(path).is_relative_to(out) for out in outs), path


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
    """A project with one stage, as the working directory."""
    for path, text in {
        "dvc.yaml": GRAPH_OF_ONE,
        ".dvcignore": "__pycache__/\n/rulka/part/shown.py\n",
        "params.yaml": "a: {x: 1}\nb: {x: 1}\n",
        "data/in/1": "1",
        "tasks/one.py": "pass\n",
        "rulka/part/code.py": "pass\n",
        "rulka/part/params.py": "pass\n",  # code hashes leave it out: parameters are hashed separately
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


def test_a_stage_is_found_by_its_module(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (stage_of_module("tasks.one"), stage_of_module("one")) == ("one", None)
    monkeypatch.chdir(small / "tasks")
    assert stage_of_module("tasks.one") is None, "there is no dvc.yaml"


def test_the_hash_of_code_knows_names_and_contents(small: Path) -> None:
    assert [file.as_posix() for file in code_files("one")] == [
        "rulka/part/code.py",
        "rulka/part/laps.txt",
        "tasks/one.py",
    ]
    before = hash_code(code_files("one"))
    (small / "rulka" / "part" / "code.py").rename(small / "rulka" / "part" / "node.py")
    assert hash_code(code_files("one")) != before
