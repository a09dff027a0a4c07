"""`rulka up`: Prefect server, process work pool, worker and deployments on this machine, together and supervised."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from flows.access import CLIENT_KEY, PROFILES_FILE, SERVER_KEY, client_settings
from flows.process import CommandError, child_environment, run_in_group
from flows.project import HOME
from flows.server import (
    WORK_POOL,
    Occupant,
    ServerError,
    address,
    cancel_active_runs,
    check_is_ours,
    close_abandoned_runs,
    close_missed_runs,
    is_elsewhere,
    is_ready,
    make_work_pool,
    occupant,
    server_and_secret,
    wait_until_ready,
)
from flows.supervisor import Part, Supervisor
from flows.turns import TakenError, held, holder_of
from rulka.ports import LOOPBACK
from rulka.stage import interrupt_on_signals

READY_TIMEOUT_S = 180.0
DEPLOY_TIMEOUT_S = 180.0
CANCEL_TIMEOUT_S = 40.0
CHECK_PERIOD_S = 1.0
DOWN_TIMEOUT_S = 180.0
"""How long cancelled runs, worker and server may take to end."""
PREFECT = [sys.executable, "-m", "prefect"]
SERVER_LOG = HOME / "server.log"
DEPLOYMENTS = Path("prefect.yaml")


def up(say: Callable[[str], None]) -> None:
    """Runs the stack until Ctrl-C, SIGTERM or `down`, then stops active runs, worker and server, in this order.

    Where it is up already, that is said, and nothing is done. Where PREFECT_API_URL leads to another machine, the stack
    is the worker alone, for the server there.

    Args:
        say: gets each line for people.

    Raises:
        UserError: if the stack cannot start or does not stay up.
    """
    interrupt_on_signals()
    url, secret = server_and_secret()
    try:
        with held("up", f"`rulka up` at {url}"):
            _run_stack(url, secret, say)
    except TakenError as taken:
        say(f"it is up: {taken.holder}; `rulka status` says what runs, `rulka down` stops it")


def down(say: Callable[[str], None]) -> None:
    """Stops the `rulka up` of this folder, wherever it was started, and waits for its end.

    Args:
        say: gets each line for people.

    Raises:
        ServerError: if it does not end.
    """
    holder = holder_of("up")
    while holder is not None and not holder.pid:  # it has just come, or is about to go
        time.sleep(CHECK_PERIOD_S)
        holder = holder_of("up")
    if holder is None:
        say("`rulka up` does not run here")
        return
    with suppress(ProcessLookupError):
        os.kill(holder.pid, signal.SIGINT)
    say(f"stopping {holder}: active runs are cancelled and save their work")
    deadline_s = time.monotonic() + DOWN_TIMEOUT_S
    while holder_of("up") == holder:
        if time.monotonic() > deadline_s:
            message = f"{holder} did not end within {DOWN_TIMEOUT_S:.0f} s"
            raise ServerError(message, hint=f"Look at {SERVER_LOG}; `kill -9 {holder.pid}` ends it without cancelling.")
        time.sleep(CHECK_PERIOD_S)
    say("stopped")


def _run_stack(url: str, secret: str, say: Callable[[str], None]) -> None:
    if is_elsewhere(url):
        check_is_ours(url, secret)
    else:
        _check_port_is_free(url, secret)
    environment = stack_environment(url, secret)
    with (
        suppress(KeyboardInterrupt),
        client_settings(secret, url),
        Supervisor(say) as supervisor,
    ):
        if not is_elsewhere(url):
            say(f"starting the Prefect server at {url}")
            supervisor.start(server_part(url, environment, SERVER_LOG))
            wait_until_ready(url, READY_TIMEOUT_S, supervisor.check)
        make_work_pool()
        close_abandoned_runs()
        if num_missed := close_missed_runs():
            say(f"{num_missed} scheduled run{'s' if num_missed > 1 else ''} whose time had passed: now `Missed`")
        deployed = DEPLOYMENTS.read_bytes()
        _deploy(environment, say)
        try:
            supervisor.start(_worker(url, environment))
            _announce(url, say)
            _watch(supervisor, deployed, lambda: _deploy(environment, say), say)
        finally:
            _cancel(url, say)
    say("stopped")


def stack_environment(url: str, secret: str) -> dict[str, str]:
    """Returns the environment of Prefect's processes: what must also hold where they do not run in this folder.

    Args:
        url: address of the API.
        secret: `user:password` of the server.
    """
    return {
        # How often the worker asks for runs: Prefect's 10 s would be most of the time that an idle pipeline takes.
        "PREFECT_WORKER_QUERY_SECONDS": "3",
        **child_environment(),
        "PREFECT_HOME": str(HOME.resolve()),
        "PREFECT_API_URL": url,
        CLIENT_KEY: secret,
        "PREFECT_RUNNER_AUTO_INSTALL_DEPENDENCIES": "false",
        "DO_NOT_TRACK": "1",
    }


def server_part(url: str, environment: Mapping[str, str], log_file: Path, *options: str) -> Part:
    """Returns a Prefect server that serves our own page and programs with the password, and nobody else.

    Args:
        url: address of its API.
        environment: as from `stack_environment`.
        log_file: where its output goes.
        *options: further ones of `prefect server start`.
    """
    host, port = address(url)
    origins = [f"http://{f'[{name}]' if ':' in name else name}:{port}" for name in LOOPBACK]
    closed = {
        SERVER_KEY: environment[CLIENT_KEY],
        "PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": ",".join(origins),
    }
    command = [*PREFECT, "server", "start", "--host", host, "--port", str(port), *options]
    return Part("server", command, {**environment, **closed}, log_file=log_file, answers=lambda: is_ready(url))


def _check_port_is_free(url: str, secret: str) -> None:
    found = occupant(url, secret)
    if found is Occupant.NOBODY:
        return
    hint = "a port is chosen with PREFECT_API_URL=http://127.0.0.1:PORT/api in .env"
    if found is Occupant.OUR_SERVER:
        message = f"a Prefect server already answers at {url}: use it, or stop it, or choose another port"
    else:
        message = f"port {address(url)[1]} of this machine is taken by {found}"
    raise ServerError(message, hint=hint)


def _deploy(environment: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Makes the deployments of `prefect.yaml`; what Prefect says of it is shown where it fails."""
    try:
        run_in_group(
            [*PREFECT, "--no-prompt", "deploy", "--all"], lambda _: None, DEPLOY_TIMEOUT_S, environment=environment
        )
    except CommandError as error:
        for line in error.lines:
            say(line)
        raise


