import json
import shutil
import sys
from io import StringIO
from pathlib import Path

import pytest

from rulka.versions.busy import DvcError
from rulka.versions.collect import collect
from tests.versions.conftest import commit, dvc, git, recorded, text_of, write
from tests.versions.test_commands import rulka


def unrecorded(value: str) -> None:
    """Makes races and an agent of a text that no commit will know."""
    write("seed.txt", value)
    write("data/races/x", f"races {value}")
    write("data/agent/x", f"agent {value}")
    dvc("repro")


def comes_back(revision: str) -> str:
    """Checks out a revision's data, and returns the text of the agent."""
    git("checkout", "--quiet", revision)
    dvc("checkout", "--force")
    return text_of("data/agent/x")


@pytest.mark.usefixtures("project")
class TestWhatStays:
    def test_data_of_every_commit_and_those_in_use(self) -> None:
        first = recorded("1")
        unrecorded("between")
        second = recorded("2")
        unrecorded("in use")
        found = collect("commits", remove=False)
        assert (found.num_files, found.num_commits, found.given_up, found.is_removed) == (4, 2, (), False)
        assert found.num_bytes > len("races between") + len("agent between")
        assert collect("commits", remove=False) == found
        removed = collect("commits", remove=True)
        assert (removed.num_files, removed.is_removed) == (4, True)
        assert collect("commits", remove=True).num_files == 0
        dvc("checkout", "--force")
        assert text_of("data/agent/x") == "agent in use"
        git("checkout", "--quiet", "--force", "main")
        assert [comes_back(revision) for revision in (first, second)] == ["agent 1", "agent 2"]

    def test_tags_branches_and_what_recorded_a_promoted_agent(self) -> None:
        """Commits are those of `main` but for `side`, and the promoted agent's weights lie in commit 2."""
        write("data/agents/ppo-1/weights.safetensors", "weights")
        recorded("1")
        write("data/agent/weights.safetensors", "weights")
        promoted = recorded("2")
        Path("data/agent/weights.safetensors").unlink()
        tagged = recorded("3")
        git("tag", "v1")
        git("checkout", "--quiet", "-b", "side")
        side = recorded("4")
        git("checkout", "--quiet", "main")
        recorded("5")
        last = recorded("6")
        found = collect("promoted", remove=True)
        assert [line.split()[1] for line in found.given_up] == ["5", "1"]
        assert found.num_files == 8
        texts = [comes_back(revision) for revision in (promoted, tagged, side, last)]
        assert texts == ["agent 2", "agent 3", "agent 4", "agent 6"]

    def test_what_another_worktree_uses(self) -> None:
        recorded("1")
        git("worktree", "add", "--quiet", "--detach", "../other")
        cache = Path(".dvc/cache").absolute()
        write("../other/.dvc/config.local", f"[cache]\n    dir = {cache}\n")
        for path, text in (("seed.txt", "other"), ("data/races/x", "races other"), ("data/agent/x", "agent other")):
            write(f"../other/{path}", text)
        here = Path.cwd()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir("../other")
            dvc("repro")
        assert Path.cwd() == here
        assert collect("commits", remove=True).num_files == 0
        git("worktree", "remove", "--force", "../other")
        assert collect("commits", remove=False).num_files == 4

    def test_recordings_and_promoted_agents_in_use(self) -> None:
        write("data/agents/a/x", "agent")
        write("data/nights/history.csv", "1")
        dvc("add", "data/agents", "data/nights")
        unrecorded("1")
        commit("begin")
        assert collect("promoted", remove=True).num_files == 0
        shutil.rmtree("data/agents")
        dvc("checkout", "data/agents.dvc")
        assert text_of("data/agents/a/x") == "agent"

    def test_without_git_what_is_in_use(self) -> None:
        shutil.rmtree(".git")
        write(".dvc/config.local", "[core]\n    no_scm = true\n")
        unrecorded("1")
        unrecorded("2")
        found = collect("commits", remove=True)
        assert (found.num_files, found.num_commits) == (4, 0)

    def test_nothing_goes_where_a_commit_cannot_be_read(self) -> None:
        unrecorded("1")
        write("dvc.yaml", "stages: {toy: {outs: 5}}\n")
        bad = commit("wrong")
        git("checkout", "--quiet", "HEAD~1", "--", "dvc.yaml")
        commit("mended")
        unrecorded("2")
        with pytest.raises(DvcError, match=f"what commit {bad} says of its data cannot be read"):
            collect("commits", remove=True)
        assert text_of("data/agent/x") == "agent 2"
        assert len([path for path in Path(".dvc/cache/files").rglob("*") if path.is_file()]) == 8


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("project")
class TestTheCommand:
    @pytest.fixture(autouse=True)
    def _waste(self, project: Path) -> None:
        assert Path.cwd() == project
        unrecorded("1")
        recorded("2")

    def test_it_looks_first_and_without_a_terminal_removes_nothing(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "stdin", StringIO("y\n"))
        assert rulka("gc") == 0
        assert capsys.readouterr().out.splitlines() == [
            "kept: data in use, and of 1 commits; the remote is not touched",
            "not needed: 4 files, 0.0 MB of DVC's cache",
            "nothing is removed; `rulka gc --keep commits --yes` removes without asking",
        ]
        assert rulka("gc --keep promoted") == 0
        assert "; `rulka gc --keep promoted --yes` removes without asking\n" in capsys.readouterr().out
        assert rulka("gc --json") == 0
        assert json.loads(capsys.readouterr().out)["is_removed"] is False
        assert collect("commits", remove=False).num_files == 4

    @pytest.mark.parametrize(("answer", "left"), [("y", 0), ("", 4), ("no", 4)])
    def test_it_asks_in_a_terminal(self, monkeypatch: pytest.MonkeyPatch, answer: str, left: int) -> None:
        monkeypatch.setattr(sys, "stdin", Terminal(f"{answer}\n"))
        assert rulka("gc") == 0
        assert collect("commits", remove=False).num_files == left

    def test_it_removes_where_that_was_said(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert rulka("gc --yes") == 0
        assert capsys.readouterr().out.endswith("\nremoved\n")
        assert rulka("gc --yes --keep promoted") == 0
        assert capsys.readouterr().out.endswith("not needed: 0 files, 0.0 MB of DVC's cache\n")
