"""What `rulka population` does: turns that nobody else is at, until all are done; then the best member is evaluated."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from rulka.cluster import RayCluster, find_cluster
from rulka.folders import AGENT, EVALUATION
from rulka.outputs import check_file
from rulka.study.nodes import command_of, deal, helped
from rulka.study.plan import do_stages
from rulka.study.population import Population, PopulationFolder, read_population
from rulka.study.population_page import Standing, standings, write_population
from rulka.study.work import Work


def _helpers(
    cluster: RayCluster, file: Path, population: Population, say: Callable[[str], None]
) -> AbstractContextManager[None]:
    is_serial = population.cells[0].params.train.num_collectors == 0
    dealt = deal(cluster.nodes(), population.file.members, is_serial=is_serial)
    return helped(cluster, command_of(file), dealt, say)


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
    folder, own = PopulationFolder(population), population.file
    say(f"{own.title}: {own.members} members, {own.turns} turns of {own.turn_env_steps:,} steps each. {own.cost}")
    say(f"in {folder.path.as_posix()}")
    do_stages(population.cells, 1, say).check()
    work = Work(1, say)
    with nullcontext() if address is None else _helpers(RayCluster(address), file, population, say):
        work.do(folder.due, folder.end)
        work.check()
    evaluation = folder.evaluation()
    work.do(lambda: [evaluation] if evaluation.is_due else [], lambda job: (job.folder / EVALUATION).as_posix())
    work.check()
    ended = standings(folder)
    evaluated = evaluation.folder / EVALUATION
    say(f"the best member's agent is {(ended[0].folder / AGENT).as_posix()}, its evaluation {evaluated.as_posix()}")
    if page is not None:
        write_population(folder, evaluated, page, f"rulka population {file.as_posix()}")
    return ended
