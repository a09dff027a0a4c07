"""The page: true in every case, safe, and without any request to the network."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rulka.evaluation.results import Contestant, Evaluation, RaceResult
from rulka.report.durations import StageDuration
from rulka.report.facts import Fact
from rulka.report.figures import Plot, draw_figures, encoder_figures, save_figures
from rulka.report.page import MAX_VIDEO_BYTES, Report, headline, render_report
from rulka.tracks.track import Track

MakeRace = Callable[..., RaceResult]
VOID = {"meta", "img", "source", "br", "link"}


class Balance(HTMLParser):
    """Checks that every element is closed, and collects what the page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "srcset")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def make_evaluation(track: Track, make_race: MakeRace, *, is_finished: bool = True) -> Evaluation:
    agent = [make_race(25, 100, None if is_finished else 30), make_race(20, 101, 60)]
    contestants = [
        Contestant("agent", "Agent (PPO)", agent),
        Contestant("iqn", "IQN", [make_race(21)]),
        Contestant("cloned", "Cloned policy", [make_race(15, stop_m=70)]),
        Contestant("random", "Random actions", [make_race(5, stop_m=10)]),
    ]
    return Evaluation(track, contestants, [make_race(speed) for speed in (20, 16, 10)])


def make_report(evaluation: Evaluation, video: Path | None = None) -> Report:
    return Report(
        evaluation=evaluation,
        seed=1,
        plots=[Plot("Lines <1>", "How to read it", b"light", b"dark")],
        video=video,
        video_caption="the best race",
        facts=[Fact("Track", "<script>alert(1)</script>")],
        durations=[StageDuration("train", 75.0, 1500.0, "now")],
        is_from_game=False,
        parameters="seed: 1 <2>",
        tracks=[],
    )


def test_headline_with_faster_races(track: Track, make_race: MakeRace) -> None:
    """One race of 4 s; demonstrations of 5, 6.25 and 10 s: 2.25 s before the median, 1 s before the best."""
    text = headline(make_evaluation(track, make_race), seed=1)
    assert text == (
        "The agent finished 1 of 2 races; its median was 2.25 s faster than the median demonstration, "
        "its best 1.00 s faster than the best."
    )


def test_headline_admits_slower_races_and_none(track: Track, make_race: MakeRace) -> None:
    slow = Evaluation(track, [Contestant("agent", "Agent", [make_race(8)])], [make_race(10)])
    assert "2.50 s slower than the median" in headline(slow, seed=1)
    assert headline(make_evaluation(track, make_race, is_finished=False), seed=1) == (
        "The agent finished none of 2 races; it came 45 m far on average."
    )


def test_page_is_whole_and_asks_no_server(track: Track, make_race: MakeRace, tmp_path: Path) -> None:
    video = tmp_path / "race.mp4"
    video.write_bytes(b"not really a video")
    page = render_report(make_report(make_evaluation(track, make_race), video))
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert parser.references
    assert all(reference.startswith("data:") for reference in parser.references)
    assert not re.search(r"https?://|@import|url\(", page)
    assert page.count("data:video/mp4") == 1


def test_pictures_of_level_0_are_shown_where_they_are(track: Track, make_race: MakeRace, tmp_path: Path) -> None:
    """Drawn once, for light and dark pages alike."""
    assert encoder_figures(tmp_path) == []
    for name in ("previews.png", "other.png"):
        (tmp_path / name).write_bytes(name.encode())
    plots = encoder_figures(tmp_path)
    assert [plot.title for plot in plots] == ["Level 0: what it was shown"]
    page = render_report(replace(make_report(make_evaluation(track, make_race)), plots=plots))
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    images = [f"data:image/png;base64,{base64.b64encode(plot.light).decode()}" for plot in plots]
    assert [reference for reference in parser.references if "image/png" in reference] == images


def test_names_from_files_are_escaped(track: Track, make_race: MakeRace) -> None:
    page = render_report(make_report(make_evaluation(track, make_race)))
    assert "<script" not in page
    assert "straight &lt;b&gt;road&lt;/b&gt;" in page
    assert "seed: 1 &lt;2&gt;" in page


def test_large_video_stays_beside_the_page(track: Track, make_race: MakeRace, tmp_path: Path) -> None:
    video = tmp_path / "race.mp4"
    video.write_bytes(bytes(MAX_VIDEO_BYTES + 1))
    page = render_report(make_report(make_evaluation(track, make_race), video))
    assert 'src="race.mp4"' in page
    assert len(page) < 4 * MAX_VIDEO_BYTES


def test_table_holds_every_contestant_and_both_demonstrations(track: Track, make_race: MakeRace) -> None:
    page = render_report(make_report(make_evaluation(track, make_race)))
    names = re.findall(r"<tr[^>]*><th>(?:<span[^>]*></span>)?([^<]+)</th>", page)
    first = names[: names.index("Median demonstration") + 1]
    assert first == [
        "Agent (PPO)",
        "IQN",
        "Cloned policy",
        "Random actions",
        "Best demonstration",
        "Median demonstration",
    ]


@pytest.mark.parametrize("has_demonstrations", [True, False])
def test_page_and_figures_when_nobody_finishes(
    track: Track, make_race: MakeRace, has_demonstrations: bool, tmp_path: Path
) -> None:
    races = [make_race(10, stop_m=40), make_race(10, stop_m=20)]
    evaluation = Evaluation(track, [Contestant("agent", "Agent", races)], races if has_demonstrations else [])
    figures = draw_figures(evaluation, [], {})
    assert set(figures) == {"driven_lines", "speed"}  # no times, and nothing to split against
    save_figures(tmp_path / "plots", figures)
    assert (tmp_path / "plots" / "speed.png").read_bytes().startswith(b"\x89PNG")
    assert "The agent finished none of 2 races;" in render_report(make_report(evaluation))


def test_page_warns_when_demonstrations_are_from_the_game(track: Track, make_race: MakeRace) -> None:
    report = make_report(make_evaluation(track, make_race))
    assert "The simulator is not the game" not in render_report(report)
    assert "The simulator is not the game" in render_report(replace(report, is_from_game=True))
