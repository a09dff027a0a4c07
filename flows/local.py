"""`rulka run`: the flow in this process, with the server of `rulka up` where it runs, else with one of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from prefect.logging.handlers import APILogHandler

from flows.access import client_settings
from flows.dvc import out_of_date, stale_upstream, upstream
from flows.pipeline import Stage, chosen_stages, pipeline
from flows.process import CommandError
from flows.project import HOME
from flows.server import (
    Occupant,
    ServerError,
    check_is_ours,
    is_elsewhere,
    occupant,
    server_and_secret,
    wait_until_ready,
)
from flows.stack import READY_TIMEOUT_S, server_part, stack_environment
from flows.supervisor import Supervisor
from rulka.params import read_params
from rulka.ports import LOOPBACK, reserved_port
from rulka.stage import interrupt_on_signals

SERVER_LOG = HOME / "server-of-run.log"
FEW_SERVICES = ("--no-scheduler", "--no-late-runs")
"""A server that lives as long as one run shows that run, and plans no others."""


def run(stages: Sequence[str] | None, force: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Runs the flow to its end.

    Args:
        stages: names of the stages to run; all when None.
        force: run them even if nothing they read has changed.
        say: gets each line for people.

    Returns:
        `stages`, what came of each that was asked for (`flows.dvc.Outcome`), and `stale_upstream` as of `preview`.

    Raises:
        UserError: if a name is no stage, or a stage failed.
    """
    interrupt_on_signals()
    chosen = chosen_stages(stages)
    with _server(say):
        try:
            named = None if stages is None else cast(list[Stage], chosen)
            state = pipeline(stages=named, force=force, return_state=True)
        finally:
            # What the run logged is sent in the background; the server is there for no longer than this block.
            APILogHandler().flush()
    if not state.is_completed():
        raise CommandError(state.message or f"the flow ended as {state.name}")
    say(state.message or "")
    return cast(dict[str, Any], state.result())


def preview(stages: Sequence[str] | None, force: bool) -> dict[str, list[str]]:
    """Returns what `run` would do, and does none of it.

    Args:
        stages: as for `run`.
        force: as for `run`.

    Returns:
        Names of stages in the order of `dvc.yaml`: `runs`, those that something has changed for; `may_follow`, those
        that run if what such a one makes differs from what is there; `unchanged`, all others of the chosen; and
        `stale_upstream`, stages that are not chosen, feed them, and are out of date.

    Raises:
        UserError: if a name is no stage, a parameter cannot be what it is, or DVC cannot say what has changed.
    """
    chosen = chosen_stages(stages)
    read_params()
    runs = chosen if force else out_of_date(chosen)
    may_follow = [stage for stage in chosen if stage not in runs and set(upstream([stage])) & set(runs)]
    unchanged = [stage for stage in chosen if stage not in (*runs, *may_follow)]
    return {"runs": runs, "may_follow": may_follow, "unchanged": unchanged, "stale_upstream": stale_upstream(chosen)}


def preview_text(found: dict[str, list[str]]) -> str:
    """Returns the same for people."""
    lines = {
        "would run": found["runs"],
        "may follow, if what they read differs by then": found["may_follow"],
        "nothing has changed": found["unchanged"],
        "not asked for, though out of date": found["stale_upstream"],
    }
    return "\n".join(f"{what}: {', '.join(stages)}" for what, stages in lines.items() if stages)


@contextmanager
def _server(say: Callable[[str], None]) -> Iterator[None]:
    """Has a server for the block: the running one, or one that ends with it.

    Prefect would start one in this terminal's process group: Ctrl-C would end it before the run could report to it, and
    a kill would leave it behind. Ours has a group of its own and ends with this process.
    """
    url, secret = server_and_secret()
    if is_elsewhere(url):
        check_is_ours(url, secret)
    if is_elsewhere(url) or occupant(url, secret) is Occupant.OUR_SERVER:
        with client_settings(secret, url):
            yield
        return
    say(f"`rulka up` does not run here: starting a Prefect server for this run alone; its log is {SERVER_LOG}")
    with reserved_port() as port, Supervisor(lambda _: None) as supervisor:
        url = f"http://{LOOPBACK[0]}:{port}/api"
        part = server_part(url, stack_environment(url, secret), SERVER_LOG, *FEW_SERVICES)

        def check() -> None:
            if part.exit_code is not None:
                message = f"the Prefect server ended with exit code {part.exit_code} as it started"
                raise ServerError(message, hint=f"Look at {SERVER_LOG}.")

        supervisor.start(part)
        wait_until_ready(url, READY_TIMEOUT_S, check)
        with client_settings(secret, url):
            yield
