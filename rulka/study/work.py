"""Job runner: each job is a module that runs in its own folder, in parallel with others, once across all processes.

To the module the folder looks like the project: code and graph are links to those of the project, inputs are links to
the outputs of earlier jobs, parameters are its own. A job is claimed by a lock on its folder, which the system releases
if the process dies. So any number of processes, also on machines that share the folder, can share the work. A finished
job records its CPU time; a killed one resumes as its module does, a training from its last checkpoint. A failed job is
reported and its dependents are skipped; all others continue.

    <folder>/    params.yaml, log.txt, data/<output>/, and done.json at the end
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import psutil
import yaml
from pydantic import FiniteFloat

from rulka.contracts.stored import checked
from rulka.machine.errors import UserError
from rulka.machine.processes import Leader, end_group, start_group
from rulka.runtime.run_lock import RunInUseError, locked
from rulka.stages.folders import DATA
from rulka.stages.graph import CODE_FOLDERS, GRAPH_FILE, IGNORE_FILE, PARAMS_FILE

DONE_FILE = "done.json"
"""Record of a finished job: `cpu_seconds` over all of its starts."""
SPENT_FILE = "spent.json"
"""The same for a stopped job, so far."""
LOG_FILE = "log.txt"
SAVE_GRACE_S = 60.0
"""Grace period for jobs to save their work after Ctrl-C."""
NUM_STARTS = 3
"""Maximum starts of a job that gets killed: by the system for using too much memory, or by a user who does not know
it."""
POLL_INTERVAL_S = 0.5
"""Poll interval for the end of a job, here or in another process."""


class Job(NamedTuple):
    """A unit of work that runs once.

    Attributes:
        name: name for messages.
        folder: its own folder.
        module: module to run there.
        params: all parameters; sections that the module does not read may come from another cell.
        inputs: folder of the job that produces it, for each output that this job reads.
        note: further files for the module, content by name.
    """

    name: str
    folder: Path
    module: str
    params: Mapping[str, Any]
    inputs: Mapping[str, Path]
    note: Mapping[str, str] = {}

    @property
    def cpu_seconds(self) -> float | None:
        """CPU seconds of all its processes; None if it is not finished."""
        return cpu_seconds_of(self.folder / DONE_FILE)

    @property
    def is_due(self) -> bool:
        """True if it is not finished and all jobs it depends on are."""
        return self.cpu_seconds is None and all((before / DONE_FILE).exists() for before in self.inputs.values())


class Work:
    """Runs jobs alongside other processes, coordinated only by locks.

    Args:
        num_processes: number of jobs to run in parallel here.
        say: called with a message when a job ends.
    """

    def __init__(self, num_processes: int, say: Callable[[str], None]) -> None:
        self.failures: dict[Path, Job] = {}
        self._num_processes, self._say = num_processes, say
        self._leaders: list[Leader] = []
        self._lock, self._is_stopping = Lock(), False

    def do(self, due: Callable[[], Iterable[Job]], end: Callable[[Job], str]) -> None:
        """Runs jobs until none is due except those that failed here; see `failures` and `check` afterwards.

        Args:
            due: returns the jobs that can run now, including those already running elsewhere.
            end: called for each job finished here; returns its message.

        Raises:
            KeyboardInterrupt: after the running jobs have saved their work.
        """
        with ThreadPoolExecutor(self._num_processes) as pool:
            try:
                for worker in as_completed([pool.submit(self._work, due, end) for _ in range(self._num_processes)]):
                    worker.result()
            except BaseException:
                self._stop()
                raise

    def check(self) -> None:
        """Raises UserError if a job failed here."""
        if self.failures:
            names = ", ".join(job.name for job in self.failures.values())
            message = f"{names} did not come to an end"
            raise UserError(message, hint="The lines above say why. The same command tries again.")

    def _work(self, due: Callable[[], Iterable[Job]], end: Callable[[Job], str]) -> None:
        while not self._is_stopping and (jobs := [job for job in due() if job.folder not in self.failures]):
            if not any(self._try_run(job, end) for job in jobs):
                time.sleep(POLL_INTERVAL_S)

    def _try_run(self, job: Job, end: Callable[[Job], str]) -> bool:
        """Runs a job; returns False if it is locked by another process or thread."""
        try:
            with locked(job.folder):
                if job.cpu_seconds is not None:  # finished elsewhere since it was found due
                    return True
                said = self._run(job)
        except RunInUseError:
            return False
        if said is None:
            self._say(f"{job.name} is done: {end(job)}")
        else:
            self.failures[job.folder] = job
            self._say(f"{job.name} failed: {said}; see {(job.folder / LOG_FILE).as_posix()}")
        return True

    def _run(self, job: Job) -> str | None:
        """Runs a job's module; returns its error message, or None on success."""
        _prepare_folder(job)
        for _ in range(NUM_STARTS):
            with self._lock, (job.folder / LOG_FILE).open("ab") as log:
                if self._is_stopping:
                    return "it was not begun"
                command = [sys.executable, "-m", job.module]
                leader = start_group(command, {**os.environ, "PYTHONUNBUFFERED": "1"}, log, job.folder)
                self._leaders.append(leader)
            is_done = _finish(job.folder, leader)
            with self._lock:
                self._leaders.remove(leader)
            if is_done:
                return None
            if leader.returncode >= 0:
                break
            self._say(f"{job.name} was killed: it goes on")
        return _last_line(job.folder / LOG_FILE)

    def _stop(self) -> None:
        with self._lock:
            self._is_stopping, leaders = True, list(self._leaders)
        if leaders:
            self._say("stopping: what is under way saves its work first")
        with ThreadPoolExecutor(max(1, len(leaders))) as pool:
            list(pool.map(lambda leader: end_group(leader, SAVE_GRACE_S, ask=signal.SIGINT), leaders))


