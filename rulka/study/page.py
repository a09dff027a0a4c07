"""Markdown pages: tables, and the page of an experiment with a summary, curves with bands and every run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, PercentFormatter, ScalarFormatter
from numpy.typing import NDArray

from rulka.evaluation.statistics import Interval
from rulka.params.reader import one_line
from rulka.report.theme import BLUE, GREEN, MUTED, ORANGE, PINK, WIDTH_IN, Draw, to_png
from rulka.stages.outputs import new_file
from rulka.stages.provenance import current_commit, library_versions
from rulka.study.plan import ExperimentFile, Plan, StudyFile
from rulka.study.results import SCORE, Results, column

Columns = Mapping[str, tuple[str, str]]
"""Maps a row's key to the column's heading and value format; None and NaN are "-"."""
SUMMARY: Columns = {
    "variant": ("variant", "{}"),
    "num_runs": ("runs", "{}"),
    "score": ("lap share", "{}"),
    "improvement": ("beats the baseline", "{}"),
    "finish_rate": ("finished", "{:.0%}"),
    "median_time_s": ("median time", "{:.2f} s"),
    "kept": ("kept", "{:.2f}"),
    "env_steps": ("env steps", "{:,.0f}"),
    "cpu_minutes": ("CPU min", "{:.1f}"),
    "cpu_minutes_before": ("before", "{:.1f}"),
}
RUNS: Columns = {
    "variant": ("variant", "{}"),
    "seed": ("seed", "{}"),
    SCORE: ("lap share", "{:.3f}"),
    "finish_rate": ("finished", "{:.0%}"),
    "median_time_s": ("median", "{:.2f} s"),
    "kept": ("kept", "{:.2f}"),
    "env_steps": ("env steps", "{:,}"),
    "gradient_steps": ("gradient steps", "{:,}"),
    "cpu_minutes": ("CPU min", "{:.1f}"),
    "cpu_minutes_before": ("before", "{:.1f}"),
    "minutes": ("minutes", "{:.1f}"),
    "repeats": ("repeats", "{}"),
}
TRACKS: Columns = {
    "variant": ("variant", "{}"),
    "driver": ("driver", "{}"),
    "name": ("track", "{}"),
    "length_m": ("length", "{:.0f} m"),
    "trained_on": ("trained on", "{}"),
    "finished": ("finished", "{}"),
    "races": ("of", "{}"),
    "median_time_s": ("median", "{:.2f} s"),
    "times_reference": ("x reference", "{:.3f}"),
}
CURVES = (("finish_rate", "training races finished"), ("check_mean_progress_m", "greedy checks: progress (m)"))
AXES = (("env_steps", "env steps"), ("cpu_minutes", "CPU minutes, earlier stages included"))
DASHES = ("-", "--", "-.", ":")
ANY_FINISH = np.finfo(np.float64).tiny
"""A mean pace that every greedy check with a finished race reaches."""
NUM_POINTS = 60
"""Points of a curve: runs log at different times, and are interpolated at common ones."""


# Any page -------------------------------------------------------------------------------------------------------------


def table(rows: Iterable[Mapping[Any, Any]], columns: Columns) -> str:
    """Formats rows as a Markdown table."""
    lines = [[head for head, _ in columns.values()]]
    lines += [[_cell(row[key], form) for key, (_, form) in columns.items()] for row in rows]
    texts = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([texts[0], "|" + "---|" * len(columns), *texts[1:]])


def _cell(value: Any, form: str) -> str:
    return "-" if value is None or value != value else form.format(value)


def write_page(page: Path, parts: Sequence[str], pictures: Mapping[str, Draw]) -> None:
    """Writes a page, and its pictures to the folder `images` next to it.

    Args:
        page: Markdown file.
        parts: paragraphs, tables and headings.
        pictures: functions that draw them, by file name.

    Raises:
        UserError: if a file cannot be written.
    """
    for name, draw in pictures.items():
        (page.parent / "images").mkdir(exist_ok=True)
        with new_file(page.parent / "images" / name) as beside:
            beside.write_bytes(to_png(draw) or b"")
    with new_file(page) as beside:
        beside.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def head_of(file: StudyFile, command: str) -> list[str]:
    """Returns the head of a page: title, question, and the command and versions that produced it."""
    versions = ", ".join(f"{name} {version}" for name, version in library_versions().items() if version)
    made = f"Made by `{command}` at commit {current_commit() or 'unknown'}; {versions}. {file.cost}"
    return [f"# {file.title}", file.question, made]


def inline(value: object) -> str:
    """Formats parameters as one line of YAML in backticks; empty if there are none."""
    return f"`{one_line(value)}`" if value else ""


# The page of an experiment --------------------------------------------------------------------------------------------


def format_results(plan: Plan, results: Results) -> str:
    """Returns the Markdown table of variants; measures are given as mean and range over seeds."""
    if plan.file.measures:
        groups = results.rows.groupby("variant", sort=False)
        rows = [
            {"variant": variant, "runs": len(runs)} | {name: _spread(column(runs, name)) for name in plan.file.measures}
            for variant, runs in groups
        ]
        return table(rows, {name: (name, "{}") for name in ("variant", "runs", *plan.file.measures)})
    summaries = [
        one | {"score": _score(one), "improvement": _improvement(one)} for one in results.summaries(plan.file.baseline)
    ]
    return table(summaries, SUMMARY)


def write_experiment(plan: Plan, results: Results, page: Path, command: str) -> None:
    """Writes the page of an experiment.

    Args:
        plan: plan of the experiment.
        results: results of its finished cells.
        page: Markdown file; pictures go to the folder `images` next to it.
        command: command that writes this page.

    Raises:
        UserError: if a file cannot be written.
    """
    file = plan.file
    missing = ", ".join(f"`{name}`" for name in results.missing)
    parts = [
        *head_of(file, command),
        "## Variants",
        _variants(file),
        "## Results",
        format_results(plan, results),
        _explanation(file),
        *([f"Unfinished cells: {missing}."] if missing else []),
    ]
    columns, pictures = RUNS, dict[str, Draw]()
    if file.measures:
        columns = {name: RUNS[name] for name in ("variant", "seed")} | {
            name: (name, "{:.4g}") for name in file.measures
        }
    else:
        picture = f"{plan.name}-curves.png"
        pictures[picture] = lambda: _curves(results)
        parts += [*_arrivals(results, file.baseline), f"![{plan.name}](images/{picture})"]
    parts += ["## Every run", table(results.rows.to_dict("records"), columns)]
    if not file.measures and len(set(results.tracks["uid"].tolist())) > 1:
        parts += ["## By track", *_by_track(results.tracks)]
    write_page(page, parts, pictures)


def _by_track(tracks: pd.DataFrame) -> list[str]:
    """Returns finish rates of agents and cloned policies: over all held-out tracks together, and on each track."""
    unseen = pd.DataFrame(tracks[~tracks["trained_on"]])
    sums = unseen.groupby(["variant", "driver", "seed"], sort=False).agg({"finished": "sum", "races": "sum"})
    sums = sums.reset_index()
    sums["share"] = column(sums, "finished") / column(sums, "races")
    together = [
        {"variant": variant, "driver": driver, "finished": _spread(column(runs, "share"), "{:.1%}")}
        for variant, of_variant in sums.groupby("variant", sort=False)
        for driver, runs in of_variant.groupby("driver", sort=False)
    ]
    pooled = tracks.groupby(["variant", "driver", "uid", "name", "length_m", "trained_on"], sort=False).agg(
        {"finished": "sum", "races": "sum", "median_time_s": "median", "times_reference": "median"}
    )
    rows = pooled.reset_index().assign(trained_on=lambda each: each["trained_on"].map({True: "yes", False: "no"}))
    summary = [
        "Finish rate over all tracks that are not in `train.tracks`: mean over seeds, range in brackets. *Cloned*: the"
        " policy of stage `clone`.",
        table(together, {name: (name, "{}") for name in ("variant", "driver", "finished")}),
    ]
    return [
        *(summary if together else []),
        "Races of all seeds on each track. Times are medians over runs of each run's median time; runs without a"
        " finished race have none.",
        table(rows.to_dict("records"), TRACKS),
    ]


def _variants(file: ExperimentFile) -> str:
    shared = file.overrides | ({} if file.budget is None else {"budget": file.budget.model_dump(exclude_none=True)})
    overlays = {"*all*": shared} | file.variants
    rows = [{"variant": name, "overlay": inline(overlay)} for name, overlay in overlays.items()]
    return table(rows, {"variant": ("variant", "{}"), "overlay": ("difference from `params.yaml`", "{}")})


def _explanation(file: ExperimentFile) -> str:
    if file.measures:
        return (
            f"From the `metrics.json` of stage `{file.last_stage}`: mean over seeds, range in brackets; runs without a"
            " number (-) are left out."
        )
    return (
        "*Lap share*: reference lap time divided by race time, 0 for unfinished races; mean over races and runs."
        " Brackets: 95 % interval over runs (Student's t), none where a single run or equal ones tell no spread."
        f" *Beats the baseline*: share of pairs in which a run has a higher lap share than a run of `{file.baseline}`,"
        " with the p-value of a permutation test: with three runs each at least 0.10, so no verdict. *Kept*:"
        " lowest finish rate in the first half of training, divided by the initial weights' finish rate; minimum over"
        " runs. *CPU min*: CPU minutes of training. *Before*: CPU minutes of the earlier stages that the agent depends"
        " on, recordings and frames included."
    )


def _arrivals(results: Results, baseline: str) -> list[str]:
    """Returns the sections on the first finish and the first check as good as the baseline's, if any run reached it."""
    first = "First greedy check with a finished race; the first check is of the initial weights."
    as_good = (
        f"First greedy check as good as the best check of `{baseline}`: mean pace over its races, 0 for unfinished"
        " ones, median over its runs."
    )
    parts = []
    for title, level, text in (
        ("The first finish", ANY_FINISH, first),
        (f"As good as `{baseline}`", results.level(baseline), as_good),
    ):
        if level > 0.0 and not results.steps_to_level(level).empty:
            told = f"{text} Medians and ranges over the runs that reached it."
            parts += [f"## {title}", _when(results, level, baseline), told]
    return parts


