"""A project of two stages that record whatever lies at their outputs, in git, and clones of it."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from pathlib import Path

import pytest
from dvc.cli import main as dvc_here

ROOT = Path(__file__).parents[2]
GRAPH = """\
stages:
  races:
    cmd: "true"
    deps: [seed.txt]
    outs:
      - data/races:
          persist: true
  train:
    cmd: "true"
    deps: [data/races]
    params: [ppo]
    outs:
      - data/agent:
          persist: true
"""


def git(*arguments: str, folder: Path = Path()) -> str:
    """Calls git; returns what it wrote."""
    command = ["git", "-c", "user.name=n", "-c", "user.email=n@example.org", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def dvc(*arguments: str) -> None:
    """Calls DVC in the working directory, in this process, unheard: after one call without --quiet none is."""
    with redirect_stdout(io.StringIO()):
        assert dvc_here([*arguments, "--quiet"]) == 0


def commit(message: str) -> str:
    """Commits everything; returns the commit."""
    git("add", "--all")
    git("commit", "--quiet", "--message", message)
    return git("rev-parse", "HEAD").strip()


def write(path: str, text: str) -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def recorded(value: str) -> str:
    """Makes races and an agent of a text, lets DVC record them, and commits; returns the commit."""
    write("seed.txt", value)
    write("data/races/x", f"races {value}")
    write("data/agent/x", f"agent {value}")
    dvc("repro")
    return commit(value)


def text_of(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: in git as this project is, with nothing recorded yet."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)  # whoever runs tests may sign commits, or have hooks
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for path in (".dvc/config", ".dvc/.gitignore", ".gitignore", ".dvcignore"):
        Path(path).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / path, path)
    write("dvc.yaml", GRAPH)
    write("params.yaml", "ppo:\n  gamma: 0.9\n")
    write("data/README.md", "Data")
    write("data/recordings/.gitkeep", "")
    git("init", "--quiet", "--initial-branch=main")
    commit("empty")
    return folder


@pytest.fixture
def clone(project: Path, tmp_path: Path) -> Callable[[str], chdir[Path]]:
    """Returns a function that clones the project beside it, and returns what makes that the current folder."""

    def make(name: str = "clone") -> chdir[Path]:
        git("clone", "--quiet", str(project), str(tmp_path / name))
        return chdir(tmp_path / name)

    return make
