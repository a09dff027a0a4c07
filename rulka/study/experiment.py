"""Implements `rulka experiment`: reads the file, runs unfinished stages, writes the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rulka.machine.errors import UserError, counted
from rulka.stages.outputs import check_file
from rulka.study.page import format_results, write_experiment
from rulka.study.plan import do_stages, jobs_of, read_plan
from rulka.study.results import gather


class Table(NamedTuple):
    """Result table of an experiment.

    Attributes:
        text: a row for each variant, as Markdown.
        rows: the same as data, intervals as their two ends; for an experiment with `measures`, a row for each cell.
    """

    text: str
    rows: list[dict[str, Any]]


def run_experiment(
    file: Path, cells: Sequence[str], num_processes: int, page: Path | None, say: Callable[[str], None]
) -> Table:
    """Runs the remaining work of an experiment alongside other processes; returns its table.

    Args:
        file: the experiment file.
        cells: names of the cells to run, `variant/seed`; empty runs all.
        num_processes: number of stages to run in parallel.
        page: Markdown file to write with all results available then; None writes none.
        say: called with progress messages.

    Raises:
        UserError: if the file cannot be run, the page cannot be written, or cells failed; the others are done, and the
            page holds them.
    """
    whole = read_plan(file)
    plan = whole.chosen(cells) if cells else whole
    if page is not None:
        check_file(page, ".md")
    stages = counted(len(jobs_of(plan.cells)), "stage")
    say(f"{whole.file.title}: {counted(len(plan.cells), 'cell')}, {stages}. {whole.file.cost}")
    free = dict.fromkeys(cell.variant for cell in plan.cells if cell.trains_freely)
    if free:
        say(f"in free order, so that their trainings do not repeat bit by bit: {', '.join(free)}")
    do_stages(plan.cells, num_processes, say)
    results = gather(whole)
    if page is not None:
        write_experiment(whole, results, page, f"rulka experiment {file.as_posix()}")
    failed = [cell.name for cell in plan.cells if cell.last.cpu_seconds is None]
    if failed:
        message = f"{len(failed)} of {counted(len(plan.cells), 'cell')} did not come to their end: {', '.join(failed)}"
        raise UserError(message, hint="The lines above say why. The same command tries those again, no others.")
    rows = results.rows.to_dict("records") if whole.file.measures else results.summaries(whole.file.baseline)
    return Table(format_results(whole, results), rows)