def jobs_left(jobs: Sequence[Job]) -> int:
    """Returns the number of unfinished jobs."""
    return sum(job.cpu_seconds is None for job in jobs)


def _prepare_folder(job: Job) -> None:
    """Makes the folder of a job look like the project."""
    folder = job.folder
    (folder / DATA).mkdir(parents=True, exist_ok=True)
    links = {Path(name): Path(name) for name in (*CODE_FOLDERS, GRAPH_FILE, IGNORE_FILE)}
    links |= {path: path for name in ("recordings*", "takeovers*", "backbones") for path in DATA.glob(name)}
    links |= {Path(output): before / output for output, before in job.inputs.items()}
    for place, target in links.items():
        if not (folder / place).is_symlink():
            (folder / place).symlink_to(target.resolve())
    (folder / PARAMS_FILE).write_text(yaml.safe_dump(dict(job.params), sort_keys=False), encoding="utf-8")
    for name, text in job.note.items():
        (folder / name).write_text(text, encoding="utf-8")


def _finish(folder: Path, leader: Leader) -> bool:
    """Waits for a module to end, records its CPU time, and returns True on success."""
    cpu_seconds = (cpu_seconds_of(folder / SPENT_FILE) or 0.0) + _wait(leader)
    end_group(leader)
    is_done = leader.returncode == 0
    path = folder / (DONE_FILE if is_done else SPENT_FILE)
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps({"cpu_seconds": round(cpu_seconds, 2)}), encoding="utf-8")
    beside.replace(path)
    return is_done


def _wait(leader: Leader) -> float:
    """Waits for a module to end and returns the CPU seconds of its processes."""
    seconds: dict[int, float] = {}
    while leader.poll() is None:
        for process in _family(leader.pid):
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                seconds[process.pid] = times.user + times.system
        time.sleep(POLL_INTERVAL_S)
    return sum(seconds.values())


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds_of(path: Path) -> float | None:
    """Returns the CPU seconds in a job's `DONE_FILE` or `SPENT_FILE`; None if there is none."""
    if not path.exists():
        return None
    hint = "Remove it: its job is then done anew."
    return checked(path.read_bytes(), dict[str, FiniteFloat], path.as_posix(), hint=hint).get("cpu_seconds")


def _last_line(log: Path) -> str:
    """Returns a module's last error message, else its last line of output."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines or ["it said nothing"])[-1].removeprefix("error: ")
