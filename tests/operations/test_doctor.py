"""The doctor's findings on a machine and a folder: every state of each check; a failing check stops no other."""

import os
import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest

from rulka.game.plugin import PLUGIN_FILE
from rulka.machine.errors import UserError
from rulka.machine.ports import NOT_SEEN, holder
from rulka.operations import doctor
from rulka.operations.doctor import CHECKS, Finding, State, cluster, examine, findings_of, parameters
from tests.flows.conftest import make_project
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("RULKA_GAME_", "RULKA_CLUSTER", "PREFECT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(doctor, "TIMEOUT_S", PATIENCE_S)


def test_a_look_that_raises_is_a_finding_and_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> Finding:
        message = "no PREFECT_API_URL is set"
        raise UserError(message, hint="Set it.")

    def broken() -> Finding:
        raise ZeroDivisionError

    checks = {"python": doctor.python, "device": broken, "server": refused, "memory": doctor.memory}
    monkeypatch.setattr(doctor, "CHECKS", checks)
    found = examine()
    assert [(each.name, each.state) for each in found[:3]] == [
        ("python", State.OK),
        ("device", State.UNKNOWN),
        ("server", State.WRONG),
    ]
    assert found[1].text == "not looked at: ZeroDivisionError: "
    assert found[2].describe() == "WRONG   server: no PREFECT_API_URL is set\n        to do: Set it."
    assert found[2].to_json() == {"state": "wrong", "text": "no PREFECT_API_URL is set", "to_do": "Set it."}
    assert found[3].name == "memory"


def test_every_look_answers_in_an_empty_folder() -> None:
    """Without dvc.yaml, params.yaml, git and Prefect's file."""
    found = {finding.name: finding for finding in examine()}
    assert {name for name in CHECKS if name not in {"cluster", "game", "proxy", "shared memory"}} <= found.keys()
    assert {name for name, each in found.items() if each.state is State.WRONG} >= {"params.yaml", "git", "dvc"}
    assert found["python"].state is State.OK


def test_a_pin_that_differs_is_named_and_weighed() -> None:
    Path("constraints.txt").write_text("prefect==0.1\n")
    found = doctor.packages()
    assert found.state is State.WRONG
    assert found.text.startswith("prefect 3.")
    assert found.text.endswith(" instead of 0.1")
    Path("constraints.txt").write_text("iniconfig==0.1\nnot-installed==1.0\n")
    assert doctor.packages().state is State.NOTE, "nobody asks for it by name"
    Path("constraints.txt").write_text("".join(f"p{k}==1\n" for k in range(9)))
    assert doctor.packages().state is State.OK, "what is pinned and not installed is not missed"


def test_torch_that_cannot_be_imported_leaves_the_device_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_module(name: str) -> None:
        message = f"No module named {name!r}"
        raise ImportError(message)

    monkeypatch.setattr(doctor.importlib, "import_module", no_module)
    assert doctor.compute().state is State.WRONG
    assert doctor.device().state is State.UNKNOWN


def test_every_cache_of_kernels_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {file for file in (ROOT / "rulka").rglob("*.py") if re.search("^@cached_", file.read_text(), re.MULTILINE)}
    assert files == {ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in doctor.KERNEL_MODULES}
    assert doctor.compute().state is State.OK
    monkeypatch.setattr("rulka.machine.kernels.remove_damaged", lambda: [Path("cache/drive.nbi")])
    found = doctor.compute()
    assert (found.state, "drive.nbi" in found.text) == (State.NOTE, True)


@pytest.mark.parametrize(
    ("limit", "check", "to_do"),
    [
        ("MIN_MEMORY_GB", doctor.memory, "end something else first"),
        ("MIN_SHARED_MEMORY_MB", doctor.shared_memory, "--shm-size"),
        ("MIN_DISK_GB", doctor.disk, "dvc gc"),
    ],
)
def test_little_room_is_wrong_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, limit: str, check: Callable[[], Any], to_do: str
) -> None:
    for least, state in ((0.0, State.OK), (1e12, State.WRONG)):
        monkeypatch.setattr(doctor, limit, least)
        for found in findings_of(limit, check):
            assert (found.state, to_do in found.to_do) == (state, state is State.WRONG)


def test_the_disk_of_dvcs_cache_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(doctor, "cache_folder", lambda: tmp_path / "other" / "cache")
    full = {tmp_path / "other": SimpleNamespace(free=1e6), Path(): SimpleNamespace(free=9e9)}
    monkeypatch.setattr(doctor.shutil, "disk_usage", full.__getitem__)
    found = doctor.disk()
    assert (found.state, found.text) == (State.WRONG, "9 GB free here, 0 GB free for DVC's cache")