def _worker(url: str, environment: Mapping[str, str]) -> Part:
    def close_runs() -> None:
        wait_until_ready(url, READY_TIMEOUT_S)
        close_abandoned_runs()

    command = [*PREFECT, "worker", "start", "--pool", WORK_POOL, "--type", "process"]
    return Part("worker", command, environment, on_death=close_runs)


def _announce(url: str, say: Callable[[str], None]) -> None:
    program = Path(sys.executable).with_name("prefect")
    shown = Path(os.path.relpath(program)) if program.is_relative_to(Path.cwd()) else program
    if is_elsewhere(url):
        say(f"ready: this machine works for {url}; {url.removesuffix('/api')} shows runs and schedules")
    else:
        say(f"ready: {url.removesuffix('/api')} shows runs and schedules; server log in {SERVER_LOG}")
        say(f"the page asks for a password: it is {CLIENT_KEY} in {PROFILES_FILE}")
    say(f"run the pipeline from another terminal: {shown} deployment run rulka/full-pipeline --watch")
    if not is_elsewhere(url):
        profiles = PROFILES_FILE.resolve()
        say(f"(outside this folder, first: export PREFECT_API_URL={url} PREFECT_PROFILES_PATH={profiles})")
    say("Ctrl-C stops everything, and so does `rulka down` from another terminal; `rulka status` says what runs")


def _watch(supervisor: Supervisor, deployed: bytes, deploy: Callable[[], None], say: Callable[[str], None]) -> NoReturn:
    """Looks after server and worker without an end, and makes the deployments again when their file changes.

    Args:
        supervisor: of both.
        deployed: the file of deployments as they were made.
        deploy: makes them as the file says now; raises CommandError where it cannot be used.
        say: gets each line for people.
    """
    while True:
        supervisor.check()
        with suppress(FileNotFoundError):  # an editor may be replacing it
            found = DEPLOYMENTS.read_bytes()
            if found != deployed:
                deployed = found
                try:
                    deploy()
                    say(f"{DEPLOYMENTS} has changed: deployments and schedules are as it says now")
                except CommandError as error:
                    say(f"{DEPLOYMENTS} has changed and cannot be used; what was planned before stays: {error}")
        time.sleep(CHECK_PERIOD_S)


def _cancel(url: str, say: Callable[[str], None]) -> None:
    """Ends active runs while the worker, which has to do it, still lives."""
    if not is_ready(url):
        say("the server does not answer any more, so its active runs could not be cancelled")
        return
    num_runs = cancel_active_runs(CANCEL_TIMEOUT_S)
    if num_runs:
        say(f"cancelled {num_runs} active run{'s' if num_runs > 1 else ''}")
