"""What is asked of DVC: to bring one stage up to date, and which stages are not."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from enum import StrEnum

from flows.process import CommandError, child_environment, run_in_group
from rulka.errors import UserError
from rulka.graph import read_graph, read_lock

DVC = [sys.executable, "-m", "dvc", "--wait-for-lock"]
BLOCKED = "it is being blocked by:"
"""What DVC says where another DVC runs a stage: for that it does not wait."""
RUNNING = "Running stage '{}':"
"""What DVC says as a stage begins, with its name."""
ASK_AGAIN_S = 5.0


class DvcError(UserError):
    """DVC cannot do what was asked."""


class Outcome(StrEnum):
    """What came of one stage, in DVC's own account."""

    RAN = "ran"
    RESTORED = "taken from DVC's cache"
    UNCHANGED = "nothing had changed"


def reproduce_stage(stage: str, *, force: bool, say: Callable[[str], None], timeout_s: float) -> Outcome:
    """Brings one stage up to date with what is on the disk now; waits while another DVC process runs a stage.

    Args:
        stage: name of the stage in `dvc.yaml`.
        force: run it even if nothing has changed.
        say: gets each line that DVC and the stage write.
        timeout_s: seconds after which the stage is ended; waiting does not count.

    Raises:
        CommandError: if the stage fails or takes too long.
        DvcError: if DVC did not say what it did.
    """
    command = [*DVC, "repro", "--single-item", *(["--force"] if force else []), stage]
    while True:
        try:
            return _outcome(stage, run_in_group(command, say, timeout_s))
        except CommandError as error:
            if not any(BLOCKED in line for line in error.lines):
                raise
            say(f"waiting {ASK_AGAIN_S:.0f} s for the other DVC process")
            time.sleep(ASK_AGAIN_S)


def _outcome(stage: str, lines: list[str]) -> Outcome:
    said = {
        RUNNING.format(stage): Outcome.RAN,
        f"Stage '{stage}' is cached - skipping run, checking out outputs": Outcome.RESTORED,
        f"Stage '{stage}' didn't change, skipping": Outcome.UNCHANGED,
    }
    for line in lines:
        if line in said:
            return said[line]
    message = f"DVC ended without saying whether {stage} ran"
    raise DvcError(message, hint=f"Look at its output above, and at `dvc status {stage}`.")


def with_upstream(stages: Iterable[str]) -> list[str]:
    """Returns the stages and all whose outputs reach them, in the order of `dvc.yaml`."""
    graph = read_graph()
    writers = {path: name for name, parts in graph.items() for path in parts["outs"]}
    found: set[str] = set()
    waiting = list(stages)
    while waiting:
        stage = waiting.pop()
        if stage not in found:
            found.add(stage)
            waiting += [writers[path] for path in graph[stage].get("deps", ()) if path in writers]
    return [name for name in graph if name in found]


def changed_stages() -> set[str]:
    """Returns the stages for which something has changed since they ran.

    Raises:
        DvcError: if DVC cannot say.
    """
    answer = subprocess.run(
        [*DVC, "status", "--json"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env=child_environment(),
    )
    if answer.returncode != 0:
        read_lock()  # where that is damaged, its error says what to do
        message = f"`dvc status` failed: {(answer.stderr or answer.stdout).strip()}"
        raise DvcError(message)
    return set(json.loads(answer.stdout)) & set(read_graph())
