"""Calls DVC: reproduces one stage, and lists the changed stages."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path

from flows.process import CommandError, child_environment, run_in_group
from rulka.machine.errors import UserError
from rulka.stages.folders import RECORDINGS
from rulka.stages.graph import cache_folder, check_names, is_cached, read_graph, read_lock

DVC = [sys.executable, "-m", "dvc", "--wait-for-lock"]
BLOCKED = "it is being blocked by:"
"""DVC's message if another DVC runs a stage; `--wait-for-lock` does not wait for that."""
RUNNING = "Running stage '{}':"
"""DVC's line at the start of a stage; takes the stage's name."""
ASK_AGAIN_S = 5.0


class DvcError(UserError):
    """DVC failed, or its output cannot be interpreted."""


class Outcome(StrEnum):
    """Result of one stage, as reported by DVC."""

    RAN = "ran"
    RESTORED = "taken from DVC's cache"
    FROZEN = "frozen, kept as it is"
    UNCHANGED = "nothing had changed"


def reproduce_stage(stage: str, *, force: bool, say: Callable[[str], None], timeout_s: float) -> Outcome:
    """Brings one stage up to date with the files on disk; waits while another DVC process runs a stage.

    Args:
        stage: name of the stage in `dvc.yaml`.
        force: run it even if nothing has changed; a frozen stage is never run.
        say: receives each line that DVC and the stage write.
        timeout_s: timeout of the stage in seconds, not counting the wait.

    Raises:
        CommandError: if the stage fails or times out.
        DvcError: if DVC's output does not tell the result, or its cache does not hold the stage's output.
        UserError: if a recording has a name that DVC cannot read.
    """
    check_names(RECORDINGS)
    is_frozen = read_graph()[stage].get("frozen", False)
    # On a frozen stage, `--force` runs nothing, but makes DVC record its old output as made from the current inputs.
    command = [*DVC, "repro", "--single-item", *(["--force"] if force and not is_frozen else []), stage]
    while True:
        try:
            lines = run_in_group(command, say, timeout_s)
            outcome = Outcome.FROZEN if is_frozen else _outcome(stage, lines)
            if outcome is Outcome.RAN:
                _check_stored(stage)
            return outcome
        except CommandError as error:
            if not any(BLOCKED in line for line in error.lines):
                raise
            say(f"waiting {ASK_AGAIN_S:.0f} s for the other DVC process")
            time.sleep(ASK_AGAIN_S)


def _check_stored(stage: str) -> None:
    """Checks that DVC's cache holds the outputs of a stage: where it cannot be written, `dvc repro` succeeds as well.

    Raises:
        DvcError: naming an output that it does not hold.
    """
    for out in read_graph()[stage]["outs"]:
        if not is_cached(Path(out)):
            message = f"{out} is finished, but not stored: DVC could not write it into its cache, {cache_folder()}"
            hint = f"Make room there, then `dvc commit -f {stage}`. If the stage runs before that, the output is lost."
            raise DvcError(message, hint=hint)


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
    """Returns the stages and their transitive dependencies, in `dvc.yaml` order; a frozen stage has none."""
    graph = read_graph()
    writers = {path: name for name, parts in graph.items() for path in parts["outs"]}
    found: set[str] = set()
    waiting = list(stages)
    while waiting:
        stage = waiting.pop()
        if stage not in found:
            found.add(stage)
            deps = () if graph[stage].get("frozen") else graph[stage].get("deps", ())
            waiting += [writers[path] for path in deps if path in writers]
    return [name for name in graph if name in found]


def changed_stages() -> set[str]:
    """Returns the stages that `dvc status` reports as changed.

    Raises:
        DvcError: if `dvc status` fails.
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
        read_lock()  # raises a helpful error if the lock file is damaged
        raise DvcError(f"`dvc status` failed: {(answer.stderr or answer.stdout).strip()}")
    return set(json.loads(answer.stdout)) & set(read_graph())
