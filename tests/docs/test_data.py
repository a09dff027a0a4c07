"""`docs/data.md`: its blocks, run one after another in a small project, do what the page says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "data.md"
MAKE = """\
import json, pathlib, yaml
gamma = yaml.safe_load(open("params.yaml"))["ppo"]["gamma"]
for path, found in {
    "data/evaluation/scores.json": {"agent": {"mean_time_s": 10 * gamma}},
    "data/encoder/metrics.json": [{"epoch": epoch, "train_loss": gamma, "validation_loss": gamma} for epoch in (1, 2)],
}.items():
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(path).write_text(json.dumps(found))
"""


class Shell:
    """Runs blocks of shell, each in the folder where the one before ended.

    Attributes:
        words: what stands on the page, and what is there in its place.
    """

    def __init__(self, folder: Path, words: dict[str, str]) -> None:
        self.words = words
        self._folder, self._where = folder, folder.parent / "where"
        self._environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "DVC_SITE_CACHE_DIR": str(folder.parent / "site"),
            "GIT_CONFIG_GLOBAL": os.devnull,  # whoever runs tests may sign commits, or have hooks
            "GIT_CONFIG_NOSYSTEM": "1",
            **{f"GIT_{who}_{what}": "n" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }

    def __call__(self, block: str) -> str:
        """Returns what the block writes; all of its commands must succeed."""
        for word, instead in self.words.items():
            block = block.replace(word, instead)
        script = f"set -e\n{block}\npwd > {self._where}"
        answer = subprocess.run(
            ["bash", "-c", script], cwd=self._folder, env=self._environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert answer.returncode == 0, f"{block}\n{answer.stdout}\n{answer.stderr}"
        self._folder = Path(self._where.read_text().strip())
        return answer.stdout

    def file(self, path: str) -> Path:
        return self._folder / path


def blocks_of(heading: str) -> list[str]:
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [block.strip() for block in section.split("```")[1::2]]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A project of one stage whose numbers follow from a parameter, as this project's `dvc.yaml` compares them."""
    folder = tmp_path / "project"
    ours = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))
    losses = [plot for plot in ours["plots"] if isinstance(plot, dict) and "data/encoder/metrics.json" in str(plot)]
    assert losses
    outs = [{path: {"persist": True}} for path in ("data/evaluation", "data/encoder")]
    stage = {"cmd": "python make.py", "deps": ["make.py"], "params": ["ppo"], "outs": outs}
    never = {"cmd": "false", "deps": ["data/evaluation"], "outs": [{"data/never": {"persist": True}}]}
    graph = {"stages": {"all": stage, "never": never}, "metrics": ours["metrics"], "plots": losses}
    for path in (".dvc/config", ".dvc/.gitignore", ".gitignore", ".dvcignore"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, folder / path)
    (folder / "data/recordings").mkdir(parents=True)
    (folder / "data/recordings/.gitkeep").touch()
    (folder / "make.py").write_text(MAKE)
    (folder / "dvc.yaml").write_text(yaml.safe_dump(graph))
    (folder / "params.yaml").write_text("ppo:\n  gamma: 0.9\n")
    shell = Shell(folder, {"/mnt/backup/rulka": str(tmp_path / "store"), "ADDRESS": str(folder)})
    shell("git init --quiet --initial-branch=main && git add --all && git commit --quiet -m start")
    return shell


def add_other_project(shell: Shell) -> None:
    """Makes the project `../other`, which shares the cache and has a file of its own in it."""
    shell("mkdir ../other && cd ../other && git init --quiet && dvc init --quiet")
    shell("dvc cache dir ../project/.dvc/cache && echo other > x && dvc add --quiet x && cd ../project")


def test_recordings(shell: Shell) -> None:
    shell.file("data/recordings/a.Gbx").write_text("a")
    (block,) = blocks_of("Recordings")
    shell(block)
    assert shell("git status --porcelain") == ""
    assert shell("git ls-files data").split() == ["data/.gitignore", "data/recordings.dvc"]
    assert len(list(shell.file(".dvc/cache/files").rglob("*.dir"))) == 1


@pytest.mark.slow
def test_all_blocks(shell: Shell) -> None:
    """As `test_recordings`, for every block of the page, in the order in which it has them."""
    scores = "data/evaluation/scores.json"

    def time_s() -> float:
        return json.loads(shell.file(scores).read_text())["agent"]["mean_time_s"]

    def gamma(value: float) -> None:
        shell.file("params.yaml").write_text(f"ppo:\n  gamma: {value}\n")
        shell("dvc repro --quiet --single-item all")

    def keep(keep_result: str) -> None:
        gamma(0.9)
        shell(keep_result)
        assert "dvc.lock" in shell("git show --stat ppo-1")

    def compare(compare: str) -> None:
        gamma(0.5)
        said = shell(compare)
        assert "ppo.gamma" in said
        assert "agent.mean_time_s" in said
        assert "-4" in said, "seconds less"
        page = Path(said.strip().splitlines()[-1].removeprefix("file://"))
        assert all(text in page.read_text() for text in ("loss of Level 0", "workspace", "ppo-1"))
        shell("git add dvc.lock params.yaml && git commit -m 0.5")

    def recordings(add: str) -> None:
        shell.file("data/recordings/a.Gbx").write_text("a")
        shell(add)

    def elsewhere(remote: str, all_commits: str, clone: str) -> None:
        shell(remote)
        store = Path(shell.words["/mnt/backup/rulka"])
        files = {path.name for path in store.rglob("*") if path.is_file()}
        shell(all_commits)
        cached = {path.name for path in shell.file(".dvc/cache/files").rglob("*") if path.is_file()}
        assert files < cached
        assert {path.name for path in store.rglob("*") if path.is_file()} == cached, "of ppo-1, too"
        shell(clone)
        assert (time_s(), shell.file("data/recordings/a.Gbx").read_text()) == (5.0, "a")
        shell("cd ../project")

    def old_agent(bring: str, end: str) -> None:
        said = shell(bring)
        assert time_s() == 9.0
        assert "all:" not in said, "what was made then is made from what is there"
        shell("cd ../project")
        assert time_s() == 5.0
        shell(end)
        assert not shell.file("../old").exists()

    def room(gc: str, gc_of_shared_cache: str) -> None:
        gamma(0.7)
        lost = set(shell.file(".dvc/cache/files").rglob("*.dir"))
        gamma(0.6)
        look, _ = gc.splitlines()
        assert "Removed" in shell(look)
        assert lost <= set(shell.file(".dvc/cache/files").rglob("*.dir")), "it only looks"
        shell(gc)
        left = set(shell.file(".dvc/cache/files").rglob("*.dir"))
        assert len(lost - left) == 2, "of 0.7, which no commit names"
        shell("git checkout ppo-1 -- dvc.lock params.yaml && dvc checkout --quiet --allow-missing")
        assert time_s() == 9.0
        before = set(shell.file(".dvc/cache/files").rglob("*"))
        add_other_project(shell)
        others = set(shell.file(".dvc/cache/files").rglob("*")) - before
        shell(gc_of_shared_cache)
        assert others
        assert all(path.exists() for path in others), "the other project still has its data"

    steps: dict[str, Callable[..., None]] = {
        "Keep a result": keep,
        "Compare": compare,
        "Recordings": recordings,
        "Data on another disk or machine": elsewhere,
        "An old agent": old_agent,
        "Make room": room,
    }
    headings = [line[3:] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("## ")]
    assert list(steps) == headings
    for heading, step in steps.items():
        step(*blocks_of(heading))
