"""The page of a population: how it ended, its lineage, and the schedule that it found beside the hand-made one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from rulka.folders import METRICS_FILE
from rulka.outputs import new_file
from rulka.provenance import current_commit, library_versions
from rulka.report.theme import LIGHT, Theme, to_png
from rulka.schedule import Moment
from rulka.study.page import table
from rulka.study.population_folder import PopulationFolder
from rulka.study.selection import gap
from rulka.study.turn import Result
from rulka.study.work import spent_in

NUM_POINTS = 200
"""Of the curve of a hand-made schedule."""


class Standing(NamedTuple):
    """How a member stands after its last turn.

    Attributes:
        member: its number.
        score: mean of its greedy races, m/s; None where it diverged.
        finish_rate: of these races.
        mean_time_s: of those that finished; None where none did.
        num_copies: how often it was replaced.
        values: of the parameters that were searched, as it ended.
        folder: of its last turn.
    """

    member: int
    score: float | None
    finish_rate: float
    mean_time_s: float | None
    num_copies: int
    values: dict[str, float]
    folder: Path

    def to_json(self) -> dict[str, Any]:
        """Returns the same as plain values."""
        return self._asdict() | {"folder": self.folder.as_posix()}


def standings(folder: PopulationFolder) -> list[Standing]:
    """Returns how the members of a population whose turns are all finished stand, the best first."""
    finished = folder.finished()
    last = len(finished) - 1
    return [
        Standing(
            member,
            _score(finished[last][member]),
            finished[last][member].finish_rate,
            finished[last][member].mean_time_s,
            sum(each[member].order.is_copied for each in finished),
            finished[last][member].order.values,
            folder.turn_folder(member, last),
        )
        for member in folder.ranking(last)
    ]


def ancestry(turns: Sequence[Sequence[Result]], member: int) -> list[Result]:
    """Returns the turns that led to a member's last one, the first one first: its own, and those of whom it copied."""
    found = []
    for results in reversed(turns):
        found.append(results[member])
        member = results[member].order.parent
    return found[::-1]


def format_standings(ended: Sequence[Standing]) -> str:
    """Returns the members, the best first, as a table in Markdown."""
    names = list(ended[0].values)
    rows = [["member", "m/s", "finished", "mean time", "replaced", *names]]
    rows += [
        [
            str(each.member),
            _number(each.score, ".2f"),
            f"{each.finish_rate:.0%}",
            _number(each.mean_time_s, ".2f", " s"),
            str(each.num_copies),
            *(f"{each.values[name]:.3g}" for name in names),
        ]
        for each in ended
    ]
    return table(rows)


def write_page(folder: PopulationFolder, evaluated: Path, page: Path, command: str) -> None:
    """Writes the page of a population whose turns are all finished, and its two pictures beside it.

    Args:
        folder: of the population.
        evaluated: folder with the evaluation of its agent.
        page: Markdown file; the pictures go to the folder `images` beside it.
        command: that makes this page.

    Raises:
        OutputError: if one cannot be written.
    """
    pictures = {
        f"population-{folder.population.name}-lineage.png": to_png(lambda theme: _lineage(folder, theme), LIGHT),
        f"population-{folder.population.name}-schedule.png": to_png(lambda theme: _schedules(folder, theme), LIGHT),
    }
    for name, picture in pictures.items():
        (page.parent / "images").mkdir(exist_ok=True)
        with new_file(page.parent / "images" / name) as beside:
            beside.write_bytes(picture or b"")
    with new_file(page) as beside:
        beside.write_text(_text(folder, evaluated, command, list(pictures)), encoding="utf-8")


def _text(folder: PopulationFolder, evaluated: Path, command: str, pictures: Sequence[str]) -> str:
    file, turns, ended = folder.population.file, folder.finished(), standings(folder)
    versions = ", ".join(f"{name} {version}" for name, version in library_versions().items() if version)
    agent = json.loads((evaluated / METRICS_FILE).read_text(encoding="utf-8"))["agent"]
    spent = [spent_in(folder.turn_folder(result.order.member, result.order.turn)) for each in turns for result in each]
    minutes = sum(each.cpu_seconds for each in spent if each is not None) / 60.0
    overrides = yaml.safe_dump(file.overrides, default_flow_style=True, width=10_000, sort_keys=False).strip()
    searched = {name: each.model_dump(exclude_defaults=True) for name, each in file.parameters.items()}
    parts = [
        f"# {file.title}",
        file.question,
        f"Made by `{command}` at commit {current_commit() or 'unknown'}; {versions}. {file.cost}",
        f"{file.members} members, {file.turns} turns of {file.turn_env_steps:,} environment steps each, compared by"
        f" {file.races} greedy races after each; seed {file.seed}. For all: `{overrides}`. Searched: `{searched}`.",
        "## How it ended",
        format_standings(ended),
        "After the last turn, the best first; *m/s* is the mean speed of the greedy races, where one that did not"
        f" finish counts for little. The agent of member {ended[0].member}, evaluated: {agent['finish_rate']:.0%} of"
        f" its races finish, median {_number(agent['median_time_s'], '.2f', ' s')}, lap share"
        f" {_number(agent['lap_share'], '.3f')} (the mean of the reference lap's time over theirs, as in experiments)."
        f" All turns took {minutes:.1f} CPU minutes, starting processes and races included.",
        *(f"![{folder.population.name}](images/{name})" for name in pictures),
        "First: what each turn led to, from the score of whoever it went on from to its own, and who went on from whom;"
        " blue leads to the best member, orange are other copies. Second: what is searched; blue on the way to the best"
        " member, grey all members, dashed the hand-made schedule of the parameters.",
        "## The way to the best member",
        _way(ancestry(turns, ended[0].member)),
        "## Copies",
        _copies(folder, turns),
    ]
    return "\n\n".join(parts) + "\n"


