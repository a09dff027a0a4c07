"""One self-contained page about an evaluation: opens offline, asks no server for anything."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from rulka.evaluation.durations import StageDuration
from rulka.evaluation.facts import Fact
from rulka.evaluation.result import finish_times_s
from rulka.evaluation.statistics import Interval
from rulka.evaluation.style import STYLE
from rulka.evaluation.summary import Comparison, Contestant, Evaluation, Summary, compare, summarise
from rulka.evaluation.theme import DARK, LIGHT

MAX_VIDEO_BYTES = 8_000_000
"""A larger video stays a file beside the page."""
NONE = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
THIN = "\N{NO-BREAK SPACE}"


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
        f"<h1>{_text(title)}</h1>",
        f'<p class="lede">{_text(_lede(evaluation))}</p>',
        "</header>",
        _tiles(evaluation, report.seed),
        _video(report),
        _results(evaluation, report.seed),
        *(_plot(plot) for plot in report.plots),
        _used(report.facts),
        _durations(report.durations),
        _limits(report.is_from_game),
        _details(report),
        f"<footer>Made by the stage <code>evaluate</code>, {created}.</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Rulka: {_text(evaluation.track.name)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def headline(evaluation: Evaluation, seed: int) -> str:
    """Returns the result in one sentence, whatever it is."""
    agent = evaluation.contestants[0]
    summary, versus = summarise(agent.races, seed), compare(agent.races, evaluation.demonstrations)
    first = f"The agent finished {_how_many(summary)} races"
    if versus is None or versus.gain_on_median_s is None or versus.gain_on_best_s is None:
        return f"{first}."
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
        best, middle = _seconds(min(demonstrated_s)), _seconds(float(np.median(demonstrated_s)))
    tiles = [
        ("Races finished", f"{100 * summary.finish_rate:.0f} %", f"interval {_percent(summary.finish_rate_interval)}"),
        ("Best time", _seconds(summary.best_time_s), f"best demonstration {best}"),
        ("Median time", _seconds(summary.median_time_s), f"median demonstration {middle}"),
    ]
    if versus is not None:
        share = f"{versus.num_faster_than_median} of {versus.num_races}"
        interval = _percent(versus.faster_than_median_interval)
        tiles.append(("Beat the median", share, f"interval {interval}"))
    cells = (
        f'<div><dt>{_text(label)}</dt><dd><span class="number">{_text(number)}</span>'
        f'<span class="beside">{_text(beside)}</span></dd></div>'
        for label, number, beside in tiles
    )
    return f'<dl class="tiles">{"".join(cells)}</dl>'


def _video(report: Report) -> str:
    if report.video is None:
        return ""
    content = report.video.read_bytes()
    source = report.video.name
    if len(content) <= MAX_VIDEO_BYTES:
        source = f"data:video/mp4;base64,{base64.b64encode(content).decode()}"
    return (
        f'<figure id="video"><video controls muted playsinline preload="auto" src="{source}"></video>'
        f"<figcaption>{_text(report.video_caption)}</figcaption></figure>"
    )


def _results(evaluation: Evaluation, seed: int) -> str:
    rows = [_contestant_row(c, evaluation, seed) for c in evaluation.contestants]
    rows += _demonstration_rows(evaluation, seed)
    head = ("", "finished", "best", "median", "against median demonstration", "faster than that", "mean progress")
    cells = "".join(f"<th>{_text(name)}</th>" for name in head)
    return (
        '<h2 id="results">Results</h2>'
        '<p class="note">Times are of finished races alone. Small print: 95 % intervals, Wilson for rates, '
        "bootstrap for medians.</p>"
        f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _contestant_row(contestant: Contestant, evaluation: Evaluation, seed: int) -> str:
    summary = summarise(contestant.races, seed)
    versus = compare(contestant.races, evaluation.demonstrations)
    name = f"{_swatch(contestant, evaluation)}{_text(contestant.label)}"
    css = ' class="agent"' if contestant.key == "agent" else ""
    cells = [
        f"{summary.num_finished} of {summary.num_races}<small>{_percent(summary.finish_rate_interval)}</small>",
        _text(_seconds(summary.best_time_s)),
        f"{_text(_seconds(summary.median_time_s))}{_small_seconds(summary.median_time_interval_s)}",
        *_versus_cells(versus),
        f"{summary.mean_progress_m:.0f} m",
    ]
    return f"<tr{css}><th>{name}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _versus_cells(versus: Comparison | None) -> tuple[str, str]:
    if versus is None:
        return NONE, NONE
    gain_s, gain = versus.gain_on_median_s, NONE
    if gain_s is not None:
        css = "good" if gain_s > 0 else "bad"
        gain = f'<span class="{css}">{_signed(-gain_s)} s</span>'
        if versus.ranks:
            gain += f"<small>rank-sum {_p_value(versus.ranks.p_value)}</small>"
    share = f"{versus.num_faster_than_median} of {versus.num_races}"
    return gain, f"{share}<small>{_percent(versus.faster_than_median_interval)}</small>"


def _demonstration_rows(evaluation: Evaluation, seed: int) -> list[str]:
    if not evaluation.demonstrations:
        return []
    summary: Summary = summarise(evaluation.demonstrations, seed)
    finished = f"{summary.num_finished} of {summary.num_races}"
    best, middle = _seconds(summary.best_time_s), _seconds(summary.median_time_s)
    middle_cell = f"{_text(middle)}{_small_seconds(summary.median_time_interval_s)}"
    progress = f"{summary.mean_progress_m:.0f} m"
    against = NONE
    if summary.best_time_s is not None and summary.median_time_s is not None:
        against = f"{_signed(summary.best_time_s - summary.median_time_s)} s"
    rows = [
        ("Best demonstration", ("", _text(best), "", against, "", "")),
        ("Median demonstration", (finished, "", middle_cell, "", "", progress)),
    ]
    return [
        f'<tr class="reference"><th>{name}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for name, cells in rows
    ]


def _swatch(contestant: Contestant, evaluation: Evaluation) -> str:
    others = [c.key for c in evaluation.contestants if c.key not in ("agent", "cloned", "random")]
    place = others.index(contestant.key) if contestant.key in others else 0
    light, dark = (theme.colour(contestant.key, place) for theme in (LIGHT, DARK))
    return f'<span class="swatch" style="--light:{light};--dark:{dark}"></span>'


def _plot(plot: Plot) -> str:
    light, dark = (f"data:image/png;base64,{base64.b64encode(png).decode()}" for png in (plot.light, plot.dark))
    css = "plot small" if plot.is_small else "plot"
    return (
        f'<h2>{_text(plot.title)}</h2><figure><div class="{css}"><picture>'
        f'<source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="{_text(plot.title)}"></picture></div>'
        f"<figcaption>{_text(plot.caption)}</figcaption></figure>"
    )


def _used(facts: Sequence[Fact]) -> str:
    if not facts:
        return ""
    rows = "".join(f"<dt>{_text(fact.label)}</dt><dd>{_text(fact.text)}</dd>" for fact in facts)
    return f'<h2 id="used">What was used</h2><dl class="facts">{rows}</dl>'


def _durations(durations: Sequence[StageDuration]) -> str:
    if not durations:
        return ""
    total_s, longest_s = sum(stage.seconds for stage in durations), max(stage.seconds for stage in durations)
    rows = "".join(
        f"<tr><th>{_text(stage.stage)}</th>"
        f'<td style="text-align:left;width:40%"><span class="bar" '
        f'style="width:{max(0.5, 100 * stage.seconds / longest_s):.1f}%"></span></td>'
        f"<td>{_duration(stage.seconds)}</td><td>{_memory(stage.peak_rss_mb)}</td></tr>"
        for stage in durations
    )
    return (
        '<h2 id="durations">Stages</h2>'
        f'<p class="note">{_duration(total_s)} in all for the stages run so far on this machine; the last run of each. '
        "The evaluation that writes this page is missing until the next one.</p>"
        '<div class="scroll"><table><thead><tr><th>stage</th><th></th><th>wall time</th>'
        f"<th>peak memory</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )


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
    items = "".join(f"<li>{_text(point)}</li>" for point in points)
    return f'<h2 id="limits">What this does not show</h2><ul>{items}</ul>'


def _details(report: Report) -> str:
    blocks = [("Every race", _every_race(report.evaluation))]
    if report.parameters:
        blocks.append(("All parameters", f"<pre>{_text(report.parameters)}</pre>"))
    parts = "".join(f"<details><summary>{title}</summary>{content}</details>" for title, content in blocks)
    return f'<h2 id="details">Details</h2>{parts}'


def _every_race(evaluation: Evaluation) -> str:
    rows = "".join(
        f"<tr><th>{_text(contestant.label)}</th><td>{race.seed}</td><td>{_text(race.end)}</td>"
        f"<td>{_text(_seconds(race.time_s, 3))}</td><td>{race.progress_m:.0f} m</td></tr>"
        for contestant in evaluation.contestants
        for race in contestant.races
    )
    head = "<tr><th>driver</th><th>seed</th><th>end</th><th>time</th><th>progress</th></tr>"
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>'


def _text(text: str) -> str:
    return html.escape(text, quote=True)


def _seconds(time_s: float | None, digits: int = 2) -> str:
    return NONE if time_s is None else f"{time_s:.{digits}f}{THIN}s"


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", MINUS)


def _percent(interval: Interval) -> str:
    return f"{100 * interval.low:.0f}{NONE}{100 * interval.high:.0f}{THIN}%"


def _small_seconds(interval: Interval | None) -> str:
    return f"<small>{interval.low:.2f}{NONE}{interval.high:.2f} s</small>" if interval else ""


def _p_value(p_value: float) -> str:
    return "p &lt; 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.1f} s"


def _memory(megabytes: float | None) -> str:
    return NONE if megabytes is None else f"{megabytes / 1000:.2f} GB"
