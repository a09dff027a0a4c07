"""Implements `rulka population`: runs unclaimed turns until all are done, then evaluates the best member."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rulka.stages.folders import AGENT, EVALUATION
from rulka.stages.outputs import check_file
from rulka.study.plan import do_stages
from rulka.study.population import PopulationFolder, read_population
from rulka.study.population_page import Standing, standings, write_population
from rulka.study.work import Work


def run_population(file: Path, page: Path | None, say: Callable[[str], None]) -> list[Standing]:
    """Runs the remaining work of a population alongside other processes; returns the final standings, best first.

    Args:
        file: the population file.
        page: Markdown file to write at the end; None writes none.
        say: called with progress messages.

    Raises:
        UserError: if the file cannot be run, the page cannot be written, or turns failed.
    """
    population = read_population(file)
    if page is not None:
        check_file(page, ".md")
    folder, own = PopulationFolder(population), population.file
    say(f"{own.title}: {own.members} members, {own.turns} turns of {own.turn_env_steps:,} steps each. {own.cost}")
    say(f"in {folder.path.as_posix()}")
    do_stages(population.cells, 1, say).check()
    work = Work(1, say)
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