def _when(results: Results, level: float, baseline: str) -> str:
    arrived, num_runs = results.steps_to_level(level), results.rows["variant"].value_counts(sort=False)
    ours = column(arrived[arrived["variant"] == baseline], "env_steps")
    own = np.median(ours) if len(ours) else 0.0
    rows = []
    for variant in num_runs.index:
        runs = arrived[arrived["variant"] == variant]
        there = f"{len(runs)} of {num_runs[variant]}"
        steps, minutes = column(runs, "env_steps"), column(runs, "cpu_minutes")
        share = np.median(steps) / own if own and len(steps) else None
        row = {"variant": variant, "there": there, "steps": _middle(steps, ",.0f")}
        rows.append(row | {"share": share, "minutes": _middle(minutes, ".1f")})
    columns = {
        "variant": ("variant", "{}"),
        "there": ("runs that reached it", "{}"),
        "steps": ("env steps", "{}"),
        "share": ("relative to the baseline", "{:.2f}"),
        "minutes": ("CPU min, earlier stages included", "{}"),
    }
    return table(rows, columns)


def _middle(values: NDArray[np.float64], form: str) -> str | None:
    if not len(values):
        return None
    ends = f" ({values.min():{form}} to {values.max():{form}})" if len(values) > 1 else ""
    return f"{np.median(values):{form}}{ends}"


