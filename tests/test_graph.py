"""The real `dvc.yaml` under the real DVC, with commands that only write a constant output; and what reads the file."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo

from rulka.graph import code_files, hash_code, is_recorded, note_inputs, read_graph, stage_of_module

ROOT = Path(__file__).parents[1]
STAGES = ("races", "capture", "pretrain", "clone", "transfer", "train", "evaluate")
GRAPH = yaml.safe_load((ROOT / "dvc.yaml").read_text())
OUTPUTS = {name: parts["outs"] for name, parts in read_graph(ROOT / "dvc.yaml").items()}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project in which every stage has run."""
    project = tmp_path_factory.mktemp("project")
    for folder in ("flows", "tasks", "rulka", "models"):
        shutil.copytree(ROOT / folder, project / folder)
    for file in ("params.yaml", ".dvcignore"):
        shutil.copy(ROOT / file, project / file)
    (project / "data" / "recordings").mkdir(parents=True)
    (project / "data" / "recordings" / ".gitkeep").touch()
    (project / ".dvc").mkdir()
    (project / ".dvc" / "config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    stages = {name: {**stage, "cmd": toy_command(OUTPUTS[name][0])} for name, stage in GRAPH["stages"].items()}
    (project / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}, sort_keys=False))
    assert reproduce(project) == list(STAGES)
    return project


def toy_command(output: str) -> str:
    return f"mkdir -p {output} && echo {output} > {output}/file"


def reproduce(project: Path) -> list[str]:
    """Runs `dvc repro`; returns the stages that ran."""
    command = [sys.executable, "-m", "dvc", "repro", "--no-run-cache"]
    answer = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return [line.split("'")[1] for line in answer.stdout.splitlines() if line.startswith("Running stage")]


def test_a_second_run_does_nothing(project: Path) -> None:
    (project / "rulka" / "__pycache__").mkdir(exist_ok=True)
    (project / "rulka" / "__pycache__" / "new.pyc").touch()
    assert reproduce(project) == []


@pytest.mark.parametrize("section", sorted(yaml.safe_load((ROOT / "params.yaml").read_text())))
def test_a_changed_parameter_touches_exactly_the_stages_that_read_it(
    project: Path, section: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    readers = {name for name in STAGES if section in GRAPH["stages"][name]["params"]}
    assert readers
    file = project / "params.yaml"
    before = file.read_text()
    params = yaml.safe_load(before)
    params[section]["changed"] = True
    file.write_text(yaml.safe_dump(params))
    try:
        assert set(Repo().status()) == readers
    finally:
        file.write_text(before)


def test_a_changed_parameter_reruns_the_stages_that_read_it(project: Path) -> None:
    file = project / "params.yaml"
    params = yaml.safe_load(file.read_text())
    params["evaluate"]["seed"] += 1
    file.write_text(yaml.safe_dump(params))
    assert reproduce(project) == ["evaluate"]


def test_a_new_recording_reruns_races(project: Path) -> None:
    (project / "data" / "recordings" / "new.Replay.Gbx").write_bytes(b"GBX")
    assert reproduce(project) == ["races"]


def test_a_lost_output_is_made_again(project: Path) -> None:
    shutil.rmtree(project / "data" / "encoder")
    shutil.rmtree(project / ".dvc" / "cache")
    assert "pretrain" in reproduce(project)
    assert (project / "data" / "encoder" / "file").is_file()


# What reads dvc.yaml --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
def test_dvc_removes_no_output_before_a_stage(stage: str) -> None:
    assert [options for out in GRAPH["stages"][stage]["outs"] for options in out.values()] == [{"persist": True}]


@pytest.mark.parametrize("path", [*GRAPH["metrics"], *GRAPH["plots"]])
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
        ("rulka/part/__pycache__/code.pyc", "x", []),
        ("data/in/1", "2", ["data/in/1"]),
        ("data/in/2", "2", ["data/in/2"]),
        ("data/out/1", "2", []),
    ],
)
def test_what_decides_a_result_is_compared(small: Path, path: str, text: str, changes: list[str]) -> None:
    entry = read_graph()["one"]
    before = note_inputs(entry)
    assert note_inputs(entry).changes_since(before) == []
    (small / path).parent.mkdir(parents=True, exist_ok=True)
    (small / path).write_text(text)
    assert note_inputs(entry).changes_since(before) == changes


def test_what_is_removed_is_a_change_and_many_files_are_counted(small: Path) -> None:
    for number in range(9):
        (small / "data" / "in" / f"{number}").write_text("x")
    before = note_inputs(read_graph()["one"])
    (small / "tasks" / "one.py").unlink()
    shutil.rmtree(small / "data" / "in")
    changes = note_inputs(read_graph()["one"]).changes_since(before)
    assert changes == ["tasks/one.py", "data/in", "data/in/0", "data/in/1", "7 more files"]


def test_the_hash_of_code_knows_names_and_contents(small: Path) -> None:
    assert [file.as_posix() for file in code_files("one")] == [
        "rulka/part/code.py",
        "rulka/part/laps.txt",
        "tasks/one.py",
    ]
    before = hash_code(code_files("one"))
    (small / "rulka" / "part" / "code.py").rename(small / "rulka" / "part" / "node.py")
    assert hash_code(code_files("one")) != before
