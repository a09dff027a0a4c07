"""Doing the work of an experiment: every job a stage in a folder of its own, several at once, none twice.

The folder looks to the stage like the project: its code and graph are links to those of the project, its inputs links
to the outputs of the jobs before it, its parameters its own. A finished job has a note of what it took; one that was
killed is gone on with in the way of its stage, a training from its last checkpoint. A job that fails is told of by
name, and those that need it are left out; all others go on.

    runs/experiments/<stage>-<key>/    params.yaml, log.txt, data/<output>/, and done.json at the end
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import filelock
import psutil
import yaml

from rulka.errors import UserError
from rulka.folders import DATA, RUNS
from rulka.graph import CODE_FOLDERS, GRAPH_FILE, IGNORE_FILE, PARAMS_FILE
from rulka.processes import Leader, end_group, start_group
from rulka.study.plan import Job

EXPERIMENTS = RUNS / "experiments"
DONE_FILE = "done.json"
"""Of a finished job: `seconds` and `cpu_seconds` that it took, all of its starts together."""
SPENT_FILE = "spent.json"
"""The same of a job that was stopped, so far."""
LOG_FILE = "log.txt"
SAVE_GRACE_S = 60.0
"""How long stages may take to save their work after Ctrl-C."""
_LOOK_S = 0.5


class WorkInUseError(UserError):
    """An experiment is under way in another process."""


class Spent(NamedTuple):
    """What a job took: time, and that of all of its processes on processors, in seconds."""

    seconds: float
    cpu_seconds: float

    def __add__(self, other: tuple[object, ...]) -> Spent:
        """Returns the sum of both."""
        assert isinstance(other, Spent)
        return Spent(self.seconds + other.seconds, self.cpu_seconds + other.cpu_seconds)


class Failure(NamedTuple):
    """A job that failed: what it last said, and where all of it can be read."""

    said: str
    log: Path


class Work:
    """The jobs of an experiment.

    Args:
        jobs: by their key, in an order in which they can be done.
        num_processes: how many jobs may run at once.
        say: gets a line for people when a job begins or ends.
        folder: where the work of all experiments lies; what they have in common is done once.
    """

    def __init__(
        self, jobs: Mapping[str, Job], num_processes: int, say: Callable[[str], None], folder: Path = EXPERIMENTS
    ) -> None:
        self.folder = folder
        self.failures: dict[str, Failure] = {}
        self._jobs, self._num_processes, self._say = jobs, num_processes, say
        self._leaders: dict[str, Leader] = {}
        self._lock, self._is_stopping = Lock(), False

    def folder_of(self, job: Job) -> Path:
        """Returns where the work of a job lies."""
        return self.folder / job.name

    def spent(self, job: Job) -> Spent | None:
        """Returns what a job took; None where it is not finished."""
        return spent_in(self.folder_of(job))

    def do(self) -> None:
        """Does all jobs that are not done, as far as none fails that they need; see `failures` afterwards.

        Raises:
            WorkInUseError: if another process is at it.
            KeyboardInterrupt: after the jobs under way have saved their work.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._alone(), ThreadPoolExecutor(self._num_processes) as pool:
            try:
                self._do_all(pool)
            except BaseException:
                self._stop()
                raise

    def _do_all(self, pool: ThreadPoolExecutor) -> None:
        waiting = {key: job for key, job in self._jobs.items() if self.spent(job) is None}
        finished = {job.name for key, job in self._jobs.items() if key not in waiting}
        if finished:
            self._say(f"{len(finished)} of {len(self._jobs)} stages were done before")
        running: dict[Future[Failure | None], Job] = {}
        while waiting or running:
            ready = [job for job in waiting.values() if all(name in finished for name, _ in job.inputs.values())]
            for job in ready[: self._num_processes - len(running)]:
                del waiting[job.key]
                running[pool.submit(self._do, job)] = job
            if not running:
                return  # what still waits needs a job that failed
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                job, failure = running.pop(future), future.result()
                if failure is None:
                    finished.add(job.name)
                    spent = self.spent(job)
                    assert spent is not None
                    left = len(waiting) + len(running)
                    self._say(f"{job.name} is done: {spent.cpu_seconds / 60:.1f} CPU minutes; {left} stages are left")
                else:
                    self.failures[job.key] = failure
                    self._say(f"{job.name} failed: {failure.said}; see {failure.log.as_posix()}")

    def _do(self, job: Job) -> Failure | None:
        folder = self.folder_of(job)
        lay_out(folder, job.params, {Path(dep): self.folder / name / path for dep, (name, path) in job.inputs.items()})
        with self._lock:
            if self._is_stopping:
                return Failure("not begun", folder / LOG_FILE)
            leader = self._leaders[job.key] = start_in(folder, f"tasks.{job.stage}", self._num_processes)
        failure = finish_in(folder, leader)
        with self._lock:
            del self._leaders[job.key]
        if failure is None:
            shutil.rmtree(folder / RUNS, ignore_errors=True)  # checkpoints and experience, large
        return failure

    def _stop(self) -> None:
        with self._lock:
            self._is_stopping, leaders = True, list(self._leaders.values())
        if leaders:
            self._say("stopping: what is under way saves its work first")
        with ThreadPoolExecutor(max(1, len(leaders))) as pool:
            list(pool.map(lambda leader: end_group(leader, SAVE_GRACE_S, ask=signal.SIGINT), leaders))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        lock = filelock.FileLock(self.folder / "lock", is_singleton=False)
        try:
            lock.acquire(timeout=0.0)
        except filelock.Timeout as error:
            message = f"another process is at an experiment in {self.folder.as_posix()}"
            raise WorkInUseError(message, hint="Wait until it has ended, or end it.") from error
        try:
            yield
        finally:
            lock.release()


