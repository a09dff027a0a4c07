"""What the flow asks of DVC: to bring one stage up to date, whether stages are, and who else is at work.

DVC locks its repository while it looks and the paths of a stage while that runs. It can wait for the first lock
(`--wait-for-lock`) and gives up at the second, so here is the waiting for the second.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil

from flows.process import CommandError, child_environment, run_in_group
from rulka.doctor.finding import Finding, State
from rulka.errors import UserError
from rulka.graph import read_graph, read_lock

PATHS_LOCK_FILE = Path(".dvc/tmp/rwlock")
"""Where DVC processes note the paths that they read and write."""
DVC = [sys.executable, "-m", "dvc", "--wait-for-lock"]
BLOCKED = "it is being blocked by:"
RUNNING = "Running stage '{}':"
"""What DVC says as a stage begins, with its name."""
POLL_S = 1.0


class DvcError(UserError):
    """DVC cannot do what was asked."""


class Outcome(StrEnum):
    """What came of one stage, in DVC's own account."""

    RAN = "ran"
    RESTORED = "taken from DVC's cache"
    UNCHANGED = "nothing had changed"


def reproduce_stage(stage: str, *, force: bool, say: Callable[[str], None], timeout_s: float) -> Outcome:
    """Brings one stage up to date with what lies on the disk now, whatever wrote that; waits for other DVC processes.

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
        wait_for_dvc(say)
        try:
            return _outcome(stage, run_in_group(command, say, timeout_s))
        except CommandError as error:
            # Another DVC process may have come in between.
            if not any(BLOCKED in line for line in error.lines):
                raise
            time.sleep(POLL_S)


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


def stale_upstream(stages: list[str]) -> list[str]:
    """Returns the stages, in the order of `dvc.yaml`, that are out of date, are not among `stages`, and feed them.

    Raises:
        DvcError: if DVC cannot say.
    """
    return out_of_date([stage for stage in upstream(stages) if stage not in stages])


def out_of_date(stages: list[str]) -> list[str]:
    """Returns those of some stages, in the same order, for which something has changed since they ran.

    Raises:
        DvcError: if DVC cannot say.
    """
    stale = _status(stages) if stages else {}
    return [stage for stage in stages if stage in stale]


def changes() -> dict[str, list[str]]:
    """Returns what has changed for each stage since it ran, in words; stages without changes are left out.

    Raises:
        DvcError: if DVC cannot say.
    """
    return {stage: _changes_of(found) for stage, found in _status([]).items() if stage in read_graph()}


def _changes_of(found: list[str | dict[str, dict[str, str | dict[str, str]]]]) -> list[str]:
    """Puts into words what `dvc status --json` says of one stage."""
    said = []
    for entry in found:
        if isinstance(entry, str):  # "changed command"
            said.append(entry)
            continue
        for path, state in entry.get("changed deps", {}).items():
            # Of a file of parameters, which of them; of everything else, in which way.
            said += sorted(f"{path}: {key}" for key in state) if isinstance(state, dict) else [f"{path} {state}"]
        said += [f"its output {path} {state}" for path, state in entry.get("changed outs", {}).items()]
    return said


def stages_at_work() -> dict[str, str]:
    """Returns which stages some DVC runs now, with the process that runs them.

    Raises:
        DvcError: if the lock names a process that is no DVC.
    """
    root, alive = Path.cwd(), holders()
    writing = {Path(path): entry["pid"] for path, entry in _locks().get("write", {}).items() if entry["pid"] in alive}
    return {
        stage: f"process {pid}, `{alive[pid]}`"
        for stage, parts in read_graph().items()
        for path, pid in writing.items()
        if any(path == root / out for out in parts["outs"])
    }


def _status(stages: list[str]) -> dict[str, Any]:
    answer = subprocess.run(
        [*DVC, "status", "--json", *stages],
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
    return json.loads(answer.stdout)


def upstream(stages: list[str]) -> list[str]:
    """Returns every stage whose outputs reach one of `stages`, also through others, in the order of `dvc.yaml`."""
    graph = read_graph()
    writers = {path: name for name, parts in graph.items() for path in parts["outs"]}
    found, waiting = set(), list(stages)
    while waiting:
        for path in graph[waiting.pop()].get("deps", ()):
            if path in writers and writers[path] not in found:
                found.add(writers[path])
                waiting.append(writers[path])
    return [name for name in graph if name in found]


def wait_for_dvc(say: Callable[[str], None]) -> None:
    """Waits until no other DVC process runs a stage here.

    Args:
        say: gets a line for each process that is waited for.

    Raises:
        DvcError: if the lock names a process that is no DVC; it would hold for ever.
    """
    while busy := holders():
        pid, command = busy.popitem()
        say(f"waiting for process {pid} (`{command}`), which runs a stage here")
        # Not only for the lock: it is free for a moment between two stages of one `dvc repro`.
        while is_dvc(pid):
            time.sleep(POLL_S)


def at_work() -> Finding:
    """Returns who runs a stage here, for `rulka doctor`.

    Raises:
        DvcError: if the lock names a process that is no DVC.
    """
    named = [f"process {pid} (`{command}`)" for pid, command in holders().items()]
    return Finding("dvc at work", State.OK, ", ".join(named) or "no stage runs")


def holders() -> dict[int, str]:
    """Returns the DVC processes that hold paths of this repository, with their commands as they are typed.

    Raises:
        DvcError: if the lock names a process that is no DVC.
    """
    locks = _locks()
    readers = [entry for entries in locks.get("read", {}).values() for entry in entries]
    found = {entry["pid"]: _typed(entry["cmd"]) for entry in (*readers, *locks.get("write", {}).values())}
    return {pid: command for pid, command in found.items() if is_dvc(pid)}


def _typed(command: str) -> str:
    """Returns `dvc repro` for `/where/packages/lie/dvc/__main__.py repro`, which is how DVC notes it."""
    program, *arguments = command.split(" ", 1)
    path = Path(program)
    return " ".join([path.parent.name if path.name == "__main__.py" else path.name, *arguments])


def _locks() -> dict[str, Any]:
    try:
        return json.loads(PATHS_LOCK_FILE.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        # There is none before the first stage, and it is being written now.
        return {}


def is_dvc(pid: int) -> bool:
    """Returns whether a process that holds a lock still runs.

    Raises:
        DvcError: if the number is another program's by now.
    """
    try:
        command = psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
    if not command:
        # It has ended, and its parent has not asked how.
        return False
    if any("dvc" in word for word in command):
        return True
    message = f"{PATHS_LOCK_FILE} names process {pid}, which is no DVC but `{' '.join(command)}`"
    raise DvcError(message, hint=f"A DVC that was killed left it there: remove {PATHS_LOCK_FILE} and start again.")
