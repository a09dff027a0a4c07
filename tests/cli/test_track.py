from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure

from rulka.report.road import SURFACES
from rulka.report.theme import STYLE, to_png
from rulka.report.track_plot import track_plot, track_sheet
from rulka.tracks.campaign import CAMPAIGN, campaign_track
from rulka.tracks.generate import generate_track
from tests.cli.conftest import call

ROOT = Path(__file__).resolve().parents[2]


def test_a_plot_names_the_track_its_gates_and_what_its_road_is_made_of() -> None:
    with plt.style.context(STYLE):
        figure = track_plot(campaign_track("patchwork"))
        top, profile, bank = figure.axes
        texts = [text.get_text() for text in top.texts]
        explained = top.get_legend()
        assert explained is not None
        legend = [text.get_text() for text in explained.get_texts()]
        assert figure.get_suptitle() == "Patchwork Fields: 1,700 m, climbs 23 m, hard"
        assert {"start", "finish", "212 m", "1,488 m"} <= set(texts)
        assert legend == ["asphalt", "grass", "dirt", "turbo", "verge"]
        assert profile.get_xlim() == bank.get_xlim() == (0.0, 1700.0)
        plt.close(figure)
    assert len(SURFACES) == 5


def test_names_in_figures_are_no_maths() -> None:
    """`$` begins a formula elsewhere; this one cannot be parsed."""
    track = replace(generate_track(5, 150.0, 16.0, 0.06, 60.0), name=r"A$\q$ b$c$d")
    figures = []

    def draw() -> Figure:
        figures.append(track_plot(track))
        return figures[-1]

    assert to_png(draw)
    assert figures[0].get_suptitle().startswith(r"A$\q$ b$c$d: 150 m")
    assert not figures[0]._suptitle.get_parse_math()


def test_higher_roads_are_drawn_over_lower_ones() -> None:
    with plt.style.context(STYLE):
        track = campaign_track("figure-eight")
        figure = track_plot(track)
        orders = sorted({collection.get_zorder() for collection in figure.axes[0].collections})
        span = orders[-1] - orders[0]
        assert span == pytest.approx(1e-3 * np.ptp(track.centre_m[:, 1]), rel=0.1)
        plt.close(figure)


def test_a_sheet_has_a_place_for_each() -> None:
    with plt.style.context(STYLE):
        tracks = [campaign_track(entry.slug) for entry in CAMPAIGN[:3]]
        figure = track_sheet(tracks)
        titles = [place.get_suptitle() for place in figure.subfigs]
        assert titles[0] == "1  Copper Oval: 400 m, climbs 0 m, easy"
        assert titles[2].startswith("3  Sidewinder")
        plt.close(figure)


def test_a_track_of_the_dataset_is_known_by_its_uid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`generated-5-600` is what every table calls the demo's track."""
    monkeypatch.chdir(tmp_path)
    track = generate_track(5, 150.0, 16.0, 0.06, 60.0)
    (tmp_path / "data" / "races" / "tracks").mkdir(parents=True)
    track.save(tmp_path / "data" / "races" / "tracks" / f"{track.uid}.npz")
    assert call(f"track show {track.uid} --json") == 0
    assert json.loads(capsys.readouterr().out)["uid"] == track.uid
    assert call(f"track show {track.uid[:-1]}") == 1
    assert f"did you mean {track.uid}?" in capsys.readouterr().err
    assert call("track show x") == 1
    assert f"neither a file nor one of {track.uid}, copper-oval" in capsys.readouterr().err