def _way(results: Sequence[Result]) -> str:
    names = list(results[0].order.values)
    rows = [["env steps", "member", *names, "m/s", "finished", "mean time"]]
    rows += [
        [
            f"{each.env_steps:,}",
            str(each.order.member),
            *(f"{each.order.values[name]:.3g}" for name in names),
            _number(_score(each), ".2f"),
            f"{each.finish_rate:.0%}",
            _number(each.mean_time_s, ".2f", " s"),
        ]
        for each in results
    ]
    return table(rows)


def _copies(folder: PopulationFolder, turns: Sequence[Sequence[Result]]) -> str:
    file = folder.population.file
    rows = [["after turn", "member", "went on from", "which was ahead by, m/s", *file.parameters]]
    for before, results in pairwise(turns):
        for order in (each.order for each in results if each.order.is_copied):
            ours, theirs = before[order.member].scores, before[order.parent].scores
            ahead = "it had diverged"
            if ours is not None and theirs is not None:
                low, high = gap(np.array(theirs), np.array(ours))
                ahead = f"{np.mean(theirs) - np.mean(ours):.2f} ({low:.2f} to {high:.2f})"
            changes = [
                f"{before[order.parent].order.values[name]:.3g} to {order.values[name]:.3g}" for name in file.parameters
            ]
            rows.append([str(order.turn - 1), str(order.member), str(order.parent), ahead, *changes])
    return table(rows) if len(rows) > 1 else "None: no gap was more than chance explains."


def _lineage(folder: PopulationFolder, theme: Theme) -> Figure:
    """Draws what each turn led to above, and below who went on from whom."""
    turns, file = folder.finished(), folder.population.file
    best = {id(each) for each in ancestry(turns, folder.ranking(len(turns) - 1)[0])}
    figure, (above, below) = plt.subplots(
        2, figsize=(9.6, 4.2 + 0.2 * file.members), layout="constrained", sharex=True, height_ratios=(3.0, 1.0)
    )
    for result in (each for results in turns for each in results):
        order = result.order
        is_best = id(result) in best
        colour = theme.blue if is_best else theme.orange if order.is_copied else theme.muted
        style = {"color": colour, "linewidth": 2.2 if is_best else 1.0, "zorder": 3 if is_best else 2}
        begin, end = (turn * file.turn_env_steps for turn in (order.turn, order.turn + 1))
        before = folder.result(order.parent, order.turn - 1) if order.turn else None
        _draw_score(above, (begin, end), (None if before is None else _score(before), _score(result)), style)
        below.plot([begin, end], [order.member] * 2, **style)
        if order.is_copied:
            below.plot([begin] * 2, [order.parent, order.member], "--", **style)
    above.set_ylabel("greedy races, m/s")
    below.set(xlabel="env steps of a member", ylabel="member", yticks=range(file.members))
    below.invert_yaxis()
    below.xaxis.set_major_formatter(EngFormatter())
    return figure


def _draw_score(
    axes: Axes, steps: tuple[int, int], scores: tuple[float | None, float | None], style: dict[str, Any]
) -> None:
    """Draws a turn as a line from the score that it went on from to its own."""
    before, score = scores
    if score is not None and before is not None:
        axes.plot(steps, [before, score], **style)
    if score is not None:
        axes.plot(steps[1:], [score], "o", markersize=4, color=style["color"], zorder=style["zorder"])


def _schedules(folder: PopulationFolder, theme: Theme) -> Figure:
    file, turns = folder.population.file, folder.finished()
    way = ancestry(turns, folder.ranking(len(turns) - 1)[0])
    figure, places = plt.subplots(
        len(file.parameters), figsize=(9.6, 0.6 + 2.6 * len(file.parameters)), layout="constrained", squeeze=False
    )
    edges = np.arange(len(turns) + 1) * file.turn_env_steps
    steps = np.linspace(0, file.env_steps, NUM_POINTS)
    for name, axes in zip(file.parameters, places[:, 0], strict=True):
        for member in range(file.members):
            values = [results[member].order.values[name] for results in turns]
            axes.stairs(values, edges, baseline=None, color=theme.muted, linewidth=0.8, alpha=0.6)
        found = [each.order.values[name] for each in way]
        axes.stairs(found, edges, baseline=None, color=theme.blue, linewidth=2.2, label="on the way to the best member")
        hand_made = [folder.population.hand_made[name].at(Moment(int(at), at / file.env_steps)) for at in steps]
        axes.plot(steps, hand_made, "--", color=theme.orange, linewidth=1.8, label="hand-made")
        if min(*file.parameters[name].range, *hand_made) > 0.0 and not file.parameters[name].from_one:
            axes.set_yscale("log")
        axes.set_ylabel(name)
        axes.xaxis.set_major_formatter(EngFormatter())
    places[-1, 0].set_xlabel("env steps of a member")
    places[0, 0].legend(loc="best", fontsize=8.5)
    return figure


def _score(result: Result) -> float | None:
    return None if result.scores is None else float(np.mean(result.scores))


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"
