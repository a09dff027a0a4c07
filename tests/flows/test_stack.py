"""The whole stack, once: up, closed to web pages, all deployments, a run that completes, and down without a trace."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
import yaml

from flows.access import CLIENT_KEY, PROFILE, PROFILES_FILE
from flows.server import is_ready, wait_until_ready
from flows.stack import down, server_part, stack_environment
from flows.supervisor import Supervisor
from flows.turns import Holder
from rulka.ports import reserved_port
from tests.flows.conftest import ROOT, RULKA, change_command, family_of, make_project, use_before, write_whole
from tests.waiting import PATIENCE_S, wait_for

PREFECT = [sys.executable, "-m", "prefect"]


def call(*command: str) -> subprocess.CompletedProcess[str]:
    """Calls a program in the working directory to its end."""
    return subprocess.run(command, capture_output=True, text=True, check=False)


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


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, prefect_database: Path) -> Iterator[Stack]:
    folder = use_before(make_project(tmp_path_factory.mktemp("stack")), prefect_database)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [*RULKA, "up"]
    with reserved_port() as port:
        url = f"http://127.0.0.1:{port}/api"
        # As a user does whose port 4200 is taken: everything typed in this folder knows it from now on.
        (folder / ".env").write_text(f"PREFECT_API_URL={url}\n")
        with subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            said = [""]
            while not said[-1].startswith("Ctrl-C stops"):
                said.append(process.stdout.readline())
                assert said[-1], "".join(said)
            yield Stack(process, url, folder)
            process.kill()


@pytest.fixture
def _in_folder(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(stack.folder)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.slow
@pytest.mark.usefixtures("_in_folder")
class TestUp:
    """In this order, on one stack."""

    def test_a_web_page_is_refused(self, stack: Stack) -> None:
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

    def test_who_reads_the_file_is_served(self, stack: Stack) -> None:
        profile = tomllib.loads(PROFILES_FILE.read_text())["profiles"][PROFILE]
        right = "Basic " + b64encode(profile[CLIENT_KEY].encode()).decode()
        assert stack.ask("/admin/version", Authorization=right) == 200
        # Even so, nothing is changed without the token that a page of another site cannot read.
        assert stack.ask("/deployments/filter", "POST", Authorization=right) == 403

    def test_all_deployments_are_there(self, stack: Stack) -> None:
        listed = call(*PREFECT, "deployment", "ls", "--output", "json")
        assert listed.returncode == 0, listed.stdout + listed.stderr
        deployments = {each["name"] for each in yaml.safe_load(Path("prefect.yaml").read_text())["deployments"]}
        assert {each["name"] for each in json.loads(listed.stdout)} == deployments
        planned = [*PREFECT, "flow-run", "ls", "--state", "Scheduled", "--output", "json"]
        wait_for(lambda: "auto-scheduled" in call(*planned).stdout, "a run that the server has planned")

    def test_deployments_follow_their_file(self, stack: Stack) -> None:
        file = Path("prefect.yaml")
        before = file.read_text()
        write_whole(file, before.replace("- name: training", "- name: further-training"))
        said = stack.process.stdout
        assert said is not None
        assert next(line for line in said if line.startswith("prefect.yaml ")) == (
            "prefect.yaml has changed: deployments and schedules are as it says now\n"
        )
        listed = call(*PREFECT, "deployment", "ls", "--output", "json")
        assert "further-training" in {each["name"] for each in json.loads(listed.stdout)}
        write_whole(file, "deployments: [")
        assert "has changed and cannot be used" in next(line for line in said if line.startswith("prefect.yaml "))
        write_whole(file, before)
        assert "has changed: deployments" in next(line for line in said if line.startswith("prefect.yaml "))
        assert call(*PREFECT, "deployment", "delete", "rulka/further-training").returncode == 0

    def test_a_second_one_finds_it_up(self, stack: Stack) -> None:
        answer = call(*RULKA, "up")
        assert answer.returncode == 0, answer.stderr
        assert answer.stdout.startswith(f"it is up: `rulka up` at {stack.url} (process {stack.process.pid}, since ")

    def test_a_server_that_no_up_of_this_folder_keeps_is_named(self, stack: Stack) -> None:
        """As that of another copy of the project with the same password, or one that was typed."""
        elsewhere = "import flows.turns as t; t.HOME = t.HOME / 'x'; from flows.stack import up; up(print)"
        Path(".prefect/x").mkdir()
        answer = call(sys.executable, "-c", elsewhere)
        assert answer.returncode == 1
        assert f"a Prefect server already answers at {stack.url}: use it, or stop it" in answer.stderr

    def test_the_doctor_finds_server_worker_and_deployments_of_this_tree(self, tmp_path: Path) -> None:
        program = "import sys, os, json; from flows.checkup import server; look = lambda: print(json.dumps(server()))\n"
        program += "look(); os.chdir(sys.argv[1]); look()"
        elsewhere = Path("prefect.yaml").read_text().replace("- name: training", "- name: another")
        (tmp_path / "prefect.yaml").write_text(elsewhere)
        answer = call(sys.executable, "-c", program, str(tmp_path))
        assert answer.returncode == 0, answer.stderr
        here, there = map(json.loads, answer.stdout.splitlines())
        assert [(name, state) for name, state, _, _ in here] == [
            ("server", "ok"),
            ("worker", "ok"),
            ("deployments", "ok"),
        ]
        assert there[2][1:3] == ["wrong", "another: in prefect.yaml and not on the server"]
        shutil.copy("prefect.yaml", tmp_path)
        answer = call(sys.executable, "-c", program, str(tmp_path))
        _, there = map(json.loads, answer.stdout.splitlines())
        assert there[2][1] == "wrong"
        assert there[2][2].startswith(f"experiment works in {Path.cwd()} and not here, nor do 4 more")

    def test_a_run_typed_by_a_user_completes(self, stack: Stack) -> None:
        watched = call(*PREFECT, "deployment", "run", "rulka/full-pipeline", "--watch")
        assert watched.returncode == 0, watched.stdout + watched.stderr
        assert Path("data/evaluation/x").read_text() == "1\n"

    def test_status_says_what_was_and_what_comes(self, stack: Stack) -> None:
        answer = call(*RULKA, "status", "--json")
        assert answer.returncode == 0, answer.stderr
        found = json.loads(answer.stdout)
        assert found["up"]["pid"] == stack.process.pid
        assert found["pipeline"] is None
        assert found["running"] == []
        assert [(row["deployment"], row["state"]) for row in found["last"]] == [("full-pipeline", "Completed")]
        assert found["last"][0]["run"].startswith("all stages: ")
        assert found["last"][0]["message"] == "ran: races, capture, evaluate"
        (comes,) = found["next"]
        assert comes["deployment"] == "nightly-evaluation"
        (night,) = [
            each for each in yaml.safe_load(Path("prefect.yaml").read_text())["deployments"] if each.get("schedules")
        ]
        at = datetime.fromisoformat(comes["at"]).astimezone(UTC)
        assert night["schedules"][0]["cron"] == f"{at.minute} {at.hour} * * *"
        said = call(*RULKA, "status").stdout
        assert said.startswith(f"up: `rulka up` at {stack.url} (process {stack.process.pid}, since ")
        assert "\nat work: nothing\n" in said
        assert "\nlast: full-pipeline, Completed, " in said
        assert "\n    ran: races, capture, evaluate\n" in said

    @pytest.mark.parametrize(
        ("deployment", "parameter"),
        [
            ("training", 'stages=["trane"]'),
            ("full-pipeline", "timeout_h=0"),
            ("experiment", "processes=2"),
        ],
    )
    def test_parameters_that_cannot_be_start_nothing(self, stack: Stack, deployment: str, parameter: str) -> None:
        answer = call(*PREFECT, "deployment", "run", f"rulka/{deployment}", "--param", parameter)
        assert answer.returncode == 1, answer.stdout
        assert not call(*RULKA, "status").stdout.count("\nrunning: ")

    def test_a_run_in_the_terminal_uses_its_server(self, stack: Stack) -> None:
        answer = call(*RULKA, "run")
        assert answer.returncode == 0, answer.stderr
        assert answer.stdout == "nothing had changed: races, capture, evaluate\n"

    def test_down(self, stack: Stack) -> None:
        change_command("capture", "sleep 600")
        asked = call(*PREFECT, "deployment", "run", "rulka/full-pipeline")
        assert asked.returncode == 0, asked.stderr
        family = psutil.Process(stack.process.pid)
        wait_for(lambda: "\nrunning: full-pipeline, Running, " in call(*RULKA, "status").stdout, "the run")
        wait_for(lambda: ["sleep", "600"] in family_of(family).values(), "the stage")
        processes = family.children(recursive=True)
        stopped = call(*RULKA, "down")
        assert stopped.returncode == 0, stopped.stderr
        assert stopped.stdout.splitlines()[-1] == "stopped"
        said, _ = stack.process.communicate(timeout=PATIENCE_S)
        assert stack.process.returncode == 0
        assert "cancelled 1 active run\n" in said
        assert "stopped\n" in said
        _, left = psutil.wait_procs(processes, timeout=PATIENCE_S)
        assert left == []
        assert not Path("data/frames").exists()
        assert call(*RULKA, "down").stdout == "`rulka up` does not run here\n"
        assert call(*RULKA, "status").stdout.startswith(
            "up: no; `rulka up` starts server and worker\nat work: nothing\n"
        )


def test_down_waits_until_it_knows_whom_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([Holder(0, "another process", ""), None])
    monkeypatch.setattr("flows.stack.CHECK_PERIOD_S", 0.0)
    monkeypatch.setattr("flows.stack.holder_of", lambda _: next(found))
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("0 stands for all of this process's group"))
    said: list[str] = []
    down(said.append)
    assert said == ["`rulka up` does not run here"]


@pytest.fixture
def port_elsewhere() -> Iterator[int]:
    with reserved_port("127.0.0.2") as port:
        yield port


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is this machine on Linux alone")
def test_up_works_for_a_server_of_another_machine(
    used_project: Path, port_elsewhere: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """127.0.0.2 stands for the other machine: it is none of the names of this one."""
    url = f"http://127.0.0.2:{port_elsewhere}/api"
    monkeypatch.setenv("PREFECT_API_URL", url)
    nobody = call(*RULKA, "up")
    assert "is on another machine, and PREFECT_API_AUTH_STRING is not set" in nobody.stderr
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "me:there")
    for command in ("up", "run"):
        answer = call(*RULKA, command)
        assert answer.returncode == 1
        assert f"{url}, where PREFECT_API_URL leads: nobody answers" in answer.stderr
    part = server_part(url, stack_environment(url, "me:there"), Path("server.log"))
    with Supervisor(lambda _: None) as supervisor:
        supervisor.start(part)
        wait_until_ready(url, PATIENCE_S, supervisor.check)
        with subprocess.Popen([*RULKA, "up"], stdout=subprocess.PIPE, text=True) as up:
            assert up.stdout is not None
            assert (
                next(up.stdout)
                == f"ready: this machine works for {url}; {url.removesuffix('/api')} shows runs and schedules\n"
            )
            try:
                found = json.loads(call(*RULKA, "status", "--json").stdout)
                assert found["server"]["url"] == url
                planned = wait_for(
                    lambda: json.loads(call(*RULKA, "status", "--json").stdout)["next"], "what the server plans"
                )
                assert [row["deployment"] for row in planned] == ["nightly-evaluation"]
                assert call(*RULKA, "down").returncode == 0
                assert up.wait(timeout=PATIENCE_S) == 0
            finally:
                up.terminate()
        assert is_ready(url), "that server is not ours to end"


@pytest.mark.slow
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_taken_port_is_named(toy_project: Path, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        server = socket.create_server((host.strip("[]"), 0), family=family)
    except OSError as error:
        pytest.skip(f"this machine has no {host}: {error}")
    with server:
        port = server.getsockname()[1]
        monkeypatch.setenv("PREFECT_API_URL", f"http://{host}:{port}/api")
        answer = call(*RULKA, "up")
    assert answer.returncode == 1
    taken = f"error: port {port} of this machine is taken by a program that is no Prefect server\n"
    assert answer.stderr.startswith(taken)
    assert "PREFECT_API_URL=" in answer.stderr


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
