import json
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest

from rulka.outputs import OutputError
from rulka.versions.busy import PATHS_LOCK_FILE, DvcError
from rulka.versions.dvc import BusyError, NoProjectError, RemoteError, add
from rulka.versions.remote import (
    MissingDataError,
    NoOutputsError,
    NoRemoteError,
    OtherRemoteError,
    UnsavedDataError,
    pull,
    push,
    set_remote,
)
from tests.versions.conftest import commit, dvc, git, recorded, text_of, write
from tests.waiting import PATIENCE_S

Clone = Callable[[str], chdir[Path]]


def stored(folder: Path) -> int:
    return sum(1 for path in folder.rglob("*") if path.is_file())


class TestSetting:
    def test_a_folder_beside_the_project_is_the_default_and_clones_find_it(self, project: Path, clone: Clone) -> None:
        remote, is_new = set_remote(None, is_local=False)
        assert (remote.place, is_new) == (str(project.parent / "project-storage"), True)
        assert "url = ../../project-storage" in text_of(".dvc/config")
        assert set_remote(None, is_local=False) == (remote, False)
        commit("remote")
        with clone("clone"):
            assert set_remote(None, is_local=False)[0].folder == remote.folder

    def test_another_one_is_refused_but_on_this_machine_alone(self, project: Path) -> None:
        set_remote("../one", is_local=False)
        assert set_remote("../one", is_local=False)[1] is False
        with pytest.raises(OtherRemoteError, match=r"the remote is .*/one already") as caught:
            set_remote("../two", is_local=False)
        assert "`dvc remote remove storage`" in caught.value.hint
        before = text_of(".dvc/config")
        assert set_remote("../two", is_local=True)[0].folder == project.parent / "two"
        assert text_of(".dvc/config") == before
        assert "config.local" not in git("status", "--porcelain")

    @pytest.mark.usefixtures("project")
    @pytest.mark.parametrize(
        ("place", "error", "words"),
        [
            ("storage", RemoteError, "lies in the project"),
            ("../none/storage", OutputError, "there is no folder ../none"),
            ("../thesis", RemoteError, "holds something else than a remote"),
            ("gopher://x/y", RemoteError, "Unsupported URL type gopher"),
            ("s3://bucket/x", RemoteError, "s3"),
        ],
    )
    def test_what_cannot_be_one_is_refused_and_nothing_is_written(
        self, place: str, error: type[Exception], words: str
    ) -> None:
        write("../thesis/a.tex", "")
        before = text_of(".dvc/config")
        with pytest.raises(error, match=words):
            set_remote(place, is_local=False)
        assert text_of(".dvc/config") == before
        assert not Path("storage").exists()

    def test_outside_a_project_it_says_where_to_go(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(NoProjectError, match=r"there is no \.dvc in"):
            set_remote(None, is_local=False)


class TestThereAndBack:
    def test_a_clone_has_what_was_pushed(self, project: Path, clone: Clone) -> None:
        set_remote(None, is_local=False)
        recorded("1")
        pushed = push()
        assert (pushed.num_files, pushed.remarks) == (4, ())
        assert push().num_files == 0
        with clone("clone"):
            pulled = pull()
            assert (pulled.num_files, pulled.unknown) == (4, ())
            assert [path.rstrip(os.sep) for path in pulled.changed] == ["data/agent", "data/races"]
            assert text_of("data/agent/x") == "agent 1"
            assert pull() == type(pulled)(0, (), ())

    def test_commits_from_before_the_remote_are_sent_too_and_nothing_lands_elsewhere(
        self, project: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """DVC itself sends those of no earlier commit, and takes `../x` of a later one from the root of the disk."""
        recorded("1")
        set_remote("../kept", is_local=False)
        recorded("2")
        recorded("3")
        made: list[str] = []
        makedirs = os.makedirs
        monkeypatch.setattr(
            os, "makedirs", lambda name, *rest, **more: (made.append(str(name)), makedirs(name, *rest, **more))
        )
        pushed = push()
        assert (pushed.num_files, pushed.num_commits) == (12, 3)
        assert stored(project.parent / "kept") == 12
        assert [path for path in made if not Path(path).is_relative_to(project.parent)] == []

    def test_a_commit_of_another_branch_is_sent_as_well(self, project: Path) -> None:
        set_remote(None, is_local=False)
        recorded("1")
        git("checkout", "--quiet", "-b", "other")
        recorded("2")
        git("checkout", "--quiet", "main")
        dvc("checkout")
        assert push().num_files == 8

    def test_what_keeps_a_clone_from_having_it_is_said(self, project: Path) -> None:
        set_remote(None, is_local=False)
        recorded("1")
        commit_of_two = recorded("2")
        write("seed.txt", "3")
        write("data/races/x", "races 3")
        dvc("repro", "races")
        write("data/agents/a/x", "an agent")
        write("data/recordings/a.Gbx", "a recording")
        write("data/nights/history.csv", "1")
        dvc("add", "data/nights")
        write("data/nights/history.csv", "2")
        shutil.rmtree(".dvc/cache/files/md5")
        assert push().remarks == (
            "data/recordings is not under DVC: `rulka recordings add` puts it there",
            "data/agents is not under DVC: `dvc add data/agents` puts it there",
            "data/nights has changed since DVC saw it: `dvc add data/nights`",
            f"of commit {commit_of_two[:8]}, neither here nor there: data/races, data/agent",
            f"of commit {git('rev-parse', 'HEAD~1')[:8]}, neither here nor there: data/races, data/agent",
            "not committed: data/nights.dvc dvc.lock. A clone has what commits name:"
            " `git add data/nights.dvc dvc.lock && git commit`",
        )

    def test_without_git_the_data_of_now_are_sent(self, project: Path) -> None:
        shutil.rmtree(".git")
        write(".dvc/config.local", "[core]\n    no_scm = true\n")
        set_remote(None, is_local=False)
        write("seed.txt", "1")
        write("data/races/x", "races")
        dvc("repro", "races")
        pushed = push()
        assert (pushed.num_files, pushed.num_commits) == (2, 0)
        assert "no git repository" in pushed.remarks[0]


class TestWhatGoesWrong:
    @pytest.mark.usefixtures("project")
    @pytest.mark.parametrize("action", [push, pull])
    def test_no_remote(self, action: Callable[[], object]) -> None:
        with pytest.raises(NoRemoteError, match="no remote is set") as caught:
            action()
        assert "`rulka remote init`" in caught.value.hint

    @pytest.mark.parametrize("action", [push, pull])
    def test_a_folder_that_is_not_there_is_not_made(self, project: Path, action: Callable[[], object]) -> None:
        remote, _ = set_remote(None, is_local=False)
        assert remote.folder is not None
        remote.folder.rmdir()
        with pytest.raises(RemoteError, match="project-storage is not there") as caught:
            action()
        assert "`rulka remote init FOLDER --local`" in caught.value.hint
        assert not remote.folder.exists()

    @pytest.mark.usefixtures("project")
    def test_a_version_in_which_nothing_is_recorded(self) -> None:
        set_remote(None, is_local=False)
        with pytest.raises(NoOutputsError, match="nothing is recorded in this version") as caught:
            pull()
        assert "git log --all -- dvc.lock" in caught.value.hint

    def test_data_that_nobody_pushed(self, project: Path, clone: Clone) -> None:
        set_remote(None, is_local=False)
        recorded("1")
        with clone("clone"), pytest.raises(MissingDataError, match=r"^data/races, data/agent: neither in") as caught:
            pull()
        assert "`rulka remote push` where they were made" in caught.value.hint

    def test_a_stage_that_was_never_run_is_no_error(self, project: Path, clone: Clone) -> None:
        set_remote(None, is_local=False)
        write("seed.txt", "1")
        write("data/races/x", "races")
        dvc("repro", "races")
        commit("races alone")
        push()
        with clone("clone"):
            pulled = pull()
            assert pulled.unknown == ("data/agent",)
            assert text_of("data/races/x") == "races"

    def test_data_that_are_nowhere_else_are_not_replaced(self, project: Path) -> None:
        set_remote(None, is_local=False)
        recorded("1")
        push()
        write("data/agent/x", "mine")
        with pytest.raises(UnsavedDataError, match="no version holds them: data/agent/x") as caught:
            pull()
        assert "`dvc checkout --force`" in caught.value.hint
        assert text_of("data/agent/x") == "mine"

    @pytest.mark.usefixtures("project")
    @pytest.mark.parametrize(
        ("name", "error", "words"),
        [
            ("dvc", BusyError, r"another DVC is at work: '.*data/agents' is busy"),
            # Of a number that is another program's by now.
            ("sleep", DvcError, f"which is no DVC but `sleep {PATIENCE_S:.0f}`"),
        ],
    )
    def test_who_holds_the_same_files_is_named(self, name: str, error: type[Exception], words: str) -> None:
        place = write("data/agents/x", "1").parent
        with subprocess.Popen([name, f"{PATIENCE_S:.0f}"], executable="/bin/sleep") as other:
            lock = {"write": {str(place.absolute()): {"pid": other.pid, "cmd": "dvc repro"}}}
            write(PATHS_LOCK_FILE.as_posix(), json.dumps(lock))
            try:
                with pytest.raises(error, match=words) as caught:
                    add([place])
            finally:
                other.kill()
        assert str(other.pid) in f"{caught.value} {getattr(caught.value, 'hint', '')}"

    @pytest.mark.usefixtures("project")
    def test_something_in_the_way_of_the_remote(self) -> None:
        remote, _ = set_remote(None, is_local=False)
        recorded("1")
        assert remote.folder is not None
        (remote.folder / "files").write_text("in the way")
        with pytest.raises(RemoteError, match="Not a directory"):
            push()
