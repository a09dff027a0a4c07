"""`docs/data.md`: its blocks, run one after another in a small project, do what the page says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
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
    headings = [line[3:] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("## ")]
    (keep,), (compare,), (add,), (remote, all_commits, clone), (bring, end), (gc, gc_of_shared_cache) = map(
        blocks_of, headings
    )
    cache = shell.file(".dvc/cache/files")

    def time_s() -> float:
        return json.loads(shell.file("data/evaluation/scores.json").read_text())["agent"]["mean_time_s"]

    def gamma(value: float) -> None:
        shell.file("params.yaml").write_text(f"ppo:\n  gamma: {value}\n")
        shell("dvc repro --quiet --single-item all")

    def names(folder: Path) -> set[str]:
        return {path.name for path in folder.rglob("*") if path.is_file()}

    gamma(0.9)
    shell(keep)
    assert "dvc.lock" in shell("git show --stat ppo-1")

    gamma(0.5)
    said = shell(compare)
    assert all(text in said for text in ("ppo.gamma", "agent.mean_time_s", "-4")), "seconds less"
    page = Path(said.strip().splitlines()[-1].removeprefix("file://"))
    assert all(text in page.read_text() for text in ("loss of Level 0", "workspace", "ppo-1"))
    shell("git add dvc.lock params.yaml && git commit -m 0.5")

    shell.file("data/recordings/a.Gbx").write_text("a")
    shell(add)

    shell(remote)
    store = Path(shell.words["/mnt/backup/rulka"])
    assert names(store) < names(cache)
    shell(all_commits)
    assert names(store) == names(cache), "of ppo-1, too"
    shell(clone)
    assert (time_s(), shell.file("data/recordings/a.Gbx").read_text()) == (5.0, "a")
    shell("cd ../project")

    said = shell(bring)
    assert time_s() == 9.0
    assert "all:" not in said, "what was made then is made from what is there"
    shell("cd ../project")
    assert time_s() == 5.0
    shell(end)
    assert not shell.file("../old").exists()

    gamma(0.7)
    lost = set(cache.rglob("*.dir"))
    gamma(0.6)
    look, _ = gc.splitlines()
    assert "Removed" in shell(look)
    assert lost <= set(cache.rglob("*.dir")), "it only looks"
    shell(gc)
    assert len(lost - set(cache.rglob("*.dir"))) == 2, "of 0.7, which no commit names"
    shell("git checkout ppo-1 -- dvc.lock params.yaml && dvc checkout --quiet --allow-missing")
    assert time_s() == 9.0
    before = set(cache.rglob("*"))
    shell("mkdir ../other && cd ../other && git init --quiet && dvc init --quiet")
    shell("dvc cache dir ../project/.dvc/cache && echo other > x && dvc add --quiet x && cd ../project")
    others = set(cache.rglob("*")) - before
    shell(gc_of_shared_cache)
    assert others
    assert all(path.exists() for path in others), "another project that shares the cache still has its data"
