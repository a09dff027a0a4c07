"""Page of a population: final standings, lineage of the best member, and the schedule found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogFormatter

from rulka.contracts.schedule import Moment
from rulka.report.theme import BLUE, MUTED, ORANGE, WIDTH_IN
from rulka.stages.folders import METRICS_FILE
from rulka.study.page import head_of, inline, table, write_page
from rulka.study.population import PopulationFolder
from rulka.study.turn import Result

NUM_POINTS = 200
"""Points on the curve of a hand-made schedule."""
_OUTCOME = {"score": ("m/s", "{:.2f}"), "finish_rate": ("finished", "{:.0%}"), "mean_time_s": ("mean time", "{:.2f} s")}
"""Columns for the results of the greedy races after a turn."""


class Standing(NamedTuple):
    """Final standing of a member.

    Attributes:
        member: its number.
        score: mean score of its greedy races, m/s; None if it diverged.
        finish_rate: finish rate of these races.
        mean_time_s: mean time of the finished ones; None if there are none.
        num_copies: how often it was replaced.
        values: final values of the searched parameters.
        folder: folder of its last turn.
    """

    member: int
    score: float | None
    finish_rate: float
    mean_time_s: float | None
    num_copies: int
    values: dict[str, float]
    folder: Path

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON."""
        return self._asdict() | {"folder": self.folder.as_posix()}


def standings(folder: PopulationFolder) -> list[Standing]:
    """Returns the standings of a finished population, the best member first."""
    finished = folder.finished()
    found = []
    for member in folder.ranking():
        last, copies = finished[-1][member], sum(each[member].order.is_copied for each in finished)
        place = folder.turn_folder(member, len(finished) - 1)
        found.append(Standing(member, last.score, last.finish_rate, last.mean_time_s, copies, last.order.values, place))
    return found


def ancestry(turns: Sequence[Sequence[Result]], member: int) -> list[Result]:
    """Returns the lineage of a member from the first turn on: its own turns and those of members it was copied from."""
    found = []
    for results in reversed(turns):
        found.append(results[member])
        member = results[member].order.parent
    return found[::-1]


def format_standings(ended: Sequence[Standing]) -> str:
    """Formats the standings as a Markdown table."""
    columns = {"member": ("member", "{}"), **_OUTCOME, "num_copies": ("replaced", "{}")}
    columns |= {name: (name, "{:.3g}") for name in ended[0].values}
    return table([each._asdict() | each.values for each in ended], columns)


def write_population(folder: PopulationFolder, evaluated: Path, page: Path, command: str) -> None:
    """Writes the page of a finished population.

    Args:
        folder: folder of the population.
        evaluated: folder with the evaluation of its agent.
        page: Markdown file; its picture goes to the folder `images` next to it.
        command: command that writes this page.

    Raises:
        UserError: if a file cannot be written.
    """
    name, file = folder.population.name, folder.population.file
    turns, ended = folder.finished(), standings(folder)
    way = ancestry(turns, ended[0].member)
    agent = json.loads((evaluated / METRICS_FILE).read_text(encoding="utf-8"))["agent"]
    median = "-" if agent["median_time_s"] is None else f"{agent['median_time_s']:.2f} s"
    searched = {name: each.model_dump(mode="json", exclude_defaults=True) for name, each in file.parameters.items()}
    picture = f"population-{name}-schedule.png"
    parts = [
        *head_of(file, command),
        f"{file.members} members, {file.turns} turns of {file.turn_env_steps:,} environment steps each; seed"
        f" {file.seed}. Members are ranked by {file.races} greedy races after each turn. Shared parameters:"
        f" {inline(file.overrides)}. Searched parameters: {inline(searched)}.",
        "## Final standings",
        format_standings(ended),
        "After the last turn, best member first. *m/s*: mean speed in the greedy races; an unfinished race counts for"
        f" little. Evaluation of member {ended[0].member}'s agent: finish rate {agent['finish_rate']:.0%}, median time"
        f" {median}, lap share {agent['lap_share']:.3f} (reference lap time divided by race time, as in experiments)."
        f" All turns took {folder.cpu_seconds() / 60.0:.1f} CPU minutes, process starts and races included.",
        f"![{name}](images/{picture})",
        "Searched parameters over training. Blue: lineage of the best member. Grey: all members. Dashed: the hand-made"
        " schedule.",
        "## Lineage of the best member",
        _way(way),
        "## Copies",
        _copies(turns),
    ]
    write_page(page, parts, {picture: lambda: _schedules(folder, way)})


def _way(results: Sequence[Result]) -> str:
    columns = {"env_steps": ("env steps", "{:,}"), "member": ("member", "{}")}
    columns |= {name: (name, "{:.3g}") for name in results[0].order.values} | _OUTCOME
    rows = [vars(each) | {"score": each.score, "member": each.order.member} | each.order.values for each in results]
    return table(rows, columns)


def _copies(turns: Sequence[Sequence[Result]]) -> str:
    rows = []
    for before, results in pairwise(turns):
        for order in (each.order for each in results if each.order.is_copied):
            ours, theirs = before[order.member].scores, before[order.parent]
            ahead = "it had diverged"
            if ours is not None and theirs.scores is not None:
                ahead = f"{np.mean(theirs.scores) - np.mean(ours):.2f}"
            row = {"turn": order.turn - 1, "member": order.member, "parent": order.parent, "ahead": ahead}
            changed = {name: f"{theirs.order.values[name]:.3g} to {value:.3g}" for name, value in order.values.items()}
            rows.append(row | changed)
    if not rows:
        return "None: no gap between members was statistically significant."
    heads: dict[str, str] = {"turn": "after turn", "parent": "replaced by", "ahead": "lead of that member, m/s"}
    return table(rows, {name: (heads.get(str(name), str(name)), "{}") for name in rows[0]})


def _schedules(folder: PopulationFolder, way: Sequence[Result]) -> Figure:
    """Plots the searched parameters over a member's steps, as figure F.1 of Espeholt et al. 2018, arXiv:1802.01561."""
    file, turns = folder.population.file, folder.finished()
    figure, places = plt.subplots(
        len(file.parameters), figsize=(WIDTH_IN, 0.6 + 2.6 * len(file.parameters)), layout="constrained", squeeze=False
    )
    edges = np.arange(len(turns) + 1) * file.turn_env_steps
    steps = np.linspace(0, file.env_steps, NUM_POINTS)
    for name, axes in zip(file.parameters, places[:, 0], strict=True):
        for member in range(file.members):
            values = [results[member].order.values[name] for results in turns]
            axes.stairs(values, edges, baseline=None, color=MUTED, linewidth=0.8, alpha=0.6)
        found = [each.order.values[name] for each in way]
        axes.stairs(found, edges, baseline=None, color=BLUE, linewidth=2.2, label="lineage of the best member")
        base_schedule = [
            folder.population.base_schedules[name].at(Moment(int(at), at / file.env_steps)) for at in steps
        ]
        axes.plot(steps, base_schedule, "--", color=ORANGE, linewidth=1.8, label="hand-made")
        if min(*file.parameters[name].range, *base_schedule) > 0.0 and not file.parameters[name].from_one:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(LogFormatter())  # the default writes 10^-4 as maths
            axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))
        axes.set_ylabel(name)
        axes.xaxis.set_major_formatter(EngFormatter())
    places[-1, 0].set_xlabel("env steps of a member")
    places[0, 0].legend(loc="best", fontsize=8.5)
    return figure
