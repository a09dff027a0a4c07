"""What the doctor says of a machine and a folder: every state of each look, and that none ends the others."""

import json
import os
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from dvc.cli import main as dvc_here

from rulka.doctor import game, machine, records, storage, versioning
from rulka.doctor.cluster import cluster
from rulka.doctor.examine import LOOKS, examine
from rulka.doctor.finding import Finding, State, looked_at
from rulka.doctor.ports import api_address, ports
from rulka.doctor.project import folder, parameters
from rulka.errors import UserError
from rulka.game.plugin import PLUGIN_FILE
from rulka.ports import reserved_port
from tests.flows.conftest import make_project
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("RULKA_GAME_", "RULKA_CLUSTER", "PREFECT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(versioning, "TIMEOUT_S", PATIENCE_S)


def test_a_look_that_raises_is_a_finding_and_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> Finding:
        message = "no PREFECT_API_URL is set"
        raise UserError(message, hint="Set it.")

    def broken() -> Finding:
        raise ZeroDivisionError

    monkeypatch.setattr("rulka.doctor.examine.LOOKS", {"python": machine.python, "device": broken})
    found = examine({"server": refused, "shared memory": machine.shared_memory})
    assert [(each.name, each.state) for each in found[:3]] == [
        ("python", State.OK),
        ("device", State.UNKNOWN),
        ("server", State.WRONG),
    ]
    assert found[1].text == "not looked at: ZeroDivisionError: "
    assert found[2].describe() == "WRONG   server: no PREFECT_API_URL is set\n        to do: Set it."
    assert found[2].to_json() == {"state": "wrong", "text": "no PREFECT_API_URL is set", "to_do": "Set it."}
    assert found[3].name == "shared memory"


def test_every_look_answers_in_an_empty_folder() -> None:
    """No dvc.yaml, params.yaml, git, nor Prefect's file."""
    found = {finding.name: finding for finding in examine({})}
    assert {name for name in LOOKS if name not in {"cluster", "game"}} <= found.keys()
    assert {name for name, each in found.items() if each.state is State.WRONG} >= {"params.yaml", "git", "dvc"}
    assert found["python"].state is State.OK


class TestPackages:
    def test_a_pin_that_differs_is_named_and_weighed(self) -> None:
        Path("constraints.txt").write_text("prefect==0.1\n")
        found = machine.packages()
        assert found.state is State.WRONG
        assert found.text.startswith("prefect 3.")
        assert found.text.endswith(" instead of 0.1")
        Path("constraints.txt").write_text("iniconfig==0.1\nnot-installed==1.0\n")
        assert machine.packages().state is State.NOTE, "nobody asks for it by name"
        Path("constraints.txt").write_text("".join(f"p{k}==1\n" for k in range(9)))
        assert machine.packages().state is State.OK, "what is pinned and not installed is not missed"

    def test_all_spellings_of_a_name_are_one(self) -> None:
        Path("constraints.txt").write_text("Ruamel_YAML==0.1\n")
        assert machine.packages().text.startswith("ruamel-yaml 0.")

    def test_what_is_asked_for_and_missing_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine, "requires", lambda _: ["pyyaml>=6", "no.such_Thing<2 ; python_version > '3'"])
        found = machine.packages()
        assert (found.state, found.text) == (State.WRONG, "not installed: no-such-thing")


