"""What `rulka population` does: turns that nobody else is at, until all are done; then the best member is evaluated."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from rulka.cluster import RayCluster, find_cluster
from rulka.errors import UserError
from rulka.folders import AGENT, EVALUATION, METRICS_FILE
from rulka.graph import read_graph
from rulka.outputs import check_file
from rulka.processes import end_group
from rulka.runtime.run_lock import RunInUseError, locked
from rulka.study.nodes import command_of, deal, helped
from rulka.study.plan import Job, jobs_of
from rulka.study.population_file import Population, read_population
from rulka.study.population_folder import PopulationFolder
from rulka.study.population_page import Standing, standings, write_page
from rulka.study.turn import Order, Result
from rulka.study.work import (
    LOG_FILE,
    SAVE_GRACE_S,
    Failure,
    Work,
    WorkInUseError,
    finish_in,
    lay_out,
    start_in,
)

LOOK_S = 1.0
"""How often a process that has nothing to do looks whether another one has finished something."""
NUM_STARTS = 3
"""How often a process is started that somebody kills."""
EVALUATED = "evaluation"
"""In a population's folder: where its agent is evaluated."""


class UnfinishedError(UserError):
    """Some turns did not come to their end."""


def run_population(
    file: Path, page: Path | None, say: Callable[[str], None], *, on_cluster: bool = False
) -> list[Standing]:
    """Does what is left to do of a population beside what others do, and returns how it ended, the best member first.

    Args:
        file: of the population.
        page: Markdown file to write at the end; None writes none.
        say: gets lines for people while it lasts.
        on_cluster: whether processes on the nodes of a Ray cluster help, in this folder, which they share.

    Raises:
        UserError: if the file cannot be run, or the page cannot be written; or if there is no cluster.
        UnfinishedError: if turns failed.
    """
    population = read_population(file)
    if page is not None:
        check_file(page, ".md")
    address = find_cluster() if on_cluster else None
    folder = PopulationFolder(population)
    own = population.file
    say(f"{own.title}: {own.members} members, {own.turns} turns of {own.turn_env_steps:,} steps each. {own.cost}")
    say(f"in {folder.path.as_posix()}")
    worker = Worker(folder, _prepared(population, say), say)
    with nullcontext() if address is None else _helpers(population, file, RayCluster(address), say):
        worker.work()
    evaluated = worker.evaluate()
    ended = standings(folder)
    say(f"the best member's agent is {(ended[0].folder / AGENT).as_posix()}, its evaluation {evaluated.as_posix()}")
    if page is not None:
        write_page(folder, evaluated, page, f"rulka population {file.as_posix()}")
    return ended


def _helpers(
    population: Population, file: Path, cluster: RayCluster, say: Callable[[str], None]
) -> AbstractContextManager[None]:
    is_serial = population.cells[0].params.train.num_collectors == 0
    dealt = deal(cluster.nodes(), population.file.members, is_serial=is_serial)
    return helped(cluster, command_of(file), dealt, say)


def _prepared(population: Population, say: Callable[[str], None]) -> Work:
    """Does the stages before the first turn, as cells of experiments, unless another process does.

    Raises:
        UnfinishedError: if one failed.
    """
    jobs = jobs_of(population.cells)
    work, is_told = Work(jobs, 1, say), False
    while any(work.spent(job) is None for job in jobs.values()):
        try:
            work.do()
        except WorkInUseError as error:
            if not is_told:
                say(f"waiting: {error}")
            is_told = True
            time.sleep(LOOK_S)
            continue
        for key, failure in work.failures.items():
            message = f"{jobs[key].name} failed: {failure.said}; see {failure.log.as_posix()}"
            raise UnfinishedError(message, hint="The same command tries it again.")
    return work


