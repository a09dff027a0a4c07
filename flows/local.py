"""`rulka run`: the flow in this process, with the server of `rulka up` where it runs, else with a short-lived one."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from prefect.settings import temporary_settings

from flows.pipeline import chosen_stages, pipeline
from flows.process import CommandError
from flows.server import api_url, is_ready
from rulka.stage import interrupt_on_signals


def run(stages: list[str] | None, force: bool) -> None:
    """Runs the flow to its end.

    Args:
        stages: names of the stages to run; all when None.
        force: run them even if nothing they read has changed.

    Raises:
        UserError: if a name is no stage, or a stage failed.
    """
    chosen_stages(stages)
    interrupt_on_signals()
    alone: dict[Any, Any] = {"PREFECT_API_URL": None, "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": True}
    with nullcontext() if is_ready(api_url()) else temporary_settings(alone):
        state = pipeline(stages=stages, force=force, return_state=True)
    if not state.is_completed():
        raise CommandError(state.message or f"the flow ended as {state.name}")
