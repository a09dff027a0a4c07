import ctypes
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
import yaml
from filelock import FileLock

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
RULKA = [sys.executable, "-m", "rulka.cli"]
DVC = [sys.executable, "-m", "dvc"]
NIGHTLY = 'cron: "0 3 * * *"'

TOY_GRAPH = """\
stages:
  races:
    cmd: echo racing && mkdir -p data/races && echo 1 > data/races/x
    outs: [data/races]
  capture:
    cmd: echo capturing && mkdir -p data/frames && cp data/races/x data/frames/x
    deps: [data/races]
    outs: [data/frames]
  evaluate:
    cmd: echo evaluating && mkdir -p data/evaluation && cp data/frames/x data/evaluation/x
    deps: [data/frames]
    outs: [data/evaluation]
"""


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yields a free port for a server that takes seconds to start; on Linux it stays reserved within the block.

    On Linux a server may listen on a port that another socket has bound without listening, if both set SO_REUSEADDR.
    Elsewhere the port is only known to be free when the block begins.
    """
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        port = keeper.getsockname()[1]
        if sys.platform != "linux":
            keeper.close()
        yield port


@pytest.fixture(scope="session")
def prefect_server(prefect_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    # Imported here: this loads Prefect's whole server.
    from prefect.settings import PREFECT_HOME, temporary_settings
    from prefect.testing.utilities import prefect_test_harness

    folder = tmp_path_factory.mktemp("server")
    shutil.copy(prefect_database, folder / "prefect-test.db")
    with pytest.MonkeyPatch.context() as patch, reserved_port() as port:
        patch.setattr("prefect.testing.utilities.mkdtemp", lambda: str(folder))  # folder of its database
        patch.setattr("prefect.testing.utilities._find_available_port", lambda: port)
        # Prefect's default home is in this checkout, where a concurrent test run may use it too.
        with temporary_settings({PREFECT_HOME: folder}), prefect_test_harness(server_startup_timeout=int(PATIENCE_S)):
            yield


def make_project(folder: Path, graph: str = TOY_GRAPH) -> Path:
    """Writes a project of stand-in stages, with this repository's Prefect settings."""
    (folder / "dvc.yaml").write_text(graph)
    (folder / ".dvc").mkdir()
    (folder / ".dvc" / "config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    shutil.copy(ROOT / "prefect.toml", folder / "prefect.toml")
    (folder / "prefect.yaml").write_text(far_from_now((ROOT / "prefect.yaml").read_text()))
    return folder


def far_from_now(deployments: str) -> str:
    """Moves the nightly evaluation of a `prefect.yaml` twelve hours away, so that none starts during a test."""
    assert NIGHTLY in deployments
    return deployments.replace(NIGHTLY, f'cron: "0 {(datetime.now(UTC).hour + 12) % 24} * * *"')


@pytest.fixture
def toy_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with three tiny stages, as the working directory."""
    monkeypatch.chdir(make_project(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


@pytest.fixture(scope="session")
def prefect_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Prefect database with all tables. Creating it takes ten seconds, so all pytest workers share it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    made = folder / "prefect.db"
    with FileLock(folder / "prefect.lock"):
        if not made.exists():
            command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"]
            url = f"sqlite+aiosqlite:///{folder / 'prefect.new'}"
            environment = os.environ | {"PREFECT_HOME": str(folder), "PREFECT_SERVER_DATABASE_CONNECTION_URL": url}
            subprocess.run(command, env=environment, cwd=folder, check=True, capture_output=True)
            (folder / "prefect.new").rename(made)
    return made


@pytest.fixture
def used_project(toy_project: Path, prefect_database: Path) -> Path:
    """The toy project, with the database of an earlier Prefect run."""
    return use_before(toy_project, prefect_database)


def no_privileges() -> None:
    """Drops root's permission to override file modes (CAP_DAC_OVERRIDE); runs in a child before its program."""
    drop_from_bounding_set, may_override_modes = 24, 1
    ctypes.CDLL(None).prctl(drop_from_bounding_set, may_override_modes, 0, 0, 0)


def use_before(project: Path, database: Path) -> Path:
    """Puts a Prefect database into a project, as an earlier run leaves it."""
    (project / ".prefect").mkdir(mode=0o700)
    shutil.copy(database, project / ".prefect" / "prefect.db")
    return project


def change_command(stage: str, command: str) -> None:
    """Replaces the command of a stage in the working directory's `dvc.yaml`."""
    graph = yaml.safe_load(Path("dvc.yaml").read_text())
    graph["stages"][stage]["cmd"] = command
    Path("dvc.yaml").write_text(yaml.safe_dump(graph, sort_keys=False))


def family_of(process: psutil.Process) -> dict[psutil.Process, list[str]]:
    """Returns all descendants of a process with their command lines."""
    family = {}
    for one in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it may exit meanwhile
            family[one] = one.cmdline()
    return family


def dvc(*arguments: str) -> str:
    """Runs DVC in the working directory and returns its standard output."""
    return subprocess.run([*DVC, *arguments], capture_output=True, text=True, check=True).stdout
