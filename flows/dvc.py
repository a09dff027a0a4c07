"""What is asked of DVC: to bring one stage up to date, and which stages are not."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any

from flows.process import CommandError, child_environment, run_in_group
from rulka.errors import UserError
from rulka.folders import RECORDINGS
from rulka.graph import check_names, read_graph, read_lock

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
    FROZEN = "frozen, kept as it is"
    UNCHANGED = "nothing had changed"


def reproduce_stage(stage: str, *, force: bool, say: Callable[[str], None], timeout_s: float) -> Outcome:
    """Brings one stage up to date with what is on the disk now; waits while another DVC process runs a stage.

    Args:
        stage: name of the stage in `dvc.yaml`.
        force: run it even if nothing has changed; a frozen one is not run all the same.
        say: gets each line that DVC and the stage write.
        timeout_s: seconds after which the stage is ended; waiting does not count.

    Raises:
        CommandError: if the stage fails or takes too long.
        DvcError: if DVC did not say what it did.
        UserError: if a recording has a name that DVC cannot read.
    """
    check_names(RECORDINGS)
    is_frozen = _is_frozen(read_graph()[stage])
    # Of a frozen stage, `--force` runs nothing, and has DVC record its old output as made from the inputs of today.
    command = [*DVC, "repro", "--single-item", *(["--force"] if force and not is_frozen else []), stage]
    while True:
        try:
            lines = run_in_group(command, say, timeout_s)
            return Outcome.FROZEN if is_frozen else _outcome(stage, lines)
        except CommandError as error:
            if not any(BLOCKED in line for line in error.lines):
                raise
            say(f"waiting {ASK_AGAIN_S:.0f} s for the other DVC process")
            time.sleep(ASK_AGAIN_S)


def _is_frozen(entry: Mapping[str, Any]) -> bool:
    return bool(entry.get("frozen"))


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
    """Returns the stages and all whose outputs reach them, in the order of `dvc.yaml`; nothing feeds a frozen one."""
    graph = read_graph()
    writers = {path: name for name, parts in graph.items() for path in parts["outs"]}
    found: set[str] = set()
    waiting = list(stages)
    while waiting:
        stage = waiting.pop()
        if stage not in found:
            found.add(stage)
            deps = () if _is_frozen(graph[stage]) else graph[stage].get("deps", ())
            waiting += [writers[path] for path in deps if path in writers]
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
