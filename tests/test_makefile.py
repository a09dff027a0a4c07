"""`make`: files deleted, confirmations, and command lines of programs."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CANNOT_BE_MADE_AGAIN = {
    "data/recordings/a.Gbx",
    "data/recordings.dvc",
    "data/takeovers/a.drive.npz",
    "data/backbones/vit/model.safetensors",
    "data/agents/ppo-1/meta.json",
    "data/agents.dvc",
    "data/nights/history.csv",
    "data/nights.dvc",
}
KEPT = {"Makefile", "data/README.md", "rulka/code.py"} | CANNOT_BE_MADE_AGAIN
RESULTS = {
    "data/agent/meta.json",
    "data/old rulka/x",
    "data/.agent-abc/x",
    "runs/train/x",
    ".dvc/cache/files/1",
    ".prefect/db",
    "dvc.lock",
}
OF_TOOLS = {".ruff_cache/x", "dvc_plots/index.html", "site/index.html", "rulka/__pycache__/code.pyc"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "Makefile", tmp_path / "Makefile")
    for path in KEPT - {"Makefile"} | RESULTS | OF_TOOLS:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    for folder in ("flows", "tasks", "models", "tests", "benchmarks"):
        (tmp_path / folder).mkdir()
    return tmp_path


def make(project: Path, *arguments: str) -> tuple[int, str, set[str]]:
    """Runs `make`; returns exit code, output, and the remaining files."""
    # Settings of an outer `make`, which may have started the tests, must not reach this one.
    of_another = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "SURE"}
    environment = {name: value for name, value in os.environ.items() if name not in of_another}
    answer = subprocess.run(
        ["make", *arguments], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    left = {path.relative_to(project).as_posix() for path in project.rglob("*") if path.is_file()}
    return answer.returncode, answer.stdout, left


def test_clean_deletes_what_the_tools_made_and_no_agent(project: Path) -> None:
    assert make(project, "clean")[::2] == (0, KEPT | RESULTS)


def test_results_are_deleted_only_when_that_is_said(project: Path) -> None:
    code, said, left = make(project, "clean-results")
    assert code != 0
    assert "data/agent" in said
    assert "data/agents\n" not in said
    assert "make clean-results SURE=yes" in said
    assert left == KEPT | RESULTS | OF_TOOLS
    assert make(project, "clean-results", "SURE=yes")[::2] == (0, KEPT | OF_TOOLS)
    assert make(project, "clean-results", "SURE=yes")[0] == 0


def test_an_environment_that_was_moved_is_made_anew(project: Path) -> None:
    for name in ("pyproject.toml", "constraints.txt"):
        (project / name).touch()
    (project / ".venv").mkdir()
    for place, is_made in ((project, False), (project.parent / "before", True)):
        (project / ".venv" / ".ready").write_text(f"{place.resolve() / '.venv'}\n")
        code, said, _ = make(project, "--dry-run", "setup")
        assert code == 0
        assert ("rm -rf .venv" in said, "-m venv .venv" in said) == (is_made, is_made)
