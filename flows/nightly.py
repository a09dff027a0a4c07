"""The nightly evaluation as a flow: `rulka night`, which puts what it keeps under DVC, then a notification.

It is no stage: outputs of stages stay as they are. See `rulka.registry.nights` for what is raced and noted.
"""

from __future__ import annotations

import inspect
import json
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any

from prefect import flow, get_run_logger
from prefect.blocks.abstract import NotificationBlock
from prefect.blocks.core import Block
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from prefect.utilities.asyncutils import run_coro_as_sync
from pydantic import Field

from flows.dvc import wait_for_dvc
from flows.pipeline import HOUR_S, Hours, name_of_this_run
from flows.process import CommandError, run_in_group
from flows.shown import show_link, show_rows
from flows.turns import our_turn
from rulka.errors import UserError
from rulka.folders import NIGHTS


def _name_of_run() -> str:
    return f"night of {_night()}: {(flow_run.name or '').rpartition(': ')[2]}"


def _night() -> date:
    """The night it was meant for, even where it runs late."""
    return (flow_run.scheduled_start_time or datetime.now(UTC)).date()


@flow(name="rulka", flow_run_name=_name_of_run)
def nightly(
    tracks: tuple[str, ...] = ("main", "campaign", "held-out"),
    races: Annotated[int, Field(ge=1, le=10_000)] | None = None,
    notify: str | None = None,
    timeout_h: Hours = 4.0,
) -> State:
    """Lets the promoted agent and the latest race from starts that the date decides; the latest is promoted if it wins.

    Args:
        tracks: slugs, uids or files, "main" for that of data/races, "campaign" for all of it, "held-out" for
            four generated ones that nothing is trained on.
        races: of each agent on each track, 1 to 10,000; evaluate.num_races when left out.
        notify: block of Prefect that sends what came of it, such as slack-webhook/team; none where it is left out.
        timeout_h: hours after which the races are ended; waiting for another run does not count.
    """
    log = get_run_logger()
    try:
        block = None if notify is None else notification_block(notify)
    except UserError as error:
        return Failed(message=error.for_people())
    state = _raced(tracks, races, timeout_h)
    if block is not None:
        try:
            with block.raise_on_failure():
                sent = block.notify(state.message or "", subject=f"Rulka: night of {_night()}, {state.name}")
                if inspect.isawaitable(sent):  # blocks of Prefect wait by themselves here, others need not
                    run_coro_as_sync(sent)
        except Exception as error:  # of whatever service it speaks to: no reason to lose the night
            log.warning("the notification %s was not sent: %s", notify, error)
    return state


def _raced(tracks: tuple[str, ...], races: int | None, timeout_h: float) -> State:
    log = get_run_logger()
    command = [sys.executable, "-m", "rulka.cli", "night", "--json", "--date", _night().isoformat()]
    command += ["--tracks", *tracks, *([] if races is None else ["--races", str(races)])]
    try:
        with our_turn(name_of_this_run(), log.info):
            wait_for_dvc(log.info)
            found = result_of(run_in_group(command, log.info, timeout_h * HOUR_S))
    except CommandError as error:
        reasons = [line for line in error.lines if line.startswith("error: ")]
        return Failed(message="\n".join([f"the nightly evaluation failed: {error}", *reasons]))
    except UserError as error:
        return Failed(message=f"the nightly evaluation failed: {error.for_people()}")
    show_rows(found["rows"], "nightly-evaluation", f"{Path(NIGHTS)}/history.csv", log.warning)
    show_link("nights", "nights", "All nights, one after another", log.warning)
    return Completed(name="Worse" if found["worse"] else None, message=found["text"])


def result_of(lines: list[str]) -> dict[str, Any]:
    """Returns what `rulka night --json` found, among the lines that it wrote.

    Raises:
        UserError: if it is not there.
    """
    for line in reversed(lines):
        if line.startswith("{"):
            return json.loads(line)
    message = "`rulka night` ended without a result"
    raise UserError(message)


def notification_block(name: str) -> NotificationBlock:
    """Returns the block of a name, `<type>/<name>`.

    Raises:
        UserError: if there is none, or it is none that notifies.
    """
    hint = "`prefect block ls` lists them; the page Blocks of Prefect makes one, such as Slack Webhook."
    try:
        block = Block.load(name)
    except ValueError as error:
        message = f"there is no block {name!r} to notify with"
        raise UserError(message, hint=hint) from error
    if not isinstance(block, NotificationBlock):
        message = f"the block {name!r} sends no notifications"
        raise UserError(message, hint=hint)
    return block
