"""Tables of the report, and how numbers are printed on the page."""

from __future__ import annotations

import html
from collections.abc import Sequence

from rulka.evaluation.statistics import Interval
from rulka.evaluation.summary import Comparison, Contestant, Evaluation, Summary, compare, summarise
from rulka.report.durations import StageDuration
from rulka.report.theme import DARK, LIGHT

NONE = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
THIN = "\N{NO-BREAK SPACE}"


def results_table(evaluation: Evaluation, seed: int) -> str:
    """Returns the section with the table of all contestants and the demonstrations."""
    rows = [_contestant_row(c, evaluation, seed) for c in evaluation.contestants]
    rows += _demonstration_rows(evaluation, seed)
    rows += _reference_row(evaluation)
    head = (
        "",
        "finished",
        "best",
        "median",
        "IQM",
        "against median demonstration",
        "faster than that",
        "mean progress",
    )
    cells = "".join(f"<th>{escaped(name)}</th>" for name in head)
    return (
        '<h2 id="results">Results</h2>'
        '<p class="note">Times are of finished races alone. Small print: 95 % intervals, Wilson for rates, '
        "bootstrap for times. IQM is the interquartile mean, without the fastest and slowest quarter.</p>"
        f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _contestant_row(contestant: Contestant, evaluation: Evaluation, seed: int) -> str:
    summary = summarise(contestant.races, seed)
    versus = compare(contestant.races, evaluation.demonstrations)
    name = f"{_swatch(contestant, evaluation)}{escaped(contestant.label)}"
    css = ' class="agent"' if contestant.key == "agent" else ""
    cells = [
        f"{summary.num_finished} of {summary.num_races}<small>{percent(summary.finish_rate_interval)}</small>",
        escaped(seconds(summary.best_time_s)),
        f"{escaped(seconds(summary.median_time_s))}{_small_seconds(summary.median_time_interval_s)}",
        f"{escaped(seconds(summary.iqm_time_s))}{_small_seconds(summary.iqm_time_interval_s)}",
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
        gain = f'<span class="{css}">{signed(-gain_s)} s</span>'
        if versus.ranks:
            gain += f"<small>rank-sum {_p_value(versus.ranks.p_value)}</small>"
    share = f"{versus.num_faster_than_median} of {versus.num_races}"
    return gain, f"{share}<small>{percent(versus.faster_than_median_interval)}</small>"


def _demonstration_rows(evaluation: Evaluation, seed: int) -> list[str]:
    if not evaluation.demonstrations:
        return []
    summary: Summary = summarise(evaluation.demonstrations, seed)
    finished = f"{summary.num_finished} of {summary.num_races}"
    best, middle = seconds(summary.best_time_s), seconds(summary.median_time_s)
    middle_cell = f"{escaped(middle)}{_small_seconds(summary.median_time_interval_s)}"
    iqm_cell = f"{escaped(seconds(summary.iqm_time_s))}{_small_seconds(summary.iqm_time_interval_s)}"
    progress = f"{summary.mean_progress_m:.0f} m"
    against = NONE
    if summary.best_time_s is not None and summary.median_time_s is not None:
        against = f"{signed(summary.best_time_s - summary.median_time_s)} s"
    rows = [
        ("Best demonstration", ("", escaped(best), "", "", against, "", "")),
        ("Median demonstration", (finished, "", middle_cell, iqm_cell, "", "", progress)),
    ]
    return [
        f'<tr class="reference"><th>{name}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for name, cells in rows
    ]


def _reference_row(evaluation: Evaluation) -> list[str]:
    """Returns the reference lap as one row, in the column of the best time."""
    lap, middle = evaluation.reference, evaluation.median_demonstration
    if lap is None or lap.time_s is None:
        return []
    against = f"{signed(lap.time_s - middle.time_s)} s" if middle and middle.time_s is not None else NONE
    cells = ("1 of 1", escaped(seconds(lap.time_s)), "", "", against, "", f"{lap.progress_m:.0f} m")
    return [f'<tr class="reference"><th>Reference lap</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>']


def _swatch(contestant: Contestant, evaluation: Evaluation) -> str:
    others = [c.key for c in evaluation.contestants if c.key not in ("agent", "cloned", "random")]
    place = others.index(contestant.key) if contestant.key in others else 0
    light, dark = (theme.colour(contestant.key, place) for theme in (LIGHT, DARK))
    return f'<span class="swatch" style="--light:{light};--dark:{dark}"></span>'


def durations_table(durations: Sequence[StageDuration]) -> str:
    """Returns the section about the stages; empty when nothing is known."""
    if not durations:
        return ""
    total_s, longest_s = sum(stage.seconds for stage in durations), max(stage.seconds for stage in durations)
    rows = "".join(
        f"<tr><th>{escaped(stage.stage)}</th>"
        f'<td style="text-align:left;width:40%"><span class="bar" '
        f'style="width:{max(0.5, 100 * stage.seconds / longest_s):.1f}%"></span></td>'
        f"<td>{_duration(stage.seconds)}</td><td>{_memory(stage.peak_rss_mb)}</td></tr>"
        for stage in durations
    )
    return (
        '<h2 id="durations">Stages</h2>'
        f'<p class="note">{_duration(total_s)} in all for the stages run so far on this machine; the last run of each, '
        "the evaluation up to this page.</p>"
        '<div class="scroll"><table><thead><tr><th>stage</th><th></th><th>wall time</th>'
        f"<th>peak memory</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )


def every_race_table(evaluation: Evaluation) -> str:
    """Returns a table of every race."""
    rows = "".join(
        f"<tr><th>{escaped(contestant.label)}</th><td>{race.seed}</td><td>{escaped(race.end)}</td>"
        f"<td>{escaped(seconds(race.time_s, 3))}</td><td>{race.progress_m:.0f} m</td></tr>"
        for contestant in evaluation.contestants
        for race in contestant.races
    )
    head = "<tr><th>driver</th><th>seed</th><th>end</th><th>time</th><th>progress</th></tr>"
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>'


def escaped(text: str) -> str:
    """Returns text as it must stand in HTML."""
    return html.escape(text, quote=True)


def seconds(time_s: float | None, digits: int = 2) -> str:
    """Returns a time with its unit, a dash where there is none."""
    return NONE if time_s is None else f"{time_s:.{digits}f}{THIN}s"


def signed(value: float) -> str:
    """Returns a number with its sign, as it is printed."""
    return f"{value:+.2f}".replace("-", MINUS)


def percent(interval: Interval) -> str:
    """Returns the interval of a rate in percent."""
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
