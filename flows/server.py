"""What the flow and the stack ask of a Prefect server: is it ready and ours, its work pool, and the runs under way."""

from __future__ import annotations

import base64
import socket
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from http.client import HTTPException
from urllib.parse import urlsplit

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectAlreadyExists
from prefect.settings import get_current_settings
from prefect.states import Cancelled, Cancelling, Crashed
from prefect.workers.process import ProcessWorker

from flows.access import CLIENT_KEY, SERVER_KEY, password, password_of_elsewhere
from rulka.errors import UserError
from rulka.ports import LOOPBACK, check_port

WORK_POOL = "rulka"
ACTIVE = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)
POLL_S = 0.2
ANSWER_TIMEOUT_S = 5.0


class ServerError(UserError):
    """The Prefect server cannot be used as asked."""


class Occupant(StrEnum):
    """Who answers at the address of the API."""

    NOBODY = "nobody"
    OUR_SERVER = "a Prefect server that takes this project's password"
    OTHER_SERVER = "a Prefect server with another password"
    OTHER_PROGRAM = "a program that is no Prefect server"


def api_url() -> str:
    """Returns the address of the API: the environment's, else the one of `.env`, else the one of `prefect.toml`.

    Raises:
        ServerError: if there is none, or it is none that a server of Prefect can have.
    """
    url = get_current_settings().api.url
    if not url:
        message = "no PREFECT_API_URL is set; run from the root of the project, where prefect.toml lies"
        raise ServerError(message)
    parts = urlsplit(url)
    schemes = ("http", "https") if is_elsewhere(url) else ("http",)
    if not parts.hostname or parts.scheme not in schemes or parts.path != "/api":
        message = f"PREFECT_API_URL is {url}, which is not of the form http://127.0.0.1:PORT/api or https://HOST/api"
        raise ServerError(message)
    address(url)
    return url


def is_elsewhere(url: str) -> bool:
    """Whether an address of the API is that of another machine, whose server we neither start nor end."""
    return urlsplit(url).hostname not in LOOPBACK


def server_and_secret() -> tuple[str, str]:
    """Returns the address of the API and `user:password` of the server there.

    Raises:
        ServerError: if the address cannot be used, or is that of another machine and no password is set for it: this
            folder's own is sent nowhere else.
        PasswordError: if the folder's file with the password cannot be read.
    """
    url = api_url()
    if not is_elsewhere(url):
        return url, password()
    secret = password_of_elsewhere()
    if secret is None:
        message = f"the Prefect server at {url} is on another machine, and {CLIENT_KEY} is not set"
        hint = f"Set {CLIENT_KEY}=user:password here, in the environment or in .env, and {SERVER_KEY} there."
        raise ServerError(message, hint=hint)
    return url, secret


def address(url: str) -> tuple[str, int]:
    """Returns host and port of an address of the API.

    Raises:
        UserError: if there is no such port.
    """
    parts = urlsplit(url)
    try:
        port = parts.port if parts.port is not None else 443 if parts.scheme == "https" else 80
    except ValueError as error:
        message = f"PREFECT_API_URL is {url}: {error}"
        raise ServerError(message) from error
    check_port(port)
    return parts.hostname or LOOPBACK[0], port


def occupant(url: str, secret: str) -> Occupant:
    """Returns who answers at an address of the API.

    Args:
        url: the address.
        secret: `user:password` of this project's server.
    """
    if is_ready(url):
        return Occupant.OUR_SERVER if _takes(url, secret) else Occupant.OTHER_SERVER
    try:
        socket.create_connection(address(url), timeout=ANSWER_TIMEOUT_S).close()
    except OSError:
        return Occupant.NOBODY
    return Occupant.OTHER_PROGRAM


def check_is_ours(url: str, secret: str) -> None:
    """Checks that a server of another machine answers and takes our password.

    Raises:
        ServerError: if it does not.
    """
    if (found := occupant(url, secret)) is not Occupant.OUR_SERVER:
        message = f"{url}, where PREFECT_API_URL leads: {found} answers"
        raise ServerError(
            message, hint="Start it there; or unset PREFECT_API_URL to work with a server of this machine."
        )