class Worker:
    """One process at work on a population's folder; there may be others, which it knows by their locks alone.

    Args:
        folder: of the population.
        prepared: what came before the first turn.
        say: gets lines for people.
    """

    def __init__(self, folder: PopulationFolder, prepared: Work, say: Callable[[str], None]) -> None:
        self._folder, self._prepared, self._say = folder, prepared, say
        self._failures: dict[tuple[int, int], Failure] = {}

    def work(self) -> None:
        """Does turns until all are done.

        Raises:
            UnfinishedError: if all that is left has failed here.
        """
        while due := self._folder.due():
            if self._do_one(due):
                continue
            if all(place in self._failures for place in due):
                failed = ", ".join(f"turn {turn} of member {member}" for member, turn in due)
                message = f"{failed} did not come to an end"
                raise UnfinishedError(message, hint="The lines above say why. The same command tries again.")
            time.sleep(LOOK_S)

    def evaluate(self) -> Path:
        """Lets stage `evaluate` race the best member's agent, unless that is done, and returns where its results lie.

        Raises:
            UnfinishedError: if the stage failed.
        """
        folder, last = self._folder.path / EVALUATED, self._folder.population.file.turns - 1
        best = self._folder.ranking(last)[0]
        while True:
            try:
                with locked(folder):
                    if not (folder / EVALUATION / METRICS_FILE).exists():
                        self._evaluate(folder, best, self._folder.turn_folder(best, last) / AGENT)
                return folder / EVALUATION
            except RunInUseError:
                time.sleep(LOOK_S)

    def _evaluate(self, folder: Path, member: int, agent: Path) -> None:
        lay_out(
            folder,
            self._folder.population.cells[member].jobs[-1].params,
            self._inputs("evaluate", member) | {AGENT: agent},
        )
        if failure := run_in(folder, "tasks.evaluate", self._say):
            message = f"the best member cannot be evaluated: {failure.said}; see {failure.log.as_posix()}"
            raise UnfinishedError(message, hint="The same command tries again.")

    def _do_one(self, due: list[tuple[int, int]]) -> bool:
        """Does the first turn that nobody is at; returns whether there was one."""
        for member, turn in due:
            if (member, turn) in self._failures:
                continue
            try:
                with locked(self._folder.turn_folder(member, turn)):
                    if self._folder.result(member, turn) is None:  # nobody has finished it since it was found due
                        self._do(self._folder.order(member, turn))
            except RunInUseError:
                continue
            self._folder.forget_old()
            return True
        return False

    def _do(self, order: Order) -> None:
        folder = self._folder.turn_folder(order.member, order.turn)
        values = ", ".join(f"{name} {value:.3g}" for name, value in order.values.items())
        begins = f", from member {order.parent}" if order.is_copied else ""
        self._say(f"turn {order.turn} of member {order.member}{begins}: {values}")
        population = self._folder.population
        self._folder.write_order(order)
        inputs = self._inputs("train", order.member)
        lay_out(folder, population.sections(order.member, order.turn, order.values), inputs)
        failure = run_in(folder, "rulka.study.turn", self._say)
        result = None if failure else self._folder.result(order.member, order.turn)
        if result is None:
            failure = failure or Failure("it left no result", folder / LOG_FILE)
            self._failures[order.member, order.turn] = failure
            self._say(
                f"turn {order.turn} of member {order.member} failed: {failure.said}; see {failure.log.as_posix()}"
            )
        else:
            self._say(f"turn {order.turn} of member {order.member} is done: {told(result)}")

    def _inputs(self, stage: str, member: int) -> dict[Path, Path]:
        """Returns where what a stage reads lies, of what was made before the member's first turn."""
        made: dict[str, Job] = {
            out: job for job in self._folder.population.cells[member].jobs for out in read_graph()[job.stage]["outs"]
        }
        deps = [dep for dep in read_graph()[stage]["deps"] if dep in made]
        return {Path(dep): self._prepared.folder_of(made[dep]) / dep for dep in deps}


def run_in(folder: Path, module: str, say: Callable[[str], None]) -> Failure | None:
    """Runs a module in a folder that is laid out; an interrupt lets it save its work first.

    One that was killed goes on, a few times: the system kills what takes too much memory, and people what they do not
    know.
    """
    failure = None
    for _ in range(NUM_STARTS):
        leader = start_in(folder, module, 1)
        try:
            failure = finish_in(folder, leader)
        except BaseException:
            end_group(leader, SAVE_GRACE_S, ask=signal.SIGINT)
            raise
        if leader.returncode >= 0:
            break
        say(f"{folder.name} of {folder.parent.name} was killed: it goes on")
    return failure


def told(result: Result) -> str:
    """Returns in a few words what came of a turn."""
    if result.scores is None:
        return f"it diverged: {result.diverged}"
    score = sum(result.scores) / len(result.scores)
    time_s = "" if result.mean_time_s is None else f", {result.mean_time_s:.2f} s"
    return f"{score:.2f} m/s, {result.finish_rate:.0%} finished{time_s}"
