"""`rulka cluster`: up, looked at, refused a second time, and down without a trace. And whoever only pretends."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rulka.cluster.local import HOST, status_text
from rulka.cluster.settings import CLUSTER_VARIABLE

PATIENCE_S = 240.0


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With no cluster named, and without the folder that Ray has for all programs, as on a fresh machine."""
    others = {name: value for name, value in os.environ.items() if name != CLUSTER_VARIABLE}
    return others | {"RAY_TMPDIR": str(tmp_path / "not-there")}


def rulka(*arguments: str, env: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rulka.cli", "cluster", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=env, cwd=folder)


@pytest.fixture
def up(port: int, environment: dict[str, str], tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "rulka.cli", "cluster", "up", f"--port={port}", "--cpus=1", "--object-store-mb=80"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path)
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline(), process.stdout.readline()]
        assert lines == [
            "a cluster of 1 node with 1 CPUs each is up (Ctrl-C ends it)\n",
            f"{CLUSTER_VARIABLE}={HOST}:{port}\n",
        ]
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def test_a_cluster_of_this_machine_is_up_and_down(
    up: subprocess.Popen[str], port: int, environment: dict[str, str], tmp_path: Path
) -> None:
    family = psutil.Process(up.pid).children(recursive=True)
    listening = [
        one for process in family for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN
    ]
    # Ray's head listens by IPv6, where the address of IPv4 is written ::ffff:127.0.0.1.
    places = {one.laddr.ip.removeprefix("::ffff:") for one in listening if one.laddr.port == port}
    assert places == {HOST}, "on loopback alone"
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
    give_up_s = time.monotonic() + PATIENCE_S
    while any(process.is_running() and process.status() != "zombie" for process in family):
        assert time.monotonic() < give_up_s
        time.sleep(0.1)
    assert rulka("down", f"--port={port}", env=environment, folder=tmp_path).stdout == (
        f"no `rulka cluster up` runs at port {port}\n"
    )


def test_where_there_is_none_that_is_said(port: int, environment: dict[str, str], tmp_path: Path) -> None:
    found = rulka("status", f"--port={port}", env=environment, folder=tmp_path)
    assert (found.returncode, found.stdout) == (0, f"there is no cluster at {HOST}:{port}\n")
    named = rulka("status", "--json", env=environment | {CLUSTER_VARIABLE: f"{HOST}:{port}"}, folder=tmp_path)
    assert json.loads(named.stdout) == {"address": f"{HOST}:{port}", "is_up": False, "nodes": [], "free_cpus": 0}


def test_who_listens_and_is_no_cluster_is_given_up(environment: dict[str, str], tmp_path: Path) -> None:
    """Ray itself would ask for ever."""
    code = (
        "from rulka.cluster import ray_post\n"
        "from rulka.cluster.settings import ClusterError\n"
        "ray_post.JOIN_LIMIT_S = 5.0\n"
        "import os, socket\n"
        f"door = socket.create_server(('{HOST}', 0))\n"
        "try:\n"
        f"    ray_post.RayPost(f'{HOST}:{{door.getsockname()[1]}}')\n"
        "except ClusterError as error:\n"
        "    print(error, flush=True)\n"
        "    os._exit(3)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment, timeout=PATIENCE_S
    )
    assert answer.returncode == 3, answer.stderr
    assert "cannot be joined: who listens there does not answer as Ray does within 5 s" in answer.stdout


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
    arguments: tuple[str, ...], words: str, environment: dict[str, str], tmp_path: Path
) -> None:
    answer = rulka(*arguments, env=environment, folder=tmp_path)
    assert answer.returncode == 1
    assert words in answer.stderr


def test_the_words_for_people() -> None:
    node = {"name": "10.0.0.1 (abc)", "cpus": 4, "object_store_mb": 512, "is_own": True}
    text = status_text({"address": "10.0.0.1:6379", "is_up": True, "nodes": [node], "free_cpus": 3})
    assert (
        text == "10.0.0.1:6379: 1 node, 3 of 4 CPUs free\n  10.0.0.1 (abc): 4 CPUs, object store 512 MB, this machine"
    )
