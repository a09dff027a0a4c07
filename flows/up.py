"""`rulka up`: Prefect's server and a worker on this machine, with the deployments of `prefect.yaml`.

Both run until Ctrl-C, or until one of them ends. systemd or Docker restarts them, and starts them at boot:
`deploy/rulka.service`, `deploy/compose.yaml`.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun
from prefect.settings import get_current_settings, temporary_settings
from prefect.states import Cancelling, Crashed

from flows.process import SAVE_GRACE_S, CommandError, child_environment, run_in_group
from rulka.machine.errors import UserError
from rulka.machine.ports import check_port, holder
from rulka.machine.processes import descendants, end_group, start_group
from rulka.runtime.run_lock import locked
from rulka.stages.stage import interrupt_on_signals

HOME = Path(".prefect")
PROFILES_FILE = HOME / "profiles.toml"
"""Prefect profile that holds the password; `prefect.toml` points every Prefect command in this folder to it."""
CLIENT_KEY, SERVER_KEY = "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"
HOSTS = ("127.0.0.1", "localhost", "[::1]")
PREFECT = [sys.executable, "-m", "prefect"]
DEPLOY = [*PREFECT, "--no-prompt", "deploy", "--all"]
# `--limit 1`: two runs would write the same outputs. A limit on the pool would count runs that a killed worker left.
POOL = "rulka"
WORKER = ["worker", "start", "--pool", POOL, "--type", "process", "--limit", "1"]
READY_TIMEOUT_S, DEPLOY_TIMEOUT_S, CANCEL_TIMEOUT_S, POLL_S = 300.0, 180.0, 60.0, 0.5
HANG_TIMEOUT_S = 60.0  # generous: a busy machine delays an answer by seconds


def up(say: Callable[[str], None]) -> None:
    """Runs server and worker until Ctrl-C or SIGTERM, then ends both and all their descendants.

    Args:
        say: receives each line for the user.

    Raises:
        RunInUseError: if another `rulka up` starts or runs in this folder.
        UserError: if the server or the worker cannot start or exits, or the server hangs.
    """
    interrupt_on_signals()
    os.environ["no_proxy"] = "*"  # this process, Prefect's and those of the flows ask nobody but this machine
    with locked(HOME, doing="runs `rulka up`"):
        _up(say)


def _up(say: Callable[[str], None]) -> None:
    url, host, port = free_address()
    secret = password()
    client: dict[Any, Any] = {"PREFECT_API_URL": url, CLIENT_KEY: secret}
    environment = {
        **child_environment(),
        **client,
        SERVER_KEY: secret,
        # Relative: SQLAlchemy would cut the address of the server's database off at a question mark in its path.
        "PREFECT_HOME": str(HOME),
        "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": ",".join(f"http://{name}:{port}" for name in HOSTS),
        "DO_NOT_TRACK": "1",
    }
    server = _Part("server", ["server", "start", "--host", host, "--port", str(port)], environment)
    with suppress(KeyboardInterrupt), temporary_settings(client), closing(server):
        watch(url, [server], READY_TIMEOUT_S, until_ready=True)
        prepare_pool()
        try:
            run_in_group(DEPLOY, lambda _: None, DEPLOY_TIMEOUT_S, environment=environment)
        except CommandError as error:
            say("\n".join(error.lines))
            raise
        # Flow runs inherit the worker's environment and start in another folder.
        with closing(_Part("worker", WORKER, {**environment, "PREFECT_HOME": str(HOME.resolve())})) as worker:
            say(f"ready: {url.removesuffix('/api')} shows runs and schedules")
            say(f"Sign in there with PREFECT_API_AUTH_STRING of {PROFILES_FILE}.")
            say("Ctrl-C stops everything; in another terminal: prefect deployment run rulka/full-pipeline --watch")
            try:
                watch(url, [server, worker], HANG_TIMEOUT_S)
            except KeyboardInterrupt:
                cancel_runs()
    say("stopped")


class _Part:
    """A long-running Prefect command; runs until `close`."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        self._name, self._started = name, list[psutil.Process]()
        self._process = start_group([*PREFECT, *command], environment, None)

    def close(self) -> None:
        """Ends the process and its descendants."""
        end_group(self._process, 2.0 * SAVE_GRACE_S, ask=signal.SIGINT, strays=self._started)

    def check(self) -> None:
        """Raises UserError if the process has exited; remembers its descendants for `close`."""
        if self._process.poll() is not None:
            message = f"the Prefect {self._name} ended with exit code {self._process.returncode}"
            raise UserError(message, hint="Its output above says why.")
        self._started = descendants(self._process) or self._started  # a process that is just exiting has none