def lay_out(folder: Path, params: Mapping[str, Any], inputs: Mapping[Path, Path]) -> None:
    """Makes a folder look to a stage like the project.

    Args:
        folder: of the work; made where it is missing.
        params: all parameters.
        inputs: what takes the place of outputs of earlier stages, by where it is looked for in the folder.
    """
    (folder / DATA).mkdir(parents=True, exist_ok=True)
    links = {Path(name): Path(name).resolve() for name in (*CODE_FOLDERS, GRAPH_FILE, IGNORE_FILE)}
    links |= {place: target.resolve() for place, target in inputs.items()}
    links |= {path: path.resolve() for path in DATA.glob("recordings*") if path not in links}
    for place, target in links.items():
        if not (folder / place).is_symlink():
            (folder / place).symlink_to(target)
    (folder / PARAMS_FILE).write_text(yaml.safe_dump(dict(params), sort_keys=False), encoding="utf-8")


def start_in(folder: Path, module: str, num_processes: int) -> Leader:
    """Starts a module in a folder that is laid out, one of so many that run at once; what it prints goes to its log."""
    with (folder / LOG_FILE).open("ab") as log:
        return start_group([sys.executable, "-m", module], _environment(num_processes), log, folder)


def finish_in(folder: Path, leader: Leader) -> Failure | None:
    """Waits for a module that was started in a folder, notes there what it took, and returns how it failed, if so."""
    before = _read_spent(folder / SPENT_FILE) or Spent(0.0, 0.0)
    started_s = time.monotonic()
    cpu_seconds = _wait(leader)
    end_group(leader)
    spent = before + Spent(time.monotonic() - started_s, cpu_seconds)
    is_done = leader.returncode == 0
    _write_spent(folder / (DONE_FILE if is_done else SPENT_FILE), spent)
    return None if is_done else Failure(_last_line(folder / LOG_FILE), folder / LOG_FILE)


def spent_in(folder: Path) -> Spent | None:
    """Returns what the work in a folder took; None where it is not finished."""
    return _read_spent(folder / DONE_FILE)


def _environment(num_processes: int) -> Mapping[str, str]:
    """Returns the environment of a stage, with a share of the cores where there are several.

    Threads of two pretrainings that both take every core wait for one another at each layer: on two cores 350 frames a
    second each, and 870 with one thread each.
    """
    shares = {} if num_processes == 1 else {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // num_processes))}
    return {**shares, **os.environ, "PYTHONUNBUFFERED": "1"}


def _wait(leader: Leader) -> float:
    """Waits for the end of a job and returns the seconds that its processes had on processors."""
    seconds: dict[int, float] = {}
    while leader.poll() is None:
        for process in _family(leader.pid):
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            seconds[process.pid] = times.user + times.system
        time.sleep(_LOOK_S)
    return sum(seconds.values())


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _read_spent(path: Path) -> Spent | None:
    try:
        return Spent(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def _write_spent(path: Path, spent: Spent) -> None:
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps({name: round(value, 2) for name, value in spent._asdict().items()}), encoding="utf-8")
    beside.replace(path)


def _last_line(log: Path) -> str:
    """Returns what a stage said of its error, else the last line that it printed."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines or ["it said nothing"])[-1].removeprefix("error: ")