def describe() -> tuple[str, Occupant]:
    """Returns the address of the API and who answers there.

    Raises:
        UserError: if there is no address that can be used.
    """
    url, secret = server_and_secret()
    return url, occupant(url, secret)


def is_ready(url: str) -> bool:
    """Whether a Prefect server answers at this address of an API; it asks for no password here."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=ANSWER_TIMEOUT_S) as answer:
            return answer.status == 200 and answer.read() == b"true"
    except (urllib.error.URLError, OSError, HTTPException):
        return False


def _takes(url: str, secret: str) -> bool:
    token = base64.b64encode(secret.encode()).decode()
    request = urllib.request.Request(f"{url}/admin/version", headers={"Authorization": f"Basic {token}"})
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S):
            return True
    except (urllib.error.URLError, OSError, HTTPException):
        return False


def wait_until_ready(url: str, timeout_s: float, check: Callable[[], None] = lambda: None) -> None:
    """Waits for the server to answer.

    Args:
        url: address of the API.
        timeout_s: how long to wait.
        check: called while waiting; raises when the server cannot come up any more.

    Raises:
        ServerError: if the server does not answer in time.
    """
    deadline_s = time.monotonic() + timeout_s
    while not is_ready(url):
        check()
        if time.monotonic() > deadline_s:
            message = f"the Prefect server did not answer at {url} within {timeout_s:.0f} s"
            raise ServerError(message)
        time.sleep(POLL_S)


def make_work_pool() -> None:
    """Makes the process work pool, for one run at a time: two would write the same outputs."""
    template = ProcessWorker.get_default_base_job_template()
    with get_client(sync_client=True) as client:
        try:
            client.create_work_pool(
                WorkPoolCreate(name=WORK_POOL, type="process", base_job_template=template, concurrency_limit=1)
            )
        except ObjectAlreadyExists:
            client.update_work_pool(WORK_POOL, WorkPoolUpdate(concurrency_limit=1, is_paused=False))


def close_abandoned_runs() -> None:
    """Ends, in the records, runs that no worker is busy with any more; to be called while there is no worker.

    Left as they are they would block the work pool for ever. Runs that wait for their turn are left alone.
    """
    with get_client(sync_client=True) as client:
        for run in _runs(client, *ACTIVE):
            client.set_flow_run_state(run.id, Crashed(message="its worker was ended"), force=True)


def close_missed_runs() -> int:
    """Leaves each deployment one scheduled run whose time has passed, the newest; to be called as the stack starts.

    A machine that was off for some nights races once and not once for every night. The others stay in the records as
    `Missed`.

    Returns:
        How many became `Missed`.
    """
    overdue: dict[object, list[FlowRun]] = defaultdict(list)
    with get_client(sync_client=True) as client:
        for run in _runs(client, StateType.SCHEDULED, before=datetime.now(UTC)):
            # A run that somebody asked for is wanted, however late.
            if run.auto_scheduled:
                overdue[run.deployment_id].append(run)
        missed = [run for runs in overdue.values() for run in runs[:-1]]
        for run in missed:
            state = Cancelled(
                name="Missed", message="`rulka up` did not run at its time, and a later one takes its place"
            )
            client.set_flow_run_state(run.id, state, force=True)
    return len(missed)


def cancel_active_runs(timeout_s: float) -> int:
    """Cancels the runs the worker is busy with and waits for their end; returns how many there were.

    Args:
        timeout_s: how long to wait for them to end.
    """
    with get_client(sync_client=True) as client:
        runs = _runs(client, *ACTIVE)
        for run in runs:
            client.set_flow_run_state(run.id, Cancelling(message="`rulka up` is stopping"))
        deadline_s = time.monotonic() + timeout_s
        while _runs(client, *ACTIVE) and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        return len(runs)


def _runs(client: SyncPrefectClient, *states: StateType, before: datetime | None = None) -> list[FlowRun]:
    """Runs of deployments in these states, by their time; a `rulka run` belongs to the terminal it was started in."""
    chosen = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(states))),
        deployment_id=FlowRunFilterDeploymentId(is_null_=False),
        expected_start_time=FlowRunFilterExpectedStartTime.model_validate({"before_": before}) if before else None,
    )
    return client.read_flow_runs(flow_run_filter=chosen, sort=FlowRunSort.EXPECTED_START_TIME_ASC)
