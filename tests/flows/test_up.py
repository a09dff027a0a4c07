"""`rulka up`, once: closed to web pages, all deployments, a run that completes, and an end that leaves nothing."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import psutil
import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from prefect.states import Running, Scheduled

from flows import up as module
from flows.pipeline import pipeline
from flows.up import CLIENT_KEY, PROFILES_FILE, SERVER_KEY, free_address, password
from rulka.machine.errors import UserError
from rulka.runtime.run_lock import RunInUseError
from tests.flows.conftest import (
    ROOT,
    RULKA,
    change_command,
    family_of,
    make_project,
    no_privileges,
    reserved_port,
    use_before,
)
from tests.machine.test_processes import is_alive
from tests.waiting import PATIENCE_S, wait_for

PREFECT = [sys.executable, "-m", "prefect"]
READY = "Ctrl-C stops"


def call(*command: str) -> subprocess.CompletedProcess[str]:
    """Calls a program in the working directory to its end."""
    return subprocess.run(command, capture_output=True, text=True, check=False)


def runs_of_prefect(*states: str) -> list[dict[str, Any]]:
    """The runs that the server of this folder knows, what is planned last first; all, or those in some states."""
    named = [part for state in states for part in ("--state", state)]
    answer = call(*PREFECT, "flow-run", "ls", "--output", "json", "--limit", "50", *named)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


@pytest.fixture
def no_password() -> Iterator[None]:
    with temporary_settings(restore_defaults={PREFECT_API_AUTH_STRING}):
        yield


@pytest.mark.usefixtures("toy_project", "no_password")
class TestPassword:
    def test_it_is_made_for_its_owner_alone_and_prefect_reads_it_in_this_folder(self) -> None:
        made = password()
        assert len(made.partition(":")[2]) >= 32
        assert stat.S_IMODE(PROFILES_FILE.stat().st_mode) == 0o600
        code = (
            "from prefect.settings import get_current_settings as get\n"
            "print(get().api.auth_string.get_secret_value(), get().server.api.auth_string.get_secret_value())"
        )
        answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert answer.stdout.split() == [made, made]

    def test_the_one_of_the_environment_comes_first_and_a_file_without_one_is_named(self) -> None:
        with temporary_settings({PREFECT_API_AUTH_STRING: "me:mine"}):
            assert password() == "me:mine"
        assert not PROFILES_FILE.exists()
        PROFILES_FILE.parent.mkdir()
        PROFILES_FILE.write_text('active = "a"\n[profiles.a]\n')
        with pytest.raises(UserError, match="its active profile has no PREFECT_API_AUTH_STRING"):
            password()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://192.0.2.1/api", "which is not of the form"),
        ("http:///api", "which is not of the form"),
        ("http://127.0.0.1:4200", "which is not of the form"),
        ("http://127.0.0.1:42000000/api", "there is no port 42000000"),
        ("http://127.0.0.1:web/api", "which is not of the form"),
    ],
)
def test_an_address_that_no_server_of_this_machine_has_is_refused(url: str, reason: str) -> None:
    with temporary_settings({PREFECT_API_URL: url}), pytest.raises(UserError, match=reason):
        free_address()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_who_has_taken_the_port_is_named(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        server = socket.create_server((host.strip("[]"), 0), family=family)
    except OSError as error:
        pytest.skip(f"this machine has no {host}: {error}")
    with server:
        port = server.getsockname()[1]
        with temporary_settings({PREFECT_API_URL: f"http://{host}:{port}/api"}), pytest.raises(UserError) as refusal:
            free_address()
    assert str(refusal.value).startswith(f"port {port} of this machine is taken by process {os.getpid()} (`")
    assert "PREFECT_API_URL=" in refusal.value.hint


@pytest.mark.skipif(sys.platform != "linux", reason="only there can a test of root's be without root's privileges")
def test_a_read_only_folder_is_named(toy_project: Path) -> None:
    folders = (toy_project, toy_project / ".dvc")
    for folder in folders:
        folder.chmod(0o555)
    answer = subprocess.run([*RULKA, "up"], preexec_fn=no_privileges, capture_output=True, text=True, check=False)
    for folder in folders:
        folder.chmod(0o755)
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"error: ., .dvc in {toy_project}: not writable\n")
    assert not (toy_project / ".prefect").exists()


class StartedError(Exception):
    """What the server of a test ends with instead of a start."""


def test_the_server_starts_alone_and_by_no_proxy_whatever_the_folder_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "what? 100% #1"
    folder.mkdir()
    monkeypatch.chdir(make_project(folder))
    for name, value in {"all_proxy": "socks5://127.0.0.1:9", "no_proxy": ""}.items():
        monkeypatch.setenv(name, value)

    def start(_name: str, _command: list[str], environment: dict[str, str]) -> None:
        with pytest.raises(RunInUseError, match=f"process {os.getpid()} runs `rulka up` there"):
            module.up(print)
        code = "from prefect.settings import get_current_settings as get; from sqlalchemy import make_url\n"
        code += "print(make_url(get().server.database.connection_url.get_secret_value()).database, end='')"
        made = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert Path(made.stdout).resolve() == folder / ".prefect" / "prefect.db"
        assert not module.is_ready(environment["PREFECT_API_URL"])
        raise StartedError

    monkeypatch.setattr(module, "_Part", start)
    monkeypatch.setattr(module, "interrupt_on_signals", lambda: None)
    for _ in range(2):
        with (
            reserved_port() as port,
            temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{port}/api"}),
            pytest.raises(StartedError),
        ):
            module.up(print)


class TestWatch:
    """With other programs in the place of Prefect's."""

    def part(self, *command: str) -> module._Part:
        return module._Part("worker", list(command), dict(os.environ))

    @pytest.fixture(autouse=True)
    def _python(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "PREFECT", [sys.executable, "-c"])
        monkeypatch.setattr(module, "POLL_S", 0.0)
        monkeypatch.setattr(module, "is_ready", lambda _: True)

    def test_what_dies_is_said_and_what_it_had_started_ends(self, tmp_path: Path) -> None:
        child = "import subprocess, sys, time; child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        child += "open(sys.argv[1], 'w').write(str(child.pid)); sys.stdout.flush(); time.sleep(600)"
        with closing(self.part(child, str(tmp_path / "pid"))) as part:
            stray = wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "its child")
            part.check()
            part._process.kill()
            with pytest.raises(UserError, match="the Prefect worker ended with exit code -9"):
                module.watch("url", [part], 1.0)
            assert is_alive(int(stray))
        assert not is_alive(int(stray))

    def test_a_server_that_hangs_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with closing(self.part("import time; time.sleep(600)")) as part:
            module.watch("url", [part], 0.0, until_ready=True)
            monkeypatch.setattr(module, "is_ready", lambda _: False)
            with pytest.raises(UserError, match="the Prefect server has not answered at url for 0 s"):
                module.watch("url", [part], 0.0)


