"""One self-contained page about an evaluation: opens offline, asks no server for anything."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from rulka.evaluation.results import finish_times_s
from rulka.evaluation.summary import Evaluation, Summary, compare, summarise
from rulka.reference.medals import medal_won, medals_of
from rulka.report.durations import StageDuration
from rulka.report.facts import Fact
from rulka.report.style import STYLE
from rulka.report.tables import NONE, durations_table, escaped, every_race_table, percent, results_table, seconds

MAX_VIDEO_BYTES = 8_000_000
"""A larger video stays a file beside the page."""


@dataclass(frozen=True)
class Plot:
    """A plot in both themes.

    Attributes:
        title: heading above it.
        caption: how to read it.
        light: PNG for light pages.
        dark: PNG for dark pages.
        is_small: whether it should not fill the page's width.
    """

    title: str
    caption: str
    light: bytes
    dark: bytes
    is_small: bool = False


@dataclass(frozen=True)
class Report:
    """Everything the page shows.

    Attributes:
        evaluation: all races.
        seed: of the bootstrap intervals.
        plots: in the order of the page.
        video: MP4 file; None leaves it out.
        video_caption: what the video shows.
        facts: what was used.
        durations: of the stages, may be empty.
        is_from_game: whether demonstrations were driven in the game, not in the simulator.
        parameters: all parameters as text, may be empty.
    """

    evaluation: Evaluation
    seed: int
    plots: list[Plot]
    video: Path | None
    video_caption: str
    facts: list[Fact]
    durations: list[StageDuration]
    is_from_game: bool
    parameters: str


def write_report(path: Path, report: Report) -> None:
    """Writes the page."""
    path.write_text(render_report(report), encoding="utf-8")


def render_report(report: Report) -> str:
    """Returns the page as HTML."""
    evaluation = report.evaluation
    title = headline(evaluation, report.seed)
    created = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    body = [
        "<header>",
        '<p class="eyebrow">Rulka evaluation report</p>',
        f"<h1>{escaped(title)}</h1>",
        f'<p class="lede">{escaped(_lede(evaluation))}</p>',
        "</header>",
        _tiles(evaluation, report.seed),
        _video(report),
        results_table(evaluation, report.seed),
        *(_plot(plot) for plot in report.plots),
        _used(report.facts),
        durations_table(report.durations),
        _limits(report.is_from_game),
        _details(report),
        f"<footer>Made by the stage <code>evaluate</code>, {created}.</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Rulka: {escaped(evaluation.track.name)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def headline(evaluation: Evaluation, seed: int) -> str:
    """Returns the result in one sentence, whatever it is."""
    agent = evaluation.contestants[0]
    summary, versus = summarise(agent.races, seed), compare(agent.races, evaluation.demonstrations)
    first = f"The agent finished {_how_many(summary)} races"
    if versus is None or versus.gain_on_median_s is None or versus.gain_on_best_s is None:
        return (
            f"{first}." if summary.num_finished else f"{first}; it came {summary.mean_progress_m:.0f} m far on average."
        )
    second = _versus(versus.gain_on_median_s, "the median demonstration")
    third = _versus(versus.gain_on_best_s, "the best")
    return f"{first}; its median was {second}, its best {third}."


def _how_many(summary: Summary) -> str:
    if summary.num_finished == summary.num_races:
        return f"all {summary.num_races}"
    return f"{summary.num_finished or 'none'} of {summary.num_races}"


def _versus(gain_s: float, whom: str) -> str:
    if abs(gain_s) < 0.005:
        return f"as fast as {whom}"
    return f"{abs(gain_s):.2f} s {'faster' if gain_s > 0 else 'slower'} than {whom}"


def _lede(evaluation: Evaluation) -> str:
    track, agent = evaluation.track, evaluation.contestants[0]
    return (
        f"{agent.label} on {track.name}, {track.length_m:.0f} m, {len(agent.races)} greedy races from fixed starts "
        f"it did not choose, beside {len(evaluation.demonstrations)} demonstrations."
    )


def _tiles(evaluation: Evaluation, seed: int) -> str:
    agent = evaluation.contestants[0]
    summary, versus = summarise(agent.races, seed), compare(agent.races, evaluation.demonstrations)
    demonstrated_s = finish_times_s(evaluation.demonstrations)
    best, middle = NONE, NONE
    if demonstrated_s:
        best, middle = seconds(min(demonstrated_s)), seconds(float(np.median(demonstrated_s)))
    tiles = [
        ("Races finished", f"{100 * summary.finish_rate:.0f} %", f"interval {percent(summary.finish_rate_interval)}"),
        ("Best time", seconds(summary.best_time_s), f"best demonstration {best}"),
        ("Median time", seconds(summary.median_time_s), f"median demonstration {middle}"),
    ]
    if versus is not None:
        share = f"{versus.num_faster_than_median} of {versus.num_races}"
        interval = percent(versus.faster_than_median_interval)
        tiles.append(("Beat the median", share, f"interval {interval}"))
    tiles += _reference_tiles(evaluation, summary)
    cells = (
        f'<div><dt>{escaped(label)}</dt><dd><span class="number">{escaped(number)}</span>'
        f'<span class="beside">{escaped(beside)}</span></dd></div>'
        for label, number, beside in tiles
    )
    return f'<dl class="tiles">{"".join(cells)}</dl>'


def _reference_tiles(evaluation: Evaluation, summary: Summary) -> list[tuple[str, str, str]]:
    """Returns tiles that say how far the agent is from the reference lap; none where there is no lap."""
    if evaluation.reference is None or evaluation.reference.time_ms is None:
        return []
    medals = medals_of(evaluation.reference.time_ms)
    ratio = evaluation.ratio_to_reference(summary.median_time_s)
    share = NONE if ratio is None else f"+{100 * (ratio - 1):.1f} %"
    best_ms = np.inf if summary.best_time_s is None else summary.best_time_s * 1000.0
    limits = ", ".join(f"{name.removesuffix('_ms')} {seconds(ms / 1000.0)}" for name, ms in medals._asdict().items())
    return [
        ("Behind the reference", share, f"reference lap {seconds(medals.author_ms / 1000.0)}"),
        ("Best medal", medal_won(best_ms, medals) or "none", limits),
    ]


def _video(report: Report) -> str:
    if report.video is None:
        return ""
    content = report.video.read_bytes()
    source = report.video.name
    if len(content) <= MAX_VIDEO_BYTES:
        source = f"data:video/mp4;base64,{base64.b64encode(content).decode()}"
    return (
        f'<figure id="video"><video controls muted playsinline preload="auto" src="{source}"></video>'
        f"<figcaption>{escaped(report.video_caption)}</figcaption></figure>"
    )


def _plot(plot: Plot) -> str:
    light, dark = (f"data:image/png;base64,{base64.b64encode(png).decode()}" for png in (plot.light, plot.dark))
    css = "plot small" if plot.is_small else "plot"
    return (
        f'<h2>{escaped(plot.title)}</h2><figure><div class="{css}"><picture>'
        f'<source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="{escaped(plot.title)}"></picture></div>'
        f"<figcaption>{escaped(plot.caption)}</figcaption></figure>"
    )


def _used(facts: Sequence[Fact]) -> str:
    if not facts:
        return ""
    rows = "".join(f"<dt>{escaped(fact.label)}</dt><dd>{escaped(fact.text)}</dd>" for fact in facts)
    return f'<h2 id="used">What was used</h2><dl class="facts">{rows}</dl>'


def _limits(is_from_game: bool) -> str:
    points = [
        "One agent from one training seed: the intervals say how sure its races are, not how lucky its training was. "
        "A claim about a method needs several seeds.",
        "Races differ only in their starts; the simulator itself is deterministic.",
        "The rank-sum test compares all races with all demonstrations, unfinished ones counted as slowest.",
    ]
    if is_from_game:
        points.append(
            "The demonstrations were driven in the game. The simulator is not the game: its car accelerates, slides "
            "and lands differently, so times of agent and players are not on equal terms."
        )
    items = "".join(f"<li>{escaped(point)}</li>" for point in points)
    return f'<h2 id="limits">What this does not show</h2><ul>{items}</ul>'


def _details(report: Report) -> str:
    blocks = [("Every race", every_race_table(report.evaluation))]
    if report.parameters:
        blocks.append(("All parameters", f"<pre>{escaped(report.parameters)}</pre>"))
    parts = "".join(f"<details><summary>{title}</summary>{content}</details>" for title, content in blocks)
    return f'<h2 id="details">Details</h2>{parts}'
