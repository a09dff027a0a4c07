"""What the local stack asks of its Prefect server: is it ready, its work pool, and the runs under way."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import urlsplit

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectAlreadyExists
from prefect.settings import get_current_settings
from prefect.states import Cancelling, Crashed
from prefect.workers.process import ProcessWorker

from rulka.errors import UserError

WORK_POOL = "rulka"
ACTIVE = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)
POLL_S = 0.5
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class ServerError(UserError):
    """The Prefect server cannot be used as asked."""


def api_url() -> str:
    """Returns the address of the API: the environment's, else the one of `.env`, else the one of `prefect.toml`.

    Raises:
        ServerError: if there is none, or it is not on this machine.
    """
    url = get_current_settings().api.url
    if not url:
        message = "no PREFECT_API_URL is set; run from the root of the project, where prefect.toml lies"
        raise ServerError(message)
    if urlsplit(url).hostname not in LOOPBACK:
        message = f"PREFECT_API_URL is {url}, which is not this machine; unset it, or set it to a loopback address"
        raise ServerError(message)
    return url


def is_ready(url: str) -> bool:
    """Whether a Prefect server answers at this address of an API."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2.0) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
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
    """Ends, in the records, what no worker is busy with any more; to be called while there is no worker.

    Runs that were active have crashed: left as they are they would block the work pool for ever. Scheduled times that
    passed unseen are dropped, so that a machine does not make up for every night it was off.
    """
    with get_client(sync_client=True) as client:
        for run in _runs(client, *ACTIVE):
            client.set_flow_run_state(run.id, Crashed(message="its worker was ended"), force=True)
        now = datetime.now(UTC)
        for run in _runs(client, StateType.SCHEDULED):
            if run.auto_scheduled and run.expected_start_time and run.expected_start_time < now:
                client.delete_flow_run(run.id)


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


def _runs(client: SyncPrefectClient, *states: StateType) -> list[FlowRun]:
    """Runs of deployments in these states; a `rulka run` belongs to the terminal it was started in."""
    chosen = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(states))))
    return [run for run in client.read_flow_runs(flow_run_filter=chosen) if run.deployment_id is not None]