def test_a_proxy_that_is_in_the_way_of_this_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    assert doctor.proxy() == []
    loopback = "127.0.0.1, localhost,::1,example.org"
    for name, proxy, spared, is_in_the_way in (
        ("https_proxy", "http://127.0.0.1:1", "", False),
        ("http_proxy", "http://127.0.0.1:1", "", True),
        ("ALL_PROXY", "http://127.0.0.1:1", "example.org,localhost", True),
        ("http_proxy", "http://127.0.0.1:1", loopback, False),
        ("all_proxy", "socks5://127.0.0.1:1", loopback, True),
        ("https_proxy", "socks5h://127.0.0.1:1", "", True),
        ("all_proxy", "socks5://127.0.0.1:1", "*", False),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, proxy)
            patch.setenv("no_proxy", spared)
            assert [found.state for found in doctor.proxy()] == [State.NOTE] * is_in_the_way, (name, proxy, spared)
            patch.setenv("no_proxy", "*")
            assert doctor.proxy() == []
            httpx.Client().close()


def test_it_says_what_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.git().state is State.WRONG
    assert "core.no_scm true" in doctor.git().to_do
    subprocess.run(["git", "init", "--quiet"], check=True)
    assert doctor.git().state is State.OK, "a commit is not needed"
    for k in range(6):
        Path(f"file{k}").touch()
    found = doctor.git()
    assert found.state is State.NOTE
    assert found.text == "not committed: file0, file1, file2, file3, file4 and 1 more"
    monkeypatch.setenv("PATH", "")
    assert doctor.git() == Finding("git", State.UNKNOWN, "not looked at: git is not installed")


def test_a_lock_file_that_cannot_be_read_is_wrong(tmp_path: Path) -> None:
    make_project(tmp_path)
    assert doctor.dvc().state is State.OK
    Path("dvc.lock").write_text("<<<<<<< ours\n")
    found = doctor.dvc()
    assert (found.state, "dvc.lock" in found.text) == (State.WRONG, True)


def test_a_running_dvc_is_no_broken_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_project(tmp_path)
    said = "ERROR: 'data/races' is busy, it is being blocked by: (PID 8196): dvc repro"
    monkeypatch.setattr(doctor, "_call", lambda *_: said)
    assert doctor.dvc() == Finding("dvc", State.NOTE, f"not looked at, as DVC runs: {said}")


def test_who_listens_is_named_and_who_cannot_be_seen_is_no_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert holder("127.0.0.1", port) is None
        server.listen()
        assert str(holder("127.0.0.1", port)).startswith(f"process {os.getpid()} (`")
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()

    def refuse(_kind: str) -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "net_connections", refuse)  # as macOS does
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert holder("127.0.0.1", server.getsockname()[1]) == NOT_SEEN


def states_of_game() -> dict[str, State]:
    return {finding.name: finding.state for finding in doctor.game()}


def test_plugin_and_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RULKA_GAME_JUDGE", "validator {replay}")
    assert doctor.game() == [], "nothing is set of a game"
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RULKA_GAME_PORT", str(server.getsockname()[1]))
        monkeypatch.setenv("HOME", str(tmp_path))
        assert states_of_game() == {"game": State.OK, "game link": State.NOTE}
        server.listen()
        assert states_of_game() == {"game": State.OK, "game link": State.OK}
    plugins = tmp_path / "Documents/TMInterface/Plugins"
    plugins.mkdir(parents=True)
    assert states_of_game()["game plugin"] is State.WRONG
    (plugins / PLUGIN_FILE.name).write_text("an older one")
    assert states_of_game()["game plugin"] is State.NOTE
    (plugins / PLUGIN_FILE.name).write_bytes(PLUGIN_FILE.read_bytes())
    assert states_of_game()["game plugin"] is State.OK
    monkeypatch.setenv("RULKA_GAME_HOST", "192.0.2.1")
    assert states_of_game()["game link"] is State.UNKNOWN


def test_a_program_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RULKA_GAME_EXE", str(tmp_path / "TmForever.exe"))
    assert states_of_game()["game"] is State.WRONG
    (tmp_path / "TmForever.exe").touch()
    assert states_of_game()["game"] is State.OK


def test_a_cluster_is_missed_until_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a cluster in the environment or the parameters, there is no finding."""
    monkeypatch.setattr("rulka.runtime.cluster.find_spec", lambda name: name)
    assert cluster() == []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RULKA_CLUSTER", address := f"127.0.0.1:{taken.getsockname()[1]}")
        [found] = cluster()
        assert found.state is State.NOTE
        assert f"there is no cluster at {address}" in found.text
        text = (ROOT / "params.yaml").read_text(encoding="utf-8")
        asked = text.replace("  cluster: none ", "  cluster: ray ").replace("  order: exact ", "  order: free ")
        Path("params.yaml").write_text(asked, encoding="utf-8")
        assert cluster()[0].state is State.WRONG
        taken.listen()
        [found] = cluster()
    assert (found.state, found.text.split(";")[0]) == (State.OK, f"somebody listens at {address}")


def test_a_section_that_dvc_would_miss_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC reports it too, but only when a stage runs."""
    monkeypatch.chdir(tmp_path)
    for name in ("params.yaml", "dvc.yaml"):
        Path(name).write_bytes((ROOT / name).read_bytes())
    assert parameters().state is State.OK
    Path("params.yaml").write_text((ROOT / "params.yaml").read_text().replace("grpo: {}\n", ""))
    found = parameters()
    assert (found.state, found.to_do) == (State.WRONG, "add `grpo: {}`")
    assert "no section grpo" in found.text
