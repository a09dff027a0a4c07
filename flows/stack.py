"""`rulka up`: Prefect server, process work pool, worker and deployments on this machine, together and supervised."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from flows.process import child_environment, run_in_group
from flows.server import (
    WORK_POOL,
    ServerError,
    api_url,
    cancel_active_runs,
    close_abandoned_runs,
    is_ready,
    make_work_pool,
    wait_until_ready,
)
from flows.supervisor import Part, Supervisor
from rulka.stage import interrupt_on_signals

HOME = Path(".prefect")
READY_TIMEOUT_S = 180.0
DEPLOY_TIMEOUT_S = 180.0
CANCEL_TIMEOUT_S = 40.0
CHECK_PERIOD_S = 1.0
PREFECT = [sys.executable, "-m", "prefect"]


def up(say: Callable[[str], None]) -> None:
    """Runs the stack until Ctrl-C or SIGTERM, then stops active runs, worker and server, in this order.

    Args:
        say: gets each line for people.

    Raises:
        UserError: if the stack cannot start or does not stay up.
    """
    interrupt_on_signals()
    url = api_url()
    _check_port_is_free(url)
    environment = _environment(url)
    with suppress(KeyboardInterrupt), Supervisor(say) as supervisor:
        say(f"starting the Prefect server at {url}")
        supervisor.start(_server(url, environment))
        wait_until_ready(url, READY_TIMEOUT_S, supervisor.check)
        make_work_pool()
        close_abandoned_runs()
        run_in_group([*PREFECT, "--no-prompt", "deploy", "--all"], lambda _: None, DEPLOY_TIMEOUT_S)
        try:
            supervisor.start(_worker(url, environment))
            _announce(url, say)
            _watch(supervisor)
        finally:
            _cancel(url, say)
    say("stopped")


def _check_port_is_free(url: str) -> None:
    host, port = _address(url)
    if is_ready(url):
        message = f"a Prefect server already answers at {url}: use it, or stop it, or choose another port"
        raise ServerError(message, hint="a port is chosen with PREFECT_API_URL=http://127.0.0.1:PORT/api in .env")
    with socket.socket() as probe:
        if probe.connect_ex((host, port)) == 0:
            message = f"port {port} of this machine is taken by another program"
            raise ServerError(message, hint="choose another with PREFECT_API_URL=http://127.0.0.1:PORT/api in .env")


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "127.0.0.1", parts.port or 80


def _environment(url: str) -> dict[str, str]:
    """Settings that must also hold where Prefect's processes do not run in this folder."""
    return {
        **child_environment(),
        "PREFECT_HOME": str(HOME.resolve()),
        "PREFECT_API_URL": url,
        "PREFECT_RUNNER_AUTO_INSTALL_DEPENDENCIES": "false",
        "DO_NOT_TRACK": "1",
    }


def _server(url: str, environment: dict[str, str]) -> Part:
    host, port = _address(url)
    command = [*PREFECT, "server", "start", "--host", host, "--port", str(port)]
    return Part("server", command, environment, log_file=HOME / "server.log")


def _worker(url: str, environment: dict[str, str]) -> Part:
    def close_runs() -> None:
        wait_until_ready(url, READY_TIMEOUT_S)
        close_abandoned_runs()

    command = [*PREFECT, "worker", "start", "--pool", WORK_POOL, "--type", "process"]
    return Part("worker", command, environment, on_death=close_runs)


def _announce(url: str, say: Callable[[str], None]) -> None:
    program = Path(sys.executable).with_name("prefect")
    shown = Path(os.path.relpath(program)) if program.is_relative_to(Path.cwd()) else program
    say(f"ready: {url.removesuffix('/api')} shows runs and schedules; server log in {HOME / 'server.log'}")
    say(f"run the pipeline from another terminal: {shown} deployment run rulka/full-pipeline --watch")
    say(f"(outside this folder, first: export PREFECT_API_URL={url})")
    say("Ctrl-C stops everything")


def _watch(supervisor: Supervisor) -> None:
    while True:
        supervisor.check()
        time.sleep(CHECK_PERIOD_S)


def _cancel(url: str, say: Callable[[str], None]) -> None:
    """Ends active runs while the worker, which has to do it, still lives."""
    if not is_ready(url):
        say("the server does not answer any more, so its active runs could not be cancelled")
        return
    num_runs = cancel_active_runs(CANCEL_TIMEOUT_S)
    if num_runs:
        say(f"cancelled {num_runs} active run{'s' if num_runs > 1 else ''}")
