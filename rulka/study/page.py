"""The page of an experiment: what was asked, what was run, a table, curves with bands, and who beats whom how often."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, PercentFormatter, ScalarFormatter

from rulka.evaluation.metrics import TRACK_HEAD
from rulka.outputs import new_file
from rulka.provenance import current_commit, library_versions
from rulka.report.theme import LIGHT, Theme, to_png
from rulka.statistics import Interval
from rulka.study.plan import ExperimentFile, Plan
from rulka.study.results import SCORE, Arrival, Measures, Results, Summary
from rulka.study.statistics import performance_profile

CURVES = (("finish_rate", "training races finished"), ("check_mean_progress_m", "greedy checks: progress (m)"))
AXES = (("env_steps", "env steps"), ("cpu_minutes", "CPU minutes, with what came before"))
DASHES = ("-", "--", "-.", ":")
ANY_FINISH = np.finfo(np.float64).tiny
"""A pace that every greedy check has in which a race finished."""
MEDIANS = "Medians and ranges of the runs that got there; the others never did."
NUM_POINTS = 60
"""Points of a curve: runs log at times of their own, and are compared at common ones."""


def write_page(plan: Plan, results: Results | Measures, page: Path, command: str) -> None:
    """Writes the page, and of an experiment that races its two pictures beside it.

    Args:
        plan: what was to be done.
        results: what came of it.
        page: Markdown file; the pictures go to the folder `images` beside it.
        command: that makes this page.

    Raises:
        OutputError: if one cannot be written.
    """
    if isinstance(results, Measures):
        with new_file(page) as beside:
            beside.write_text(_text_of_measures(plan, results, command), encoding="utf-8")
        return
    pictures = {
        f"{plan.name}-curves.png": to_png(lambda theme: _curves(results, theme), LIGHT),
        f"{plan.name}-profile.png": to_png(lambda theme: _profile(results, theme), LIGHT),
    }
    for name, picture in pictures.items():
        (page.parent / "images").mkdir(exist_ok=True)
        with new_file(page.parent / "images" / name) as beside:
            beside.write_bytes(picture or b"")
    with new_file(page) as beside:
        beside.write_text(_text(plan, results, command, list(pictures)), encoding="utf-8")


def format_summaries(summaries: Sequence[Summary]) -> str:
    """Returns the table of variants, as Markdown."""
    head = "variant, runs, lap share (IQM), beats the baseline, finished, median time, kept, env steps, CPU min, before"
    rows = [head.split(", ")]
    rows += [
        [
            one.variant,
            str(one.num_runs),
            f"{one.score:.3f} ({_range(one.score_interval)})",
            "" if one.improvement is None else f"{one.improvement:.2f} ({_range(one.improvement_interval)})",
            f"{one.finish_rate:.0%}",
            "-" if one.median_time_s is None else f"{one.median_time_s:.2f} s",
            "-" if one.kept is None else f"{one.kept:.2f}",
            f"{one.env_steps:,.0f}",
            f"{one.cpu_minutes:.1f}",
            f"{one.cpu_minutes_before:.1f}",
        ]
        for one in summaries
    ]
    return table(rows)


def format_measures(results: Measures) -> str:
    """Returns the table of variants, mean and range of each measure over seeds, as Markdown."""
    names = [str(name) for name in results.rows.columns[2:]]
    rows = [["variant", "runs", *names]]
    for variant in results.rows["variant"].unique():
        runs = results.rows[results.rows["variant"] == variant]
        rows.append([variant, str(len(runs)), *(_spread(runs[name].tolist()) for name in names)])
    return table(rows)


def _spread(values: Sequence[float]) -> str:
    mean = sum(values) / len(values)
    return f"{mean:.4g}" if len(values) == 1 else f"{mean:.4g} ({min(values):.4g} to {max(values):.4g})"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows of cells, the first of them the head, as a table in Markdown."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def _range(interval: Interval | None) -> str:
    return "" if interval is None else f"{interval.low:.3f} to {interval.high:.3f}"


def _head(file: ExperimentFile, command: str) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in library_versions().items() if version)
    return [
        f"# {file.title}",
        file.question,
        f"Made by `{command}` at commit {current_commit() or 'unknown'}; {versions}. {file.cost}",
        "## Variants",
        _variants(file),
        "## Results",
    ]


def _missing(results: Results | Measures) -> list[str]:
    names = ", ".join(f"`{name}`" for name in results.missing)
    return [f"Not come to their end: {names}."] if names else []


def _text_of_measures(plan: Plan, results: Measures, command: str) -> str:
    file = plan.file
    rows = [[str(name) for name in results.rows.columns]]
    rows += [
        [str(row["variant"]), str(row["seed"]), *(f"{row[name]:.4g}" for name in file.measures)]
        for row in results.rows.to_dict("records")
    ]
    parts = [
        *_head(file, command),
        format_measures(results),
        f"From the `metrics.json` of stage `{file.last_stage}`: mean over seeds, and their range.",
        *_missing(results),
        "## Every run",
        table(rows),
    ]
    return "\n\n".join(parts) + "\n"


def _text(plan: Plan, results: Results, command: str, pictures: Sequence[str]) -> str:
    file = plan.file
    parts = [
        *_head(file, command),
        format_summaries(results.summaries(file.baseline)),
        "Lap share: mean over a run's races of the reference lap's time over theirs, 0 where the race was not finished;"
        " over runs their interquartile mean. In brackets 95 % bootstrap intervals over runs, which few runs make wide."
        f" *Beats the baseline*: the chance that a run has a higher lap share than one of `{file.baseline}`. *Kept*:"
        " the lowest finish rate of the greedy checks in the first tenth of training, in units of that of the weights"
        " that it began with; the least of the runs. *CPU min* are those of training; *before*, those of the stages"
        " before it that an agent takes something over from, recordings and frames included.",
        *_missing(results),
        *_first_finishes(results, file.baseline),
        *_arrivals(results, file.baseline),
        *(f"![{plan.name}](images/{name})" for name in pictures),
        "## Every run",
        _runs(results.rows),
        *_by_track(results.tracks),
    ]
    return "\n\n".join(parts) + "\n"


def _arrivals(results: Results, baseline: str) -> list[str]:
    """Returns the part about when the variants were as good as the baseline; nothing where that never finishes."""
    level = results.level(baseline)
    if level == 0.0:
        return []
    return [
        f"## As good as `{baseline}`",
        _when(results.arrivals(level), baseline),
        f"When a greedy check of a run first came to what the best one of a run of `{baseline}` comes to (the share"
        f" finished over their mean time; median over its runs). {MEDIANS}",
    ]


def _first_finishes(results: Results, baseline: str) -> list[str]:
    """Returns the part about when a greedy check first finished; nothing where none did."""
    arrivals = results.arrivals(ANY_FINISH)
    if not any(one.env_steps for one in arrivals):
        return []
    text = f"When a race of a run's greedy checks first finished; the first check is of what it began with. {MEDIANS}"
    return ["## The first finish", _when(arrivals, baseline), text]


def _when(arrivals: Sequence[Arrival], baseline: str) -> str:
    own = next((statistics.median(one.env_steps) for one in arrivals if one.variant == baseline and one.env_steps), 0.0)
    rows = [["variant", "runs that got there", "env steps", "of the baseline's", "CPU min, with what came before"]]
    for one in arrivals:
        there = f"{len(one.env_steps)} of {one.num_runs}"
        share = f"{statistics.median(one.env_steps) / own:.2f}" if own and one.env_steps else "-"
        rows.append([one.variant, there, _middle(one.env_steps, ",.0f"), share, _middle(one.cpu_minutes, ".1f")])
    return table(rows)


def _middle(values: Sequence[float], form: str) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def _by_track(rows: pd.DataFrame) -> list[str]:
    """Returns the part about tracks; nothing where there is but one."""
    if len(set(rows["track"].tolist())) < 2:
        return []
    names = ["variant", "seed", *TRACK_HEAD]
    return ["## By track", table([names, *(list(map(str, row)) for row in rows[names].to_numpy().tolist())])]


def _variants(file: ExperimentFile) -> str:
    shared = file.overrides | ({} if file.budget is None else {"budget": file.budget.model_dump(exclude_none=True)})
    rows = [["variant", "what differs from `params.yaml`"], ["*all*", _inline(shared)]]
    rows += [[name, _inline(overlay)] for name, overlay in file.variants.items()]
    return table(rows)


def _inline(value: object) -> str:
    return f"`{yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False).strip()}`" if value else ""


def _runs(rows: pd.DataFrame) -> str:
    texts = [
        [
            row["variant"],
            str(row["seed"]),
            f"{row[SCORE]:.3f}",
            f"{row['finish_rate']:.0%}",
            "-" if pd.isna(row["median_time_s"]) else f"{row['median_time_s']:.2f} s",
            "-" if pd.isna(row["kept"]) else f"{row['kept']:.2f}",
            f"{row['env_steps']:,}",
            f"{row['gradient_steps']:,}",
            f"{row['cpu_minutes']:.1f}",
            f"{row['cpu_minutes_before']:.1f}",
            f"{row['minutes']:.1f}",
        ]
        for row in rows.to_dict("records")
    ]
    head = "variant, seed, lap share, finished, median, kept, env steps, gradient steps, CPU min, before, minutes"
    return table([head.split(", "), *texts])


def _curves(results: Results, theme: Theme) -> Figure:
    figure, places = plt.subplots(
        len(CURVES), len(AXES), figsize=(9.6, 0.7 + 2.4 * len(CURVES)), layout="constrained", sharex="col", sharey="row"
    )
    for (name, label), row in zip(CURVES, places, strict=True):
        row[0].set_ylabel(label)
        for (axis, _), axes in zip(AXES, row, strict=True):
            _draw_curves(axes, results.curves, axis, name, theme)
    for (axis, label), axes in zip(AXES, places[-1], strict=True):
        axes.set_xlabel(label)
        axes.xaxis.set_major_formatter(ScalarFormatter() if axis == "cpu_minutes" else EngFormatter())
    places[0, 0].yaxis.set_major_formatter(PercentFormatter(1.0))
    # Below, as the curves of many variants leave no room.
    named = places[0, 0].get_legend_handles_labels()
    figure.legend(*named, loc="outside lower center", ncols=min(5, len(named[1])), fontsize=8.5)
    return figure


def _draw_curves(axes: Axes, curves: pd.DataFrame, axis: str, name: str, theme: Theme) -> None:
    """Draws the mean over seeds of each variant, and the range of its seeds as a band."""
    if name not in curves:
        return
    known = curves.dropna(subset=[axis, name])
    colours = cycle((theme.blue, theme.orange, theme.green, theme.pink, theme.muted))
    for variant, colour, dash in zip(curves["variant"].unique(), colours, cycle(DASHES), strict=False):
        runs = [run for _, run in known[known["variant"] == variant].groupby("seed") if len(run)]
        if not runs:
            continue
        end = min(run[axis].max() for run in runs)
        x = np.linspace(max(run[axis].min() for run in runs), end, NUM_POINTS)
        y = np.stack([np.interp(x, run[axis], run[name]) for run in runs])
        axes.plot(x, y.mean(axis=0), dash, color=colour, label=variant)
        axes.fill_between(x, y.min(axis=0), y.max(axis=0), color=colour, alpha=0.15, linewidth=0)


def _profile(results: Results, theme: Theme) -> Figure:
    figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    thresholds = np.linspace(0.0, 1.0, 201)
    colours = cycle((theme.blue, theme.orange, theme.green, theme.pink, theme.muted))
    for variant, colour, dash in zip(results.rows["variant"].unique(), colours, cycle(DASHES), strict=False):
        axes.step(
            thresholds, performance_profile(results.scores(variant), thresholds), dash, color=colour, label=variant
        )
    axes.set(xlabel="lap share", ylabel="runs above it")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend(loc="best", fontsize=8.5)
    return figure
