"""One self-contained page about an evaluation: opens offline, asks no server for anything.

The page is `template/page.html`, of Jinja2, and its look `template/page.css`; here stands what they show.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rulka.evaluation.by_track import HEAD, track_rows
from rulka.evaluation.metrics import Comparison, Json, Summary, compare, summarise
from rulka.evaluation.results import Contestant, Evaluation, finish_times_s
from rulka.reference.medals import medal_won, medals_of
from rulka.report.durations import StageDuration
from rulka.report.facts import Fact
from rulka.report.figures import Plot
from rulka.report.theme import DARK, LIGHT
from rulka.report.words import NONE, duration, memory, percent, seconds, signed
from rulka.statistics import Interval

MAX_VIDEO_BYTES = 8_000_000
"""A larger video stays a file beside the page."""


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
        tracks: the agent's results by track, of `rulka.evaluation.by_track`; shown where there are several.
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
    tracks: list[Json]


class Tile(NamedTuple):
    """One number at the top of the page, with what it is and what to hold beside it."""

    label: str
    number: str
    beside: str


class Cell(NamedTuple):
    """One cell of the results: its text, what stands below it in small print, and the class of the text."""

    text: str = ""
    small: str = ""
    css: str = ""


class Row(NamedTuple):
    """One row of the results.

    Attributes:
        name: who drove.
        cells: finished, best, median, IQM, against the median demonstration, faster than that, mean progress.
        css: class of the row.
        colours: of the contestant in the plots, in the light and in the dark theme.
    """

    name: str
    cells: list[Cell]
    css: str
    colours: tuple[str, str] | None = None


def render_report(report: Report) -> str:
    """Returns the page as HTML."""
    evaluation = report.evaluation
    page = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "template"),
        autoescape=True,  # names of tracks and players come from files of strangers
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page.filters |= {"seconds": seconds, "duration": duration, "memory": memory, "data_uri": _data_uri}
    return page.get_template("page.html").render(
        report=report,
        evaluation=evaluation,
        agent=evaluation.contestants[0],
        headline=headline(evaluation, report.seed),
        tiles=_tiles(evaluation, report.seed),
        results=result_rows(evaluation, report.seed),
        track_head=HEAD,
        track_rows=track_rows(report.tracks) if len(report.tracks) > 1 else [],
        video_source=_video_source(report.video),
        created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
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


def _tiles(evaluation: Evaluation, seed: int) -> list[Tile]:
    agent = evaluation.contestants[0]
    summary, versus = summarise(agent.races, seed), compare(agent.races, evaluation.demonstrations)
    demonstrated_s = finish_times_s(evaluation.demonstrations)
    best_s, middle_s = (min(demonstrated_s), float(np.median(demonstrated_s))) if demonstrated_s else (None, None)
    tiles = [
        Tile(
            "Races finished", f"{100 * summary.finish_rate:.0f} %", f"interval {percent(summary.finish_rate_interval)}"
        ),
        Tile("Best time", seconds(summary.best_time_s), f"best demonstration {seconds(best_s)}"),
        Tile("Median time", seconds(summary.median_time_s), f"median demonstration {seconds(middle_s)}"),
    ]
    if versus is not None:
        share = f"{versus.num_faster_than_median} of {versus.num_races}"
        tiles.append(Tile("Beat the median", share, f"interval {percent(versus.faster_than_median_interval)}"))
    return tiles + _reference_tiles(evaluation, summary)


def _reference_tiles(evaluation: Evaluation, summary: Summary) -> list[Tile]:
    """Returns tiles that say how far the agent is from the reference lap; none where there is no lap."""
    if evaluation.reference is None or evaluation.reference.time_ms is None:
        return []
    medals = medals_of(evaluation.reference.time_ms)
    ratio = evaluation.ratio_to_reference(summary.median_time_s)
    share = NONE if ratio is None else f"+{100 * (ratio - 1):.1f} %"
    best_ms = np.inf if summary.best_time_s is None else summary.best_time_s * 1000.0
    limits = ", ".join(f"{name.removesuffix('_ms')} {seconds(ms / 1000.0)}" for name, ms in medals._asdict().items())
    return [
        Tile("Behind the reference", share, f"reference lap {seconds(medals.author_ms / 1000.0)}"),
        Tile("Best medal", medal_won(best_ms, medals) or "none", limits),
    ]


def result_rows(evaluation: Evaluation, seed: int) -> list[Row]:
    """Returns the table of all contestants, the demonstrations and the reference lap."""
    rows = [_contestant_row(contestant, evaluation, seed) for contestant in evaluation.contestants]
    return rows + _demonstration_rows(evaluation, seed) + _reference_rows(evaluation)


def _contestant_row(contestant: Contestant, evaluation: Evaluation, seed: int) -> Row:
    summary = summarise(contestant.races, seed)
    cells = [
        Cell(f"{summary.num_finished} of {summary.num_races}", percent(summary.finish_rate_interval)),
        Cell(seconds(summary.best_time_s)),
        Cell(seconds(summary.median_time_s), _interval(summary.median_time_interval_s)),
        Cell(seconds(summary.iqm_time_s), _interval(summary.iqm_time_interval_s)),
        *_versus_cells(compare(contestant.races, evaluation.demonstrations)),
        Cell(f"{summary.mean_progress_m:.0f} m"),
    ]
    light, dark = (theme.colours_of(evaluation)[contestant.key] for theme in (LIGHT, DARK))
    return Row(contestant.label, cells, "agent" if contestant.key == "agent" else "", (light, dark))


def _versus_cells(versus: Comparison | None) -> tuple[Cell, Cell]:
    if versus is None:
        return Cell(NONE), Cell(NONE)
    gain_s, gain = versus.gain_on_median_s, Cell(NONE)
    if gain_s is not None:
        ranks = f"rank-sum {_p_value(versus.ranks.p_value)}" if versus.ranks else ""
        gain = Cell(f"{signed(-gain_s)} s", ranks, "good" if gain_s > 0 else "bad")
    share = f"{versus.num_faster_than_median} of {versus.num_races}"
    return gain, Cell(share, percent(versus.faster_than_median_interval))


def _demonstration_rows(evaluation: Evaluation, seed: int) -> list[Row]:
    if not evaluation.demonstrations:
        return []
    summary = summarise(evaluation.demonstrations, seed)
    against = NONE
    if summary.best_time_s is not None and summary.median_time_s is not None:
        against = f"{signed(summary.best_time_s - summary.median_time_s)} s"
    best = [Cell(), Cell(seconds(summary.best_time_s)), Cell(), Cell(), Cell(against), Cell(), Cell()]
    middle = [
        Cell(f"{summary.num_finished} of {summary.num_races}"),
        Cell(),
        Cell(seconds(summary.median_time_s), _interval(summary.median_time_interval_s)),
        Cell(seconds(summary.iqm_time_s), _interval(summary.iqm_time_interval_s)),
        Cell(),
        Cell(),
        Cell(f"{summary.mean_progress_m:.0f} m"),
    ]
    return [Row("Best demonstration", best, "reference"), Row("Median demonstration", middle, "reference")]


def _reference_rows(evaluation: Evaluation) -> list[Row]:
    """Returns the reference lap as one row, in the column of the best time."""
    lap, middle = evaluation.reference, evaluation.median_demonstration
    if lap is None or lap.time_s is None:
        return []
    against = f"{signed(lap.time_s - middle.time_s)} s" if middle and middle.time_s is not None else NONE
    texts = ("1 of 1", seconds(lap.time_s), "", "", against, "", f"{lap.progress_m:.0f} m")
    return [Row("Reference lap", [Cell(text) for text in texts], "reference")]


def _interval(interval: Interval | None) -> str:
    return f"{interval.low:.2f}{NONE}{interval.high:.2f} s" if interval else ""


def _p_value(p_value: float) -> str:
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"


def _data_uri(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _video_source(video: Path | None) -> str | None:
    """Returns what the page plays: the video itself where it is small enough, else its name."""
    if video is None:
        return None
    content = video.read_bytes()
    return _data_uri(content, "video/mp4") if len(content) <= MAX_VIDEO_BYTES else video.name
