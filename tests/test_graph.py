"""The real `dvc.yaml` under the real DVC, with commands that only write a constant output."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo

ROOT = Path(__file__).parents[1]
STAGES = ("races", "capture", "pretrain", "clone", "transfer", "train", "evaluate")
GRAPH = yaml.safe_load((ROOT / "dvc.yaml").read_text())


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
    stages = {name: {**stage, "cmd": toy_command(stage["outs"][0])} for name, stage in GRAPH["stages"].items()}
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