def test_no_further_run_is_taken_before_those_under_way_are_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    client = MagicMock()
    client.__enter__.return_value = client
    client.read_flow_runs.side_effect = [[SimpleNamespace(id=1)], []]
    client.update_work_pool.side_effect = lambda name, pool: done.append(f"{name} paused {pool.is_paused}")
    client.set_flow_run_state.side_effect = lambda run, state: done.append(f"{run} {state.name}")
    monkeypatch.setattr(module, "get_client", lambda **_: client)
    module.cancel_runs()
    assert done == ["rulka paused True", "1 Cancelling"]


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_runs_that_were_left_under_way_are_closed_and_others_wait_on(toy_project: Path) -> None:
    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(client.create_flow(pipeline), name="left")
        left, waiting = (client.create_flow_run_from_deployment(deployment, state=Scheduled()).id for _ in range(2))
        client.set_flow_run_state(left, Running(), force=True)
        module.prepare_pool()
        module.cancel_runs()
        assert client.read_work_pool("rulka").is_paused
        module.prepare_pool()
        assert not client.read_work_pool("rulka").is_paused
        assert client.read_flow_run(left).state_name == "Crashed"
        assert client.read_flow_run(waiting).state_name == "Scheduled"
        client.delete_deployment(deployment)


@dataclass(frozen=True)
class Stack:
    """`rulka up`, ready."""

    process: subprocess.Popen[str]
    url: str
    folder: Path

    def ask(self, path: str, method: str = "GET", **headers: str) -> int:
        """Sends a request as any program can; returns the status of the answer."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        body = None if method in ("GET", "OPTIONS") else b"{}"
        request = urllib.request.Request(self.url + path, body, named, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code


@pytest.fixture
def stack(tmp_path_factory: pytest.TempPathFactory, prefect_database: Path) -> Iterator[Stack]:
    folder = use_before(make_project(tmp_path_factory.mktemp("stack? 100% #")), prefect_database)
    # Nor do proxies that answer nothing stand in the way, one of SOCKS included, for which httpx lacks a package.
    proxies = {"http_proxy": "http://127.0.0.1:9", "all_proxy": "socks5://127.0.0.1:9", "no_proxy": ""}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **proxies}
    with reserved_port() as port:
        url = f"http://127.0.0.1:{port}/api"
        # As a user does whose port 4200 is taken: everything typed in this folder knows it from now on.
        (folder / ".env").write_text(f"PREFECT_API_URL={url}\n")
        with (
            (folder / "up.log").open("w") as log,
            subprocess.Popen([*RULKA, "up"], cwd=folder, env=environment, stdout=log, stderr=log, text=True) as process,
        ):
            said = folder / "up.log"
            try:
                wait_for(lambda: READY in said.read_text() or process.poll() is not None, "`rulka up`")
                assert process.poll() is None, said.read_text()
                yield Stack(process, url, folder)
            finally:
                process.kill()


@pytest.fixture
def _in_folder(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(stack.folder)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def a_web_page_is_refused(stack: Stack) -> None:
    page = {"Origin": "http://evil.example"}
    # What a form can send without asking.
    assert stack.ask("/deployments/filter", "POST", Content_Type="text/plain", **page) == 403
    asked = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "prefect-csrf-token"}
    assert stack.ask("/deployments/filter", "OPTIONS", **asked, **page) == 400
    assert stack.ask("/deployments/filter", "OPTIONS", **asked, Origin=stack.url.removesuffix("/api")) == 200
    # A page whose own name points to this machine by now is of the same origin; it lacks the password.
    rebound = {"Origin": "http://evil.example", "Host": "evil.example"}
    for path in ("/csrf-token?client=x", "/admin/version", "/flow_runs/count"):
        assert stack.ask(path, **rebound) in (401, 405)
    wrong = "Basic " + b64encode(b"rulka:guess").decode()
    assert stack.ask("/admin/version", Authorization=wrong) == 401


def who_reads_the_file_is_served(stack: Stack) -> None:
    profile = tomllib.loads(PROFILES_FILE.read_text())["profiles"]["rulka"]
    assert profile[CLIENT_KEY] == profile[SERVER_KEY]
    right = "Basic " + b64encode(profile[CLIENT_KEY].encode()).decode()
    assert stack.ask("/admin/version", Authorization=right) == 200
    # Even so, nothing is changed without the token that a page of another site cannot read.
    assert stack.ask("/deployments/filter", "POST", Authorization=right) == 403


def all_deployments_are_there_and_a_night_is_planned() -> None:
    listed = call(*PREFECT, "deployment", "ls", "--output", "json")
    assert listed.returncode == 0, listed.stdout + listed.stderr
    deployments = {each["name"] for each in yaml.safe_load(Path("prefect.yaml").read_text())["deployments"]}
    assert {each["name"] for each in json.loads(listed.stdout)} == deployments
    wait_for(lambda: any(run["auto_scheduled"] for run in runs_of_prefect()), "a run that the server has planned")


def a_run_typed_by_a_user_completes() -> None:
    watched = call(*PREFECT, "deployment", "run", "rulka/full-pipeline", "--watch")
    assert watched.returncode == 0, watched.stdout + watched.stderr
    assert Path("data/evaluation/x").read_text() == "1\n"
    (run,) = [run for run in runs_of_prefect() if not run["auto_scheduled"]]
    assert run["name"].startswith("all stages: ")
    assert run["state"]["message"] == "ran: races, capture, evaluate"


def parameters_that_cannot_be_start_nothing() -> None:
    wrong = (("training", 'stages=["trane"]'), ("full-pipeline", "timeout_h=0"), ("experiment", "processes=2"))
    for deployment, parameter in wrong:
        answer = call(*PREFECT, "deployment", "run", f"rulka/{deployment}", "--param", parameter)
        assert answer.returncode == 1, answer.stdout
    assert len([run for run in runs_of_prefect() if not run["auto_scheduled"]]) == 1


def its_end_leaves_nothing_and_says_what_became_of_the_run(stack: Stack) -> None:
    change_command("capture", "sleep 600")
    asked = call(*PREFECT, "deployment", "run", "rulka/full-pipeline")
    assert asked.returncode == 0, asked.stderr
    this = psutil.Process(stack.process.pid)
    wait_for(lambda: ["sleep", "600"] in family_of(this).values(), "the stage")
    processes = this.children(recursive=True)
    stack.process.send_signal(signal.SIGINT)
    assert stack.process.wait(PATIENCE_S) == 0
    assert Path("up.log").read_text().endswith("stopped\n")
    _, left = psutil.wait_procs(processes, timeout=PATIENCE_S)
    assert left == []
    assert not Path("data/frames").exists()
    assert not Path("..", stack.folder.name.partition("?")[0]).exists()


@pytest.mark.slow
@pytest.mark.usefixtures("_in_folder")
def test_up_from_its_start_to_its_end(stack: Stack) -> None:
    a_web_page_is_refused(stack)
    who_reads_the_file_is_served(stack)
    all_deployments_are_there_and_a_night_is_planned()
    a_run_typed_by_a_user_completes()
    parameters_that_cannot_be_start_nothing()
    its_end_leaves_nothing_and_says_what_became_of_the_run(stack)


@pytest.mark.slow
@pytest.mark.usefixtures("used_project")
def test_what_prefect_says_of_bad_deployments_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path("prefect.yaml").read_text()
    Path("prefect.yaml").write_text(text.replace("flows.pipeline.pipeline", "flows.pipeline.no_such_flow"))
    with reserved_port() as port:
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{port}/api")
        answer = call(*RULKA, "up")
    assert answer.returncode == 1
    assert "no_such_flow" in answer.stdout
    assert "Its output above says why." in answer.stderr
