"""Doing jobs: each a module that runs in a folder of its own, several at once, none twice, whoever does them.

The folder looks to the module like the project: its code and graph are links to those of the project, its inputs links
to the outputs of the jobs before it, its parameters its own. A job is claimed by a lock on its folder, which the system
takes from a process that dies. So any number of processes, also on machines that share the folder, do the same work
together. A finished job has a note of what it took; one that was killed goes on in the way of its module, a training
from its last checkpoint. A job that fails is named, and those that need it are left out; all others go on.

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

from rulka.errors import UserError
from rulka.folders import DATA
from rulka.graph import CODE_FOLDERS, GRAPH_FILE, IGNORE_FILE, PARAMS_FILE
from rulka.processes import Leader, end_group, start_group
from rulka.runtime.run_lock import RunInUseError, locked
from rulka.stored import checked

DONE_FILE = "done.json"
"""Of a finished job: `cpu_seconds` that it took, all of its starts together."""
SPENT_FILE = "spent.json"
"""The same of a job that was stopped, so far."""
LOG_FILE = "log.txt"
SAVE_GRACE_S = 60.0
"""How long jobs may take to save their work after Ctrl-C."""
NUM_STARTS = 3
"""How often a job is started that somebody kills: the system one that takes too much memory, people one they do not
know."""
LOOK_S = 0.5
"""How often it is looked whether a job, here or in another process, has ended."""


class UnfinishedError(UserError):
    """Some work did not come to its end."""


class Job(NamedTuple):
    """Work to be done once.

    Attributes:
        name: for people.
        folder: its own.
        module: what runs there.
        params: all parameters; those of sections that the module does not read may be another job's.
        inputs: folders of the jobs before it, by the output that it reads of them.
        note: content of a further file for the module, by its name.
    """

    name: str
    folder: Path
    module: str
    params: Mapping[str, Any]
    inputs: Mapping[str, Path]
    note: Mapping[str, str] = {}

    @property
    def cpu_seconds(self) -> float | None:
        """What it took on processors, in all of its processes; None where it is not finished."""
        return cpu_seconds_in(self.folder)

    @property
    def is_due(self) -> bool:
        """Whether it is not finished, and all jobs before it are."""
        return self.cpu_seconds is None and all((before / DONE_FILE).exists() for before in self.inputs.values())


class Work:
    """Does jobs beside other processes, which it knows by their locks alone.

    Args:
        num_processes: how many jobs may run at once here.
        say: gets a line for people when a job ends.
    """

    def __init__(self, num_processes: int, say: Callable[[str], None]) -> None:
        self.failures: dict[Path, Job] = {}
        self._num_processes, self._say = num_processes, say
        self._leaders: list[Leader] = []
        self._lock, self._is_stopping = Lock(), False

    def do(self, due: Callable[[], Iterable[Job]], end: Callable[[Job], str]) -> None:
        """Does jobs until nothing is due that has not failed here; see `failures` and `check` afterwards.

        Args:
            due: says which jobs can be done now, those included that somebody is at.
            end: called for each that was done here; returns what to say of it.

        Raises:
            KeyboardInterrupt: after the jobs under way have saved their work.
        """
        with ThreadPoolExecutor(self._num_processes) as pool:
            try:
                for worker in as_completed([pool.submit(self._work, due, end) for _ in range(self._num_processes)]):
                    worker.result()
            except BaseException:
                self._stop()
                raise

    def check(self) -> None:
        """Raises UnfinishedError if a job failed here."""
        if self.failures:
            names = ", ".join(job.name for job in self.failures.values())
            message = f"{names} did not come to an end"
            raise UnfinishedError(message, hint="The lines above say why. The same command tries again.")

    def _work(self, due: Callable[[], Iterable[Job]], end: Callable[[Job], str]) -> None:
        while not self._is_stopping and (jobs := [job for job in due() if job.folder not in self.failures]):
            if not any(self._does(job, end) for job in jobs):
                time.sleep(LOOK_S)

    def _does(self, job: Job, end: Callable[[Job], str]) -> bool:
        """Does a job, unless somebody is at it; returns whether nobody was."""
        try:
            with locked(job.folder):
                if job.cpu_seconds is not None:  # somebody has finished it since it was found due
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
        """Runs a job's module, and returns what it said if it failed."""
        _lay_out(job)
        for _ in range(NUM_STARTS):
            with self._lock, (job.folder / LOG_FILE).open("ab") as log:
                if self._is_stopping:
                    return "it was not begun"
                command = [sys.executable, "-m", job.module]
                leader = start_group(command, _environment(self._num_processes), log, job.folder)
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
    """Returns how many jobs are not finished."""
    return sum(job.cpu_seconds is None for job in jobs)


def cpu_seconds_in(folder: Path) -> float | None:
    """Returns what the job in a folder took on processors; None where it is not finished."""
    return _read_spent(folder / DONE_FILE)


def _lay_out(job: Job) -> None:
    """Makes the folder of a job look like the project."""
    folder = job.folder
    (folder / DATA).mkdir(parents=True, exist_ok=True)
    links = {Path(name): Path(name) for name in (*CODE_FOLDERS, GRAPH_FILE, IGNORE_FILE)}
    links |= {path: path for path in DATA.glob("recordings*")}
    links |= {Path(output): before / output for output, before in job.inputs.items()}
    for place, target in links.items():
        if not (folder / place).is_symlink():
            (folder / place).symlink_to(target.resolve())
    (folder / PARAMS_FILE).write_text(yaml.safe_dump(dict(job.params), sort_keys=False), encoding="utf-8")
    for name, text in job.note.items():
        (folder / name).write_text(text, encoding="utf-8")


def _environment(num_processes: int) -> Mapping[str, str]:
    """Returns the environment of a job, with a share of the cores where there are several.

    Threads of two pretrainings that both take every core wait for one another at each layer: on two cores 350 frames a
    second each, and 870 with one thread each.
    """
    shares = {} if num_processes == 1 else {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // num_processes))}
    return {**shares, **os.environ, "PYTHONUNBUFFERED": "1"}


def _finish(folder: Path, leader: Leader) -> bool:
    """Waits for the end of a module, notes what it took, and returns whether it ended well."""
    cpu_seconds = (_read_spent(folder / SPENT_FILE) or 0.0) + _wait(leader)
    end_group(leader)
    is_done = leader.returncode == 0
    path = folder / (DONE_FILE if is_done else SPENT_FILE)
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps({"cpu_seconds": round(cpu_seconds, 2)}), encoding="utf-8")
    beside.replace(path)
    return is_done


def _wait(leader: Leader) -> float:
    """Waits for the end of a module and returns the seconds that its processes had on processors."""
    seconds: dict[int, float] = {}
    while leader.poll() is None:
        for process in _family(leader.pid):
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                seconds[process.pid] = times.user + times.system
        time.sleep(LOOK_S)
    return sum(seconds.values())


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _read_spent(path: Path) -> float | None:
    if not path.exists():
        return None
    hint = "Remove it: its job is then done anew."
    return checked(path.read_bytes(), dict[str, FiniteFloat], path.as_posix(), hint=hint).get("cpu_seconds")


def _last_line(log: Path) -> str:
    """Returns what a module said of its error, else the last line that it printed."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines or ["it said nothing"])[-1].removeprefix("error: ")
