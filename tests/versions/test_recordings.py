from pathlib import Path

import pytest

from rulka.versions.dvc import NoProjectError
from rulka.versions.recordings import HeldByGitError, NoRecordingError, OtherRecordingError, add_recordings
from rulka.versions.remote import pull, push, set_remote
from tests.versions.conftest import commit, git, text_of, write
from tests.versions.test_remote import Clone

HERE = Path("data/recordings")


def below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_clone_has_them(project: Path, clone: Clone) -> None:
    write("../replays/a.Replay.Gbx", "a")
    write("../replays/deep/b.replay.gbx", "b")
    write("../replays/notes.txt", "no recording")
    write("../c.Gbx", "c")
    added = add_recordings([Path("../replays"), Path("../c.Gbx")])
    assert (added.num_new, added.num_files) == (3, 3)
    assert below(HERE) == ["c.Gbx", "replays/a.Replay.Gbx", "replays/deep/b.replay.gbx"]
    assert added.to_commit == ("data/.gitignore", "data/recordings.dvc", "data/recordings/.gitkeep")
    assert [line.partition(": ")[0] for line in added.unreadable] == [
        "../replays/a.Replay.Gbx",
        "../replays/deep/b.replay.gbx",
        "../c.Gbx",
    ]
    set_remote(None, is_local=False)
    git("add", *added.to_commit[:2], ".dvc/config")
    git("commit", "--quiet", "--message", "recordings")
    assert git("status", "--porcelain") == ""
    assert push().remarks == ()
    with clone("clone"):
        assert not HERE.exists()
        pull()
        assert text_of("data/recordings/replays/a.Replay.Gbx") == "a"


def test_what_is_there_already_is_taken_as_it_is(project: Path) -> None:
    write("data/recordings/a.Gbx", "a")
    write("../a.Gbx", "a")
    assert add_recordings([]).num_new == 0
    assert add_recordings([Path("../a.Gbx"), HERE / "a.Gbx"]).num_new == 0
    assert below(HERE) == ["a.Gbx"]
    write("../b.Gbx", "b")
    assert (added := add_recordings([Path("../b.Gbx")])).num_new == 1
    assert added.num_files == 2


def test_nothing_is_overwritten_and_nothing_copied_halfway(project: Path) -> None:
    write("data/recordings/a.Gbx", "a")
    write("../0.Gbx", "0")
    write("../a.Gbx", "another")
    with pytest.raises(OtherRecordingError, match=r"data/recordings/a.Gbx is another recording than ../a.Gbx"):
        add_recordings([Path("../0.Gbx"), Path("../a.Gbx")])
    write("../x/0.Gbx", "another")
    with pytest.raises(OtherRecordingError, match="is another recording than"):
        add_recordings([Path("../0.Gbx"), Path("../x/0.Gbx")])
    assert below(HERE) == [".gitkeep", "a.Gbx"]


@pytest.mark.parametrize("path", ["../notes.txt", "../none.Gbx", "../empty"])
def test_what_is_no_recording_is_refused(project: Path, path: str) -> None:
    write("../notes.txt", "")
    Path("../empty").mkdir()
    with pytest.raises(NoRecordingError, match=rf"^{path} (is|holds) no Gbx file"):
        add_recordings([Path(path)])
    with pytest.raises(NoRecordingError, match="there are no recordings in data/recordings"):
        add_recordings([])
    assert git("status", "--porcelain") == ""


def test_recordings_in_git_are_named_before_anything_is_copied(project: Path) -> None:
    write("data/recordings/a.Gbx", "a")
    git("add", "--force", "data/recordings/a.Gbx")
    commit("held by git")
    write("../b.Gbx", "b")
    with pytest.raises(HeldByGitError, match=r"git holds 1 files of data/recordings, such as .*/a.Gbx") as caught:
        add_recordings([Path("../b.Gbx")])
    assert "`git rm -r --cached data/recordings`" in caught.value.hint
    assert not (HERE / "b.Gbx").exists()


def test_without_dvc_nothing_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write("a.Gbx", "a")
    with pytest.raises(NoProjectError):
        add_recordings([Path("a.Gbx")])
    assert not HERE.exists()
