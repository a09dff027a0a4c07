import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rulka.actions import FORWARD
from rulka.artifacts import load_artifact, save_artifact
from rulka.errors import UserError
from rulka.outputs import OutputError
from rulka.provenance import hash_path
from rulka.registry.kept import name_of
from rulka.versions.dvc import RemoteError
from rulka.versions.git import NoGitError
from rulka.versions.remote import MissingDataError, NoOutputsError, push, set_remote
from rulka.versions.reproduce import DirtyTreeError, Reproduced, UnknownRevisionError, reproduce
from tests.tasks.test_evaluate import save_driver
from tests.versions.conftest import ROOT, commit, dvc, git, text_of, write
from tests.versions.test_commands import rulka
from tests.versions.test_remote import Clone

TRACK = "data/races/tracks/tiny.npz"
Train = Callable[[int], str]


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Agents that prefer one action each, `0` and `1`."""
    folder = tmp_path_factory.mktemp("drivers")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        for number in (0, 1):
            save_driver(folder / str(number), "agent", "ppo", FORWARD + number)
    return folder


@pytest.fixture
def train(project: Path, drivers: Path) -> Train:
    """Returns a function that trains an agent, records it and commits; it returns the commit."""

    def make(number: int) -> str:
        write("seed.txt", str(number))
        write(TRACK, f"track {number}")
        agent = load_artifact(drivers / str(number), "agent")
        origin = agent.provenance | {"inputs_sha256": {"track": hash_path(Path(TRACK))}, "versions": {"torch": "0.1"}}
        save_artifact(Path("data/agent"), replace(agent, provenance=origin))
        dvc("repro")
        return commit(f"agent {number}")

    return make


def again(revision: str, out: Path | None = None) -> Reproduced:
    return reproduce(revision, out, lambda _: None)


def texts(found: Reproduced) -> dict[str, str]:
    return {check.name: check.text for check in found.checks}


class TestAnOldAgent:
    def test_it_comes_back_with_its_data_and_nothing_changes_here(self, project: Path, train: Train) -> None:
        first, name = train(0), name_of(Path("data/agent"))
        train(1)
        now = name_of(Path("data/agent"))
        found = again(first)
        folder = project.parent / f"project-{first[:8]}"
        assert (Path(found.folder).resolve(), found.commit, found.subject) == (folder, first, "agent 0")
        assert found.is_same
        assert sorted(found.outputs) == ["data/agent", "data/races"]
        assert name_of(folder / "data/agent") == name != now == name_of(Path("data/agent"))
        assert (folder / TRACK).read_text() == "track 0"
        assert text_of("seed.txt") == "1"
        assert git("status", "--porcelain") == git("status", "--porcelain", folder=folder) == ""
        said = texts(found)
        assert said["agent"].startswith(f"{name}: its weights have the SHA-256 that it notes")
        assert said["data"] == "track: by their hashes what the agent was trained from"
        assert said["stages"].startswith("code, parameters and data of the revision are those")
        assert "torch 0.1, here" in said["libraries"]
        assert said["contract"].startswith("that of the newer code too")

    def test_a_second_time_it_is_there_already_and_what_was_changed_stays(self, project: Path, train: Train) -> None:
        first = train(0)
        assert again("HEAD").folder == again(first).folder
        with Path(again(first).folder, "params.yaml").open("a") as file:
            file.write("# tried\n")
        with pytest.raises(DirtyTreeError, match=r"was changed: params.yaml") as caught:
            again(first)
        assert "`git worktree remove --force ../project-" in caught.value.hint
        assert again(first, Path("../another")).is_same

    def test_another_clone_takes_it_from_the_remote_though_that_is_younger(
        self, project: Path, train: Train, clone: Clone
    ) -> None:
        first, name = train(0), name_of(Path("data/agent"))
        train(1)
        set_remote(None, is_local=False)
        commit("remote")
        push()
        with clone("clone"):
            found = again(first)
            assert found.is_same
            assert name_of(Path(found.folder, "data/agent")) == name
            assert Path(".dvc/cache/files").is_dir()
            assert not Path(found.folder, ".dvc/cache").exists()

    def test_it_is_removed_as_it_says(self, project: Path, train: Train, capsys: pytest.CaptureFixture[str]) -> None:
        first = train(0)
        assert rulka(f"reproduce {first}") == 0
        said = capsys.readouterr().out.splitlines()
        assert said[0] == f"../project-{first[:8]}: revision {first[:8]}, 'agent 0'"
        assert [line[:7] for line in said[1:-2]] == ["ok     "] * 6
        git(*said[-1].partition(": git ")[2].split())
        assert not (project.parent / f"project-{first[:8]}").exists()
        assert rulka(f"reproduce {first} --out ../x --json") == 0
        assert json.loads(capsys.readouterr().out)["is_same"] is True
        shutil.rmtree("../x")
        assert rulka(f"reproduce {first} --out ../x") == 0


class TestWhatDiffers:
    def test_damaged_weights_are_not_the_agent_s(self, project: Path, train: Train) -> None:
        train(0)
        (Path("data/agent") / "weights.safetensors").write_bytes(b"other weights")
        dvc("commit", "--force", "train")
        commit("damaged")
        found = again("HEAD")
        assert not found.is_same
        assert [check.name for check in found.checks if not check.is_fine] == ["agent"]
        assert "its weights have the SHA-256" in texts(found)["agent"]

    def test_a_track_that_the_agent_was_not_trained_on(
        self, project: Path, train: Train, capsys: pytest.CaptureFixture[str]
    ) -> None:
        train(0)
        write(TRACK, "another track")
        dvc("commit", "--force")
        commit("another track")
        assert texts(again("HEAD"))["data"] == "track: not what the agent was trained from"
        assert rulka("reproduce HEAD") == 1
        assert "DIFFERS data: track: not what" in capsys.readouterr().out

    def test_parameters_that_were_committed_without_a_run(self, project: Path, train: Train) -> None:
        train(0)
        write("params.yaml", "ppo:\n  gamma: 0.5\n")
        commit("not run")
        found = again("HEAD")
        assert [check.name for check in found.checks if not check.is_fine] == ["stages"]
        assert texts(found)["stages"] == "the revision differs from what made its outputs: train (params.yaml)"

    def test_an_agent_of_another_contract_comes_back_and_says_so(self, project: Path, train: Train) -> None:
        train(0)
        meta = Path("data/agent/meta.json")
        meta.write_text(json.dumps(json.loads(meta.read_text()) | {"schema_version": 1}))
        dvc("commit", "--force", "train")
        commit("old format")
        found = again("HEAD")
        assert found.is_same
        assert "schema_version is 1, expected 3" in texts(found)["contract"]

    def test_data_that_are_gone_are_named_and_the_agent_comes_all_the_same(self, project: Path, train: Train) -> None:
        train(0)
        md5 = next(line.split()[-1] for line in text_of("dvc.lock").splitlines() if "md5:" in line and ".dir" in line)
        Path(f".dvc/cache/files/md5/{md5[:2]}/{md5[2:]}").unlink()
        shutil.rmtree("data/races")
        found = again("HEAD")
        assert found.outputs == ("data/agent",)
        assert texts(found)["outputs"] == "data/races: neither in DVC's cache nor in the remote"
        assert not found.is_same


class TestWhatIsRefused:
    def test_no_outputs_and_which_revisions_have_some(self, project: Path, train: Train) -> None:
        with pytest.raises(NoOutputsError, match=r"revision HEAD \(\w{8}\) has no outputs") as caught:
            again("HEAD")
        assert "commit dvc.lock beside params.yaml" in caught.value.hint
        train(0)
        with pytest.raises(NoOutputsError, match=r"dvc\.lock was not committed in it") as caught:
            again("HEAD~1")
        assert "These recorded something:\n" in caught.value.hint
        assert caught.value.hint.endswith(" agent 0")
        assert len(git("worktree", "list").splitlines()) == 1

    def test_outputs_but_no_agent(self, project: Path) -> None:
        write("seed.txt", "1")
        write("data/races/x", "races")
        dvc("repro", "races")
        commit("races alone")
        with pytest.raises(NoOutputsError, match=r"has no agent, only data/races"):
            again("HEAD")

    @pytest.mark.parametrize("revision", ["v9", "--all", ""])
    def test_an_unknown_revision(self, project: Path, revision: str) -> None:
        with pytest.raises(UnknownRevisionError, match="there is no revision") as caught:
            again(revision)
        assert "`git log --all --oneline -- dvc.lock`" in caught.value.hint

    def test_a_folder_that_holds_something_else(self, project: Path, train: Train) -> None:
        train(0)
        write("../taken/thesis.tex", "")
        with pytest.raises(OutputError, match=r"../taken holds something else"):
            again("HEAD", Path("../taken"))
        with pytest.raises(OutputError, match=r"there is no folder \.\./none"):
            again("HEAD", Path("../none/x"))

    @pytest.mark.parametrize(
        ("remote", "error", "words"),
        [
            ("none", MissingDataError, "not in DVC's cache here, and no remote is set"),
            ("empty", MissingDataError, "not in DVC's cache here, nor whole in .*-storage"),
            ("gone", RemoteError, "project-storage is not there"),
        ],
    )
    def test_an_agent_that_is_nowhere(
        self, project: Path, train: Train, clone: Clone, remote: str, error: type[UserError], words: str
    ) -> None:
        if remote != "none":
            set_remote(None, is_local=False)
        train(0)
        if remote == "gone":
            Path("../project-storage").rmdir()
        with clone("clone"):
            with pytest.raises(error, match=words) as caught:
                again("HEAD")
            assert "rulka remote" in caught.value.hint
            assert len(git("worktree", "list").splitlines()) == 1
            assert not list(Path("..").glob("clone-*"))

    def test_without_git(self, project: Path) -> None:
        shutil.rmtree(".git")
        with pytest.raises(NoGitError, match="is no git repository"):
            again("HEAD")