class TestMachine:
    def test_torch_that_cannot_be_imported_leaves_the_device_open(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_module(name: str) -> None:
            message = f"No module named {name!r}"
            raise ImportError(message)

        monkeypatch.setattr(machine.importlib, "import_module", no_module)
        assert machine.compute().state is State.WRONG
        assert machine.device().state is State.UNKNOWN
        assert machine.kernels().state is State.UNKNOWN

    def test_little_memory_is_wrong_with_what_to_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine, "MIN_MEMORY_GB", 1e9)
        assert machine.memory().state is State.WRONG
        monkeypatch.setattr(machine, "MIN_SHARED_MEMORY_MB", 1e12)
        found = machine.shared_memory()
        assert sys.platform != "linux" or (found.state is State.WRONG and "--shm-size" in found.to_do)

    def test_kernels_that_nobody_has_compiled_are_a_note(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program = "from rulka.doctor.machine import kernels; print(kernels().describe())"
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
        answer = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert answer.stdout.startswith("note    kernels: 4 of 4 are not compiled yet")
        assert str(tmp_path / "cache") in answer.stdout


def test_what_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (".dvc", "data"):
        (tmp_path / name).mkdir()
    # Root may write everywhere, so the answer is given here.
    monkeypatch.setattr("os.access", lambda name, _mode: Path(name).name != "data")
    assert folder().text == f"data in {tmp_path}: not writable"


def test_the_disk_is_counted_by_place_and_each_file_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("data", ".dvc/cache", "runs"):
        Path(name).mkdir(parents=True)
    Path("data/frames").write_bytes(bytes(3_000_000))
    os.link("data/frames", ".dvc/cache/ab")  # as DVC may link
    Path("runs/log").write_bytes(bytes(1_000_000))
    monkeypatch.setattr(storage, "MIN_DISK_GB", 0.0)
    found = storage.disk()
    assert found.state is State.OK
    assert "used by data 3.0 MB, .dvc/cache 0.0 MB, runs 1.0 MB" in found.text
    monkeypatch.setattr(storage, "MIN_DISK_GB", 1e9)
    assert storage.disk().state is State.WRONG


class TestGit:
    def test_it_says_what_is_not_committed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert versioning.git().state is State.WRONG
        assert "core.no_scm true" in versioning.git().to_do
        subprocess.run(["git", "init", "--quiet"], check=True)
        assert versioning.git().state is State.WRONG
        assert "git commit" in versioning.git().to_do
        author = ["-c", "user.name=n", "-c", "user.email=n@example.org"]
        subprocess.run(["git", *author, "commit", "--quiet", "--allow-empty", "--message", "start"], check=True)
        assert versioning.git().state is State.OK
        for k in range(6):
            Path(f"file{k}").touch()
        found = versioning.git()
        assert found.state is State.NOTE
        assert found.text == "6 files are not committed: file0, file1, file2, file3, file4 and 1 more"
        monkeypatch.setenv("PATH", "")
        assert versioning.git() == Finding("git", State.UNKNOWN, "not looked at: git is not installed")

    def test_no_repository_is_fine_where_dvc_was_told(self) -> None:
        Path(".dvc").mkdir()
        Path(".dvc/config.local").write_text("[core]\n    no_scm = true\n")
        assert versioning.git().state is State.OK


class TestDvc:
    @pytest.fixture(autouse=True)
    def _project(self, tmp_path: Path) -> None:
        make_project(tmp_path)

    def results(self) -> Finding:
        return versioning.dvc()[0]

    def test_nothing_has_run_and_what_has_cannot_be_read(self) -> None:
        found = self.results()
        assert (found.state, found.text) == (State.NOTE, "no dvc.lock: nothing has run yet")
        Path("dvc.lock").write_text("<<<<<<< ours\n")
        found = self.results()
        assert found.state is State.WRONG
        assert "git checkout dvc.lock" in found.to_do

    @pytest.mark.slow
    def test_everything_has_run_and_something_has_changed(self) -> None:
        subprocess.run([*versioning.DVC, "repro", "--quiet"], check=True)
        assert self.results() == Finding("dvc", State.OK, "3 of 3 stages have run, and nothing has changed since")
        Path("data/frames/x").write_text("other")
        found = self.results()
        assert (found.state, found.text) == (State.NOTE, "out of date: capture, evaluate")

    @pytest.mark.slow
    def test_the_remote(self, tmp_path: Path) -> None:
        def remote() -> Finding:
            return versioning.dvc()[1]

        def configure(*words: str) -> None:
            assert dvc_here(["remote", *words]) == 0

        assert remote().state is State.NOTE
        configure("add", "store", str(tmp_path / "store"))
        assert remote().text == "none is the default"
        configure("default", "store")
        assert remote().text == f"store: there is no folder {tmp_path / 'store'}"
        (tmp_path / "store").mkdir()
        assert remote() == Finding("dvc remote", State.OK, f"store, {tmp_path / 'store'}")
        configure("add", "--default", "far", "s3://bucket/rulka")
        assert remote() == Finding("dvc remote", State.OK, "far, elsewhere; not asked, `dvc status --cloud` does")
        configure("default", "store")
        config = Path(".dvc/config").read_text()
        Path(".dvc/config").write_text(config.replace("remote = store", "remote = stor"))
        assert remote().text == "the default remote is 'stor', and there is none of that name"

    def test_a_dvc_that_is_at_work_or_broken_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Path("dvc.lock").write_text("stages: {}\n")
        fake = Path("fake.py")
        fake.write_text("import sys; sys.exit('ERROR: Unable to acquire lock' if 'status' in sys.argv else 0)")
        monkeypatch.setattr(versioning, "DVC", (sys.executable, str(fake)))
        assert [each.state for each in versioning.dvc()] == [State.UNKNOWN, State.NOTE]
        assert versioning.dvc()[0].text == "not looked at what has changed: another DVC is at work here"
        monkeypatch.setattr(versioning, "DVC", (sys.executable, "-m", "no_such_module"))
        (found,) = versioning.dvc()
        assert found.state is State.WRONG
        assert "No module named no_such_module" in found.text


class TestPorts:
    def test_the_address_comes_as_prefect_reads_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert api_address() is None
        Path("prefect.toml").write_text('[api]\nurl = "http://127.0.0.1:1/api"\n')
        assert api_address() == "http://127.0.0.1:1/api"
        Path(".env").write_text("# mine\nPREFECT_API_URL='http://127.0.0.1:2/api'\n")
        assert api_address() == "http://127.0.0.1:2/api"
        monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:3/api")
        assert api_address() == "http://127.0.0.1:3/api"

    def test_who_holds_a_port_is_named_and_gets_no_visitor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as server, reserved_port() as of_game:
            server.bind(("127.0.0.1", 0))
            port = server.getsockname()[1]
            monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{port}/api")
            monkeypatch.setenv("RULKA_GAME_PORT", str(of_game))
            assert ports().text.startswith(f"{port} (Prefect's server): free; ")
            server.listen()
            said = ports().text
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.accept()
        assert said.startswith(f"{port} (Prefect's server): process {os.getpid()} (`")
        assert said.endswith(f"; {of_game} (game): free")

    @pytest.mark.skipif(sys.platform != "linux", reason="only there can a port be kept and be served")
    def test_a_reserved_port_is_given_to_nobody_else_and_can_be_served(self) -> None:
        with reserved_port() as port:
            for _ in range(2):
                with socket.socket() as other, pytest.raises(OSError, match="in use"):
                    other.bind(("127.0.0.1", port))
                with (
                    socket.create_server(("127.0.0.1", port)) as server,
                    socket.create_connection(server.getsockname()),
                ):
                    server.accept()[0].close()

    def test_a_process_that_cannot_be_seen_is_no_free_port(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_kind: str) -> None:
            raise psutil.AccessDenied

        monkeypatch.setattr(psutil, "net_connections", refuse)  # as macOS does
        with socket.create_server(("127.0.0.1", 0)) as server:
            monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{server.getsockname()[1]}/api")
            assert "(Prefect's server): a process that only its own user and root can see; " in ports().text


class TestRecords:
    def made(self, revision: str | None) -> None:
        Path(".prefect").mkdir(exist_ok=True)
        records.DATABASE.unlink(missing_ok=True)
        with closing(sqlite3.connect(records.DATABASE)) as connection, connection:
            connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
            if revision:
                connection.execute("INSERT INTO alembic_version VALUES (?)", (revision,))

    def test_each_schema(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert records.records().text == "none yet"
        known, newest = records._installed_revisions()
        assert len(newest) == 1, "Prefect's migrations are one line"
        self.made(*newest)
        assert records.records().state is State.OK
        self.made(min(known - newest))
        assert records.records().state is State.NOTE
        self.made("fromthefuture")
        found = records.records()
        assert found.state is State.WRONG
        assert "a newer one made it" in found.text
        assert "move .prefect/prefect.db away" in found.to_do
        self.made(None)
        assert records.records().state is State.NOTE
        records.DATABASE.write_bytes(b"no database" * 100)
        assert records.records().state is State.WRONG
        assert "is damaged" in records.records().text
        monkeypatch.setenv(records.ELSEWHERE, "postgresql+asyncpg://there")
        assert records.records().state is State.UNKNOWN

    def test_without_prefect_there_is_nothing_to_compare_with(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made("anything")
        monkeypatch.setattr(records, "find_spec", lambda _: None)
        assert records.records().state is State.UNKNOWN


class TestGame:
    def states(self) -> dict[str, State]:
        return {finding.name: finding.state for finding in game.game()}

    def test_plugin_and_link(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert game.game() == [], "nothing is set"
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            monkeypatch.setenv("RULKA_GAME_PORT", str(server.getsockname()[1]))
            monkeypatch.setenv("HOME", str(tmp_path))
            assert self.states() == {"game": State.OK, "game link": State.NOTE}
            server.listen()
            assert self.states() == {"game": State.OK, "game link": State.OK}
        plugins = tmp_path / "Documents/TMInterface/Plugins"
        plugins.mkdir(parents=True)
        assert self.states()["game plugin"] is State.WRONG
        (plugins / PLUGIN_FILE.name).write_text("an older one")
        assert self.states()["game plugin"] is State.NOTE
        (plugins / PLUGIN_FILE.name).write_bytes(PLUGIN_FILE.read_bytes())
        assert self.states()["game plugin"] is State.OK
        monkeypatch.setenv("RULKA_GAME_HOST", "192.0.2.1")
        assert self.states()["game link"] is State.UNKNOWN

    def test_the_prefix_of_wine_has_its_own_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RULKA_GAME_EXE", str(tmp_path / "TmForever.exe"))
        monkeypatch.setenv("RULKA_GAME_PREFIX", str(tmp_path / "wine"))
        assert self.states() == {"game": State.WRONG, "game link": State.OK}
        (tmp_path / "wine/drive_c/users/me/Documents/TMInterface/Plugins").mkdir(parents=True)
        assert self.states()["game plugin"] is State.WRONG


@pytest.mark.parametrize("as_json", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_broken_prefect_is_a_finding_and_no_traceback(tmp_path: Path, as_json: bool) -> None:
    (tmp_path / "prefect.toml").write_text("[api\n")
    answer = subprocess.run(
        [sys.executable, "-m", "rulka.cli", "doctor", *(["--json"] if as_json else [])],
        env={"PATH": "", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1
    assert "Traceback" not in answer.stderr
    if as_json:
        found = json.loads(answer.stdout)
        assert found["server"]["state"] == "wrong"
        assert found["ports"]["state"] == "unknown"
        assert found["python"]["state"] == "ok"
    else:
        assert "WRONG   server: Prefect cannot be used: " in answer.stdout
        assert "ok      dvc at work: no stage runs" in answer.stdout


class TestCluster:
    """Of which nothing is said where neither this machine nor the parameters name one."""

    @pytest.fixture(autouse=True)
    def _ray(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rulka.cluster.find_spec", lambda name: name)

    @pytest.fixture
    def asked_for(self) -> None:
        text = (ROOT / "params.yaml").read_text(encoding="utf-8")
        Path("params.yaml").write_text(text.replace("  cluster: none ", "  cluster: ray "), encoding="utf-8")

    def test_no_talk_of_one(self) -> None:
        assert cluster() == []

    def test_asked_for_and_nowhere(self, asked_for: None) -> None:
        [found] = cluster()
        assert (found.state, found.text) == (State.WRONG, "nothing says where the cluster is: RULKA_CLUSTER is not set")

    def test_without_ray(self, asked_for: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rulka.cluster.find_spec", lambda _: None)
        [found] = cluster()
        assert (found.state, found.to_do) == (State.WRONG, "pip install 'rulka[ray]'")

    def test_nobody_there_is_a_note_until_it_is_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            monkeypatch.setenv("RULKA_CLUSTER", f"127.0.0.1:{taken.getsockname()[1]}")
            [found] = cluster()
        assert found.state is State.NOTE
        assert "there is no cluster at 127.0.0.1:" in found.text

    def test_somebody_is_there(self, asked_for: None, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            monkeypatch.setenv("RULKA_CLUSTER", address := f"127.0.0.1:{server.getsockname()[1]}")
            [found] = cluster()
        assert (found.state, found.text.split(";")[0]) == (State.OK, f"somebody listens at {address}")

    def test_what_is_no_address(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RULKA_CLUSTER", "http://head:6379")
        [found] = looked_at("cluster", cluster)
        assert found.state is State.WRONG
        assert "is no address of a cluster's head" in found.text


def test_a_finding_may_be_one_or_several() -> None:
    one = Finding("a", State.OK, "fine")
    assert looked_at("a", lambda: one) == looked_at("a", lambda: [one]) == [one]


def test_a_section_that_dvc_would_miss_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC says so too, but only when a stage is to run."""
    monkeypatch.chdir(tmp_path)
    for name in ("params.yaml", "dvc.yaml"):
        Path(name).write_bytes((ROOT / name).read_bytes())
    assert parameters().state is State.OK
    Path("params.yaml").write_text((ROOT / "params.yaml").read_text().replace("grpo: {}\n", ""))
    found = parameters()
    assert (found.state, found.to_do) == (State.WRONG, "add `grpo: {}`")
    assert "no section grpo" in found.text
