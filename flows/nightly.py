"""Flow of the nightly evaluation: `rulka night` for the scheduled date.

It is not a stage and leaves outputs of stages unchanged. See `rulka.operations.nights` for the races and records.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID
from zoneinfo import ZoneInfo

from prefect import flow, get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled, Completed, Failed
from pydantic import Field

from flows.pipeline import HOUR_S, Hours
from flows.process import CommandError, error_lines, run_in_group
from flows.shown import show_link, show_rows
from rulka.machine.errors import UserError
from rulka.stages.folders import NIGHTS

LATE, MISSED = timedelta(minutes=30), timedelta(days=1)
"""Delays after which a night reports being late, and after which it is skipped in favour of the next one."""


def planned_at() -> datetime:
    """Returns the scheduled start of this run, in its schedule's time zone."""
    zone = "UTC"
    if deployment.id is not None:
        with get_client(sync_client=True) as client:
            schedules = client.read_deployment(UUID(deployment.id)).schedules
            planned_by = client.read_flow_run(UUID(flow_run.id)).idempotency_key or ""  # contains the schedule's id
        schedules.sort(key=lambda each: str(each.id) not in planned_by)
        zone = next((found for each in schedules if (found := getattr(each.schedule, "timezone", None))), zone)
    return flow_run.scheduled_start_time.astimezone(ZoneInfo(zone))


def _name_of_run() -> str:
    return f"night of {planned_at().date()}: {(flow_run.name or '').rpartition(': ')[2]}"


@flow(name="rulka", flow_run_name=_name_of_run)
def nightly(
    tracks: tuple[str, ...] = ("main", "campaign", "held-out"),
    races: Annotated[int, Field(ge=10, le=10_000)] | None = None,
    timeout_h: Hours = 4.0,
) -> State:
    """Races the promoted and the latest agent from starts seeded by the date; promotes the latest if it wins.

    If the machine was off for several nights, only the last night is caught up.

    Args:
        tracks: slugs, uids or files, "main" for the main track of data/races, "campaign" for all its tracks, "held-out"
            for four generated ones that are never trained on.
        races: races of each agent on each track, 10 to 10,000; None takes evaluate.num_races.
        timeout_h: timeout of the races in hours.
    """
    log = get_run_logger()
    planned = planned_at()
    late, meant = datetime.now(UTC) - planned, f"{planned:%Y-%m-%d %H:%M %Z}"
    context = FlowRunContext.get()
    if late >= MISSED and context and context.flow_run and context.flow_run.auto_scheduled:
        return Cancelled(name="Missed", message=f"planned for {meant}; a later night takes its place")
    command = [sys.executable, "-m", "rulka.cli", "night", "--json", "--date", planned.date().isoformat()]
    command += ["--tracks", *tracks, *([] if races is None else ["--races", str(races)])]
    try:
        found = result_of(run_in_group(command, log.info, timeout_h * HOUR_S))
    except CommandError as error:
        return Failed(message="\n".join([f"the nightly evaluation failed: {error}", *error_lines(error.lines)]))
    except UserError as error:
        return Failed(message=f"the nightly evaluation failed: {error.for_people()}")
    show_rows(found["rows"], "nightly-evaluation", f"{Path(NIGHTS)}/history.csv", log.warning)
    show_link("nights", "nights", "All nights, one after another", log.warning)
    said = [found["text"], *([f"late: planned for {meant}"] if late >= LATE else [])]
    return Completed(name="Worse" if found["worse"] else None, message="\n".join(said))


def result_of(lines: list[str]) -> dict[str, Any]:
    """Parses the JSON result among the output lines of `rulka night --json`.

    Raises:
        UserError: if there is none.
    """
    for line in reversed(lines):
        if line.startswith("{"):
            return json.loads(line)
    raise UserError("`rulka night` ended without a result")
