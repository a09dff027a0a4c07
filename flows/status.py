"""`rulka status`: who works in this folder, what the deployments do and did last, and what comes next."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort

from flows.access import client_settings
from flows.server import ACTIVE, Occupant, occupant, server_and_secret
from flows.turns import holder_of

ENDED = (StateType.COMPLETED, StateType.FAILED, StateType.CANCELLED, StateType.CRASHED)
Row = dict[str, str | None]


def status() -> dict[str, Any]:
    """Returns what can be known of this folder.

    Returns:
        `up` and `pipeline`, who has these turns (see `flows.turns`), or None; `server`, its address and who answers
        there; and, of a server of ours, rows with `deployment`, `run`, `state`, `at` (ISO, local time) and `message`:
        `running` for runs under way, `next` and `last` with one for each deployment, as far as there is one.

    Raises:
        UserError: if the address of the server cannot be used.
    """
    url, secret = server_and_secret()
    answering = occupant(url, secret)
    turns = {turn: None if (holder := holder_of(turn)) is None else holder._asdict() for turn in ("up", "pipeline")}
    runs: dict[str, list[Row]] = {"running": [], "next": [], "last": []}
    if answering is Occupant.OUR_SERVER:
        with client_settings(secret, url), get_client(sync_client=True) as client:
            runs = _runs(client)
    return {**turns, "server": {"url": url, "is": str(answering)}, **runs}


def status_text(found: dict[str, Any]) -> str:
    """Returns the same for people."""
    up, pipeline = found["up"], found["pipeline"]
    lines = [
        f"up: {'no; `rulka up` starts server and worker' if up is None else _held(up)}",
        f"at work: {'nothing' if pipeline is None else _held(pipeline)}",
        f"server: {found['server']['url']}: {found['server']['is']}",
    ]
    for key in ("running", "next", "last"):
        lines += [f"{key}: {_row_text(row)}" for row in found[key]]
    return "\n".join(lines)


def _held(holder: dict[str, Any]) -> str:
    return f"{holder['what']} (process {holder['pid']}, since {holder['since']})"


def _row_text(row: Row) -> str:
    message = "".join(f"\n    {line}" for line in (row["message"] or "").splitlines())
    return f"{row['deployment']}, {row['state']}, {row['at']}, run {row['run']}{message}"


def _runs(client: SyncPrefectClient) -> dict[str, list[Row]]:
    names = {each.id: each.name for each in client.read_deployments()}
    found = {
        key: [_row(run, names) for run in _read(client, states, order)]
        for key, states, order in (
            ("running", ACTIVE, FlowRunSort.EXPECTED_START_TIME_ASC),
            ("next", (StateType.SCHEDULED,), FlowRunSort.EXPECTED_START_TIME_ASC),
            ("last", ENDED, FlowRunSort.EXPECTED_START_TIME_DESC),
        )
    }
    return {"running": found["running"], "next": _first_of_each(found["next"]), "last": _first_of_each(found["last"])}


def _read(client: SyncPrefectClient, states: Iterable[StateType], order: FlowRunSort) -> list[FlowRun]:
    chosen = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(states))),
        deployment_id=FlowRunFilterDeploymentId(is_null_=False),
    )
    return client.read_flow_runs(flow_run_filter=chosen, sort=order)


def _row(run: FlowRun, names: dict[UUID, str]) -> Row:
    at = (run.end_time if run.state_type in ENDED else None) or run.start_time or run.expected_start_time
    state = run.state
    return {
        "deployment": None if run.deployment_id is None else names.get(run.deployment_id),
        "run": run.name,
        "state": None if state is None else state.name,
        "at": None if at is None else _local(at),
        "message": None if state is None else state.message,
    }


def _local(at: datetime) -> str:
    return at.astimezone().isoformat(timespec="seconds")


def _first_of_each(rows: list[Row]) -> list[Row]:
    first: dict[str | None, Row] = {}
    for row in rows:
        first.setdefault(row["deployment"], row)
    return list(first.values())