def free_address() -> tuple[str, str, int]:
    """Returns the URL of Prefect's API on this machine, its host and its port, after checking that the port is free.

    Raises:
        UserError: if the configured URL is not on this machine, is malformed, or its port is taken.
    """
    url = get_current_settings().api.url or ""
    found = re.fullmatch(rf"http://({'|'.join(map(re.escape, HOSTS))}):(\d+)/api", url)
    if found is None:
        message = f"PREFECT_API_URL is {url or 'not set'}, which is not of the form http://127.0.0.1:PORT/api"
        raise UserError(message, hint="For a server elsewhere see `On other machines` in docs/operations.md.")
    host, port = found[1].strip("[]"), int(found[2])
    check_port(port)
    if who := holder(host, port):
        message = f"port {port} of this machine is taken by {who}"
        hint = "`rulka up` may run already. Another port: PREFECT_API_URL=http://127.0.0.1:PORT/api in .env."
        raise UserError(message, hint=hint)
    return url, host, port


def password() -> str:
    """Returns the server's `user:password` from Prefect's settings; creates one if there is none.

    The password is needed even on loopback: any web page open in a browser here can send requests to loopback ports,
    but cannot read a file.

    Raises:
        UserError: if the profile file exists but holds no password.
    """
    if configured := get_current_settings().api.auth_string:
        return configured.get_secret_value()
    secret = f"rulka:{secrets.token_urlsafe(24)}"
    HOME.mkdir(exist_ok=True)
    try:
        PROFILES_FILE.touch(0o600, exist_ok=False)
    except FileExistsError as error:
        message = f"{PROFILES_FILE} is damaged, or its active profile has no {CLIENT_KEY}"
        raise UserError(message, hint="Remove it: a new one is made.") from error
    # Both keys: a `prefect server start` typed here must ask for the password too.
    keys = f'{CLIENT_KEY} = "{secret}"\n{SERVER_KEY} = "{secret}"\n'
    PROFILES_FILE.write_text(f'active = "rulka"\n\n[profiles.rulka]\n{keys}', encoding="utf-8")
    return secret


def watch(url: str, parts: list[_Part], timeout_s: float, *, until_ready: bool = False) -> None:
    """Monitors the processes and the server at `url`, forever or until the server is ready.

    Raises:
        UserError: if a process has exited, or the server has not answered for `timeout_s`.
    """
    answered_s = time.monotonic()
    while True:
        for part in parts:
            part.check()
        if is_ready(url):
            if until_ready:
                return
            answered_s = time.monotonic()
        elif time.monotonic() - answered_s > timeout_s:
            raise UserError(f"the Prefect server has not answered at {url} for {timeout_s:.0f} s")
        time.sleep(POLL_S)


def is_ready(url: str) -> bool:
    """True if a Prefect server answers at this API URL."""
    with suppress(httpx.HTTPError):
        return httpx.get(f"{url}/health", timeout=5.0).text == "true"
    return False


def prepare_pool() -> None:
    """Creates the work pool, unpaused, and marks runs left active by a killed `rulka up` as crashed."""
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process"), overwrite=True)
        while left := _under_way(client):  # 200 at a time
            for run in left:
                client.set_flow_run_state(run.id, Crashed(message="`rulka up` was ended"), force=True)


def cancel_runs() -> None:
    """Has the worker cancel active runs, and waits for that: a worker that exits first leaves its runs `Running`."""
    deadline_s = time.monotonic() + CANCEL_TIMEOUT_S
    with get_client(sync_client=True) as client:
        client.update_work_pool(POOL, WorkPoolUpdate(is_paused=True))  # else the worker starts the next queued run
        for run in _under_way(client):
            client.set_flow_run_state(run.id, Cancelling(message="`rulka up` is stopping"))
        while _under_way(client) and time.monotonic() < deadline_s:
            time.sleep(POLL_S)


def _under_way(client: SyncPrefectClient) -> list[FlowRun]:
    states = {"any_": ["PENDING", "RUNNING", "CANCELLING"]}
    return client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate({"state": {"type": states}}))