def _spread(values: NDArray[np.float64], form: str = "{:.4g}") -> str:
    values = values[np.isfinite(values)]
    if not len(values):
        return "-"
    mean = form.format(values.mean())
    return mean if len(values) == 1 else f"{mean} ({form.format(values.min())} to {form.format(values.max())})"


def _score(summary: Mapping[str, Any]) -> str:
    """Formats the score of a summary with its interval, if it has one; no lap share is below 0."""
    interval: Interval | None = summary["score_interval"]
    ends = f" ({max(0.0, interval.low):.3f} to {interval.high:.3f})" if interval else ""
    return f"{summary['score']:.3f}{ends}"


def _improvement(summary: Mapping[str, Any]) -> str:
    """Formats an improvement with its p-value; empty for the baseline itself, and for single runs."""
    share: float | None = summary["improvement"]
    return "" if share is None else f"{share:.2f} (p = {summary['improvement_p']:.2f})"


def _curves(results: Results) -> Figure:
    size = (WIDTH_IN, 0.7 + 2.4 * len(CURVES))
    figure, places = plt.subplots(
        len(CURVES), len(AXES), figsize=size, layout="constrained", sharex="col", sharey="row"
    )
    for (name, label), row in zip(CURVES, places, strict=True):
        row[0].set_ylabel(label)
        for (axis, _), axes in zip(AXES, row, strict=True):
            _draw_curves(axes, results.curves, axis, name)
    for (axis, label), axes in zip(AXES, places[-1], strict=True):
        axes.set_xlabel(label)
        axes.xaxis.set_major_formatter(ScalarFormatter() if axis == "cpu_minutes" else EngFormatter())
    places[0, 0].yaxis.set_major_formatter(PercentFormatter(1.0))
    # The legend goes below: the curves of many variants leave no room.
    named = places[0, 0].get_legend_handles_labels()
    figure.legend(*named, loc="outside lower center", ncols=min(5, len(named[1])), fontsize=8.5)
    return figure


def _draw_curves(axes: Axes, curves: pd.DataFrame, axis: str, name: str) -> None:
    """Draws the mean over seeds of each variant, with the range over seeds as a band."""
    if name not in curves:
        return
    known = curves.dropna(subset=[axis, name])
    colours = cycle((BLUE, ORANGE, GREEN, PINK, MUTED))
    for variant, colour, dash in zip(curves["variant"].unique(), colours, cycle(DASHES), strict=False):
        runs = [run for _, run in known[known["variant"] == variant].groupby("seed")]
        if not runs:
            continue
        end = min(run[axis].max() for run in runs)
        x = np.linspace(max(run[axis].min() for run in runs), end, NUM_POINTS)
        y = np.stack([np.interp(x, run[axis], run[name]) for run in runs])
        axes.plot(x, y.mean(axis=0), dash, color=colour, label=variant)
        axes.fill_between(x, y.min(axis=0), y.max(axis=0), color=colour, alpha=0.15, linewidth=0)
