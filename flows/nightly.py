"""The nightly evaluation: the trained agent races from starts that it has not raced from before.

It is no stage: nothing in `data/` and nothing in DVC's cache changes. What came of it stands in the state of the flow's
run, and as one line in `runs/nightly.jsonl`.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows.pipeline import HOUR_S, name_of_this_run
from flows.process import CommandError, run_in_group
from flows.turns import our_turn
from rulka.errors import UserError

RECORD_FILE = Path("runs/nightly.jsonl")
"""One line for each evaluation: night, seed, raced_at, agent, and the measures of `rulka evaluate --json`."""

FIRST_NIGHT = date(2020, 1, 1)
SEEDS_A_NIGHT = 10_000
"""As many as `evaluate.num_races` may be: race k starts from seed + k, and two nights shall share no start."""


@flow(name="rulka")
def nightly(agent: str = "data/agent", timeout_h: float = 4.0) -> State:
    """Lets the trained agent race, from starts that the date decides.

    Args:
        agent: folder of the agent's weights.
        timeout_h: hours after which the races are ended; waiting for another run does not count.
    """
    log = get_run_logger()
    # The night it was meant for, even where it runs late.
    night = (flow_run.scheduled_start_time or datetime.now(UTC)).date()
    command = [sys.executable, "-m", "rulka.cli", "evaluate", "--json"]
    command += ["--agent", agent, "--seed", str(seed_of(night))]
    try:
        with our_turn(name_of_this_run(), log.info):
            lines = run_in_group(command, log.info, timeout_h * HOUR_S)
        raced = result_of(lines)
    except CommandError as error:
        reasons = [line for line in error.lines if line.startswith("error: ")]
        return Failed(message="\n".join([f"{agent} did not race: {error}", *reasons]))
    except UserError as error:
        return Failed(message=f"{agent} did not race: {error.for_people()}")
    _record({"night": night.isoformat(), "seed": seed_of(night), "agent": agent, **raced})
    return Completed(message=_text(agent, raced, seed_of(night)))


def seed_of(night: date) -> int:
    """Returns the seed of a night's races: another for each night, and the same whenever that night is repeated."""
    return (night - FIRST_NIGHT).days * SEEDS_A_NIGHT


def result_of(lines: list[str]) -> dict[str, Any]:
    """Returns the measures of the agent among the lines that `rulka evaluate --json` wrote.

    Raises:
        UserError: if there are none.
    """
    for line in reversed(lines):
        if line.startswith("{"):
            return json.loads(line)["agent"]
    message = "`rulka evaluate` ended without a result"
    raise UserError(message)


def _text(agent: str, raced: dict[str, Any], seed: int) -> str:
    median_s = raced["median_time_s"]
    times = "" if median_s is None else f", median {median_s:.2f} s, best {raced['best_time_s']:.2f} s"
    return (
        f"{agent} raced {raced['races']} times from seed {seed}: {raced['finished']} finished{times}, "
        f"{raced['mean_progress_m']:.0f} m on average"
    )


def _record(line: dict[str, Any]) -> None:
    RECORD_FILE.parent.mkdir(exist_ok=True)
    raced_at = datetime.now(UTC).isoformat(timespec="seconds")
    with RECORD_FILE.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**line, "raced_at": raced_at}) + "\n")
