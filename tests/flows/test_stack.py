"""The whole stack, once: up, both deployments, a run that completes, and down without a process left."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parents[2]
RULKA = [sys.executable, "-m", "rulka.cli"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def address(toy_project: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The API of a stack in the toy project, on a port of its own."""
    for name in ("prefect.yaml", "prefect.toml"):
        shutil.copy(ROOT / name, toy_project / name)
    address = f"http://127.0.0.1:{free_port()}/api"
    monkeypatch.setenv("PREFECT_API_URL", address)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return address


@pytest.fixture
def stack(address: str) -> Iterator[subprocess.Popen[str]]:
    """`rulka up`, ready."""
    with subprocess.Popen([*RULKA, "up"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("Ctrl-C stops"):
                break
        assert process.poll() is None, "".join(said)
        yield process
        process.kill()


def ask(address: str, path: str, body: dict[str, Any] | None = None) -> Any:
    request = urllib.request.Request(
        address + path, json.dumps(body or {}).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def wait_for(condition: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    return value


def scheduled_runs(address: str, deployment: str) -> list[dict[str, Any]]:
    chosen = {
        "flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}},
        "deployments": {"id": {"any_": [deployment]}},
    }
    return ask(address, "/flow_runs/filter", chosen)


def test_up_run_and_down(address: str, stack: subprocess.Popen[str]) -> None:
    deployments = {each["name"]: each["id"] for each in ask(address, "/deployments/filter")}
    assert set(deployments) == {"full-pipeline", "nightly-evaluation"}
    assert wait_for(lambda: scheduled_runs(address, deployments["nightly-evaluation"]))

    command = [sys.executable, "-m", "prefect", "deployment", "run", "rulka/full-pipeline", "--watch"]
    watched = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert watched.returncode == 0, watched.stdout + watched.stderr
    assert Path("data/evaluation/x").read_text() == "1\n"

    graph = Path("dvc.yaml")
    graph.write_text(graph.read_text().replace("echo capturing", "sleep 100"))
    run = ask(address, f"/deployments/{deployments['full-pipeline']}/create_flow_run")
    family = psutil.Process(stack.pid)
    wait_for(lambda: "sleep" in [process.name() for process in family.children(recursive=True)])
    processes = family.children(recursive=True)
    stack.send_signal(signal.SIGINT)
    said, _ = stack.communicate(timeout=90)
    assert stack.returncode == 0
    assert "cancelled 1 active run\n" in said
    assert said.endswith("stopping the worker\nstopping the server\nstopped\n") or "stopped\n" in said
    _, left = psutil.wait_procs(processes, timeout=5)
    assert left == []
    assert run["name"] in said
    assert not Path("data/frames").exists()


def test_a_taken_port_is_named(address: str) -> None:
    port = int(address.rpartition(":")[2].removesuffix("/api"))
    with socket.create_server(("127.0.0.1", port)):
        answer = subprocess.run([*RULKA, "up"], capture_output=True, text=True, check=False, timeout=60)
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"error: port {port} of this machine is taken by another program\n")
    assert "PREFECT_API_URL=" in answer.stderr


def test_only_this_machine_is_served(toy_project: Path) -> None:
    environment = {**os.environ, "PREFECT_API_URL": "http://192.0.2.1:4200/api", "PYTHONPATH": str(ROOT)}
    answer = subprocess.run([*RULKA, "up"], env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert answer.returncode == 1
    assert "192.0.2.1:4200/api, which is not this machine" in answer.stderr
