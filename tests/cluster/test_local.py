"""`rulka cluster`: up, looked at, refused a second time, and down without a trace. And whoever only pretends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from rulka.cli import main
from rulka.cluster.local import HOST, status_text
from rulka.cluster.settings import CLUSTER_VARIABLE
from tests.ports import reserved_port
from tests.waiting import PATIENCE_S, wait_for

NUM_TRIES = 10
PATIENCE = {"RAY_gcs_server_port_wait_time_s": "300", "RAY_health_check_timeout_ms": "300000"}
"""How long Ray's processes wait for one that is slow."""


@pytest.fixture
def port() -> Iterator[int]:
    """A port that nobody listens at, and nobody else is given."""
    with reserved_port(HOST) as port:
        yield port


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With no cluster named, and without the folder that Ray has for all programs, as on a fresh machine."""
    others = {name: value for name, value in os.environ.items() if name != CLUSTER_VARIABLE}
    return others | PATIENCE | {"RAY_TMPDIR": str(tmp_path / "not-there")}


def rulka(*arguments: str, env: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rulka.cli", "cluster", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=env, cwd=folder)


@pytest.fixture
def up(port: int, environment: dict[str, str], tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Ray gives its node 30 s to start, which on a busy machine are enough only now and then."""
    command = [sys.executable, "-m", "rulka.cli", "cluster", "up", f"--port={port}", "--cpus=1", "--object-store-mb=80"]
    said = tmp_path / "said.txt"
    for _ in range(NUM_TRIES):
        with said.open("w") as file:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=file, text=True, env=environment, cwd=tmp_path
            )
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            if not first and "a node of Ray did not start" in said.read_text():
                continue
            assert first == "a cluster of 1 node with 1 CPUs each is up (Ctrl-C ends it)\n", said.read_text()
            assert process.stdout.readline() == f"{CLUSTER_VARIABLE}={HOST}:{port}\n"
            yield process
            return
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE_S)
    pytest.fail(said.read_text())


def is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def listening(family: Sequence[psutil.Process], port: int) -> set[str]:
    """Returns the addresses where some of these processes listen at a port."""
    places = set[str]()
    for process in family:
        with suppress(psutil.NoSuchProcess):
            connections = [one for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
            # Ray's head listens by IPv6, where the address of IPv4 is written ::ffff:127.0.0.1.
            places |= {one.laddr.ip.removeprefix("::ffff:") for one in connections if one.laddr.port == port}
    return places


@pytest.mark.slow
def test_a_cluster_of_this_machine_is_up_and_down(
    up: subprocess.Popen[str], port: int, environment: dict[str, str], tmp_path: Path
) -> None:
    family = psutil.Process(up.pid).children(recursive=True)
    assert listening(family, port) == {HOST}, "on loopback alone"
    found = rulka("status", "--json", f"--port={port}", env=environment, folder=tmp_path)
    assert json.loads(found.stdout) == {
        "address": f"{HOST}:{port}",
        "is_up": True,
        "nodes": [
            {"name": json.loads(found.stdout)["nodes"][0]["name"], "cpus": 1, "object_store_mb": 80, "is_own": True}
        ],
        "free_cpus": 1,
    }
    again = rulka("up", f"--port={port}", env=environment, folder=tmp_path)
    assert (again.returncode, again.stdout) == (1, "")
    assert f"it is up: process {up.pid} runs a cluster at port {port}" in again.stderr
    down = rulka("down", f"--port={port}", env=environment, folder=tmp_path)
    assert (down.returncode, down.stdout) == (0, "stopped\n"), down.stderr
    assert up.wait(PATIENCE_S) == 0
    wait_for(lambda: not any(map(is_alive, family)), "all of its processes to end")
    assert rulka("down", f"--port={port}", env=environment, folder=tmp_path).stdout == (
        f"no `rulka cluster up` runs at port {port}\n"
    )


@pytest.fixture
def here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[Any, str, str]]:
    """Calls the command in this process; returns its exit code and what it said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(CLUSTER_VARIABLE, raising=False)

    def call(*arguments: str) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["rulka", "cluster", *arguments])
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    return call


def test_where_there_is_none_that_is_said(
    port: int, here: Callable[..., tuple[Any, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert here("status", f"--port={port}") == (0, f"there is no cluster at {HOST}:{port}\n", "")
    monkeypatch.setenv(CLUSTER_VARIABLE, f"{HOST}:{port}")
    code, text, _ = here("status", "--json")
    assert code == 0
    assert json.loads(text) == {"address": f"{HOST}:{port}", "is_up": False, "nodes": [], "free_cpus": 0}


def test_who_listens_and_is_no_cluster_is_given_up(environment: dict[str, str], tmp_path: Path) -> None:
    """Ray itself would ask for ever."""
    code = (
        "from rulka.cluster import ray_cluster\n"
        "from rulka.cluster.settings import ClusterError\n"
        "ray_cluster.JOIN_LIMIT_S = 2.0\n"
        "import os, socket\n"
        f"door = socket.create_server(('{HOST}', 0))\n"
        "try:\n"
        f"    ray_cluster.RayCluster(f'{HOST}:{{door.getsockname()[1]}}')\n"
        "except ClusterError as error:\n"
        "    print(error, flush=True)\n"
        "    os._exit(3)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment, timeout=PATIENCE_S
    )
    assert answer.returncode == 3, answer.stderr
    assert "cannot be joined: who listens there does not answer as Ray does within 2 s" in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("up", "--nodes=0"), "a cluster of 0 nodes"),
        (("up", "--object-store-mb=10"), "Take at least 1, 1 and 80"),
        (("up", "--port=0"), "there is no port 0"),
        (("down", "--json"), "--json goes with `rulka cluster status`"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: tuple[str, ...], words: str, here: Callable[..., tuple[Any, str, str]]
) -> None:
    code, _, error = here(*arguments)
    assert code == 1
    assert words in error


def test_the_words_for_people() -> None:
    node = {"name": "10.0.0.1 (abc)", "cpus": 4, "object_store_mb": 512, "is_own": True}
    text = status_text({"address": "10.0.0.1:6379", "is_up": True, "nodes": [node], "free_cpus": 3})
    assert (
        text == "10.0.0.1:6379: 1 node, 3 of 4 CPUs free\n  10.0.0.1 (abc): 4 CPUs, object store 512 MB, this machine"
    )
