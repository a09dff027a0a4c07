"""Texts and bars over the video."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rulka.evaluation.results import RaceResult
from rulka.video.hud import GAS, HudState, HudTexts, draw_hud, split_at
from rulka.video.race_video import frame_times_ms
from rulka.video.text import draw_text, fill_box, text_mask

MakeRace = Callable[..., RaceResult]
TEXTS = HudTexts("Agent", "somewhere", "")


def test_split_against_the_ghost_by_hand(make_race: MakeRace) -> None:
    """Gates at 40, 80 and 100 m: passed after 2, 4 and 5 s at 20 m/s, after 1.6, 3.2 and 4 s at 25 m/s."""
    fast, slow = make_race(25), make_race(20)
    assert split_at(fast, slow, 1599) == ("", None)
    assert split_at(fast, slow, 1600) == ("gate 1  1.60  \N{MINUS SIGN}0.40", True)
    assert split_at(slow, fast, 5000) == ("finish  5.00  +1.00", False)
    assert split_at(slow, None, 4100) == ("gate 2  4.00", None)
    assert split_at(slow, make_race(25, stop_m=50), 4100) == ("gate 2  4.00", None)  # the ghost never came there


def test_split_disappears_after_three_seconds_but_the_finish_stays(make_race: MakeRace) -> None:
    race = make_race(5)  # gates after 8, 16 and 20 s
    assert split_at(race, None, 11_000)[0] != ""
    assert split_at(race, None, 11_001)[0] == ""
    assert split_at(race, None, 60_000)[0] == "finish  20.00"


def coloured(frame: np.ndarray, colour: tuple[int, int, int]) -> int:
    return int((frame == np.array(colour, np.uint8)).all(axis=2).sum())


def test_gas_bar_grows_with_the_gas() -> None:
    counts = []
    for gas in (0.0, 0.5, 1.0):
        frame = np.zeros((540, 960, 3), np.uint8)
        draw_hud(frame, TEXTS, HudState(0, 0.0, (0.0, gas, 0.0), "", None, None))
        counts.append(coloured(frame, GAS))
    assert counts[0] == 0
    assert counts[2] == 2 * counts[1] == 156 * 10


@pytest.mark.parametrize("size", [(120, 160), (270, 480), (1080, 1920)])
def test_agents_view_is_shown_at_every_size(size: tuple[int, int]) -> None:
    frame = np.full((*size, 3), 99, np.uint8)
    view = np.full((64, 64), 251, np.uint8)
    draw_hud(frame, TEXTS, HudState(1234, 30.0, (-1.0, 1.0, 1.0), "gate 1  1.00", True, view))
    factor = max(1, round(180 * size[0] / 540 / 64))
    assert coloured(frame, (251, 251, 251)) >= (64 * factor) ** 2 * 0.9


def test_text_is_clipped_at_the_borders() -> None:
    whole, _ = text_mask("Wide", 20)
    frame = np.zeros((30, 30, 3), np.uint8)
    width = draw_text(frame, "Wide", (-10, 5), 20, (255, 255, 255))
    assert width == whole.shape[1]
    assert frame.any()
    draw_text(frame, "Wide", (500, 500), 20, (255, 255, 255))
    assert draw_text(frame, "", (0, 0), 20, (255, 255, 255)) == 0


def test_text_ends_at_its_right_anchor() -> None:
    frame = np.zeros((40, 200, 3), np.uint8)
    draw_text(frame, "88", (150, 30), 20, (255, 255, 255), anchor=1.0)
    columns = np.flatnonzero(frame.any(axis=(0, 2)))
    assert 145 <= columns[-1] < 150


def test_half_transparent_box() -> None:
    frame = np.full((4, 4, 3), 100, np.uint8)
    fill_box(frame, (1, 1, 2, 9), (200, 0, 100), opacity=0.5)
    np.testing.assert_array_equal(frame[2, 1], [150, 50, 100])
    np.testing.assert_array_equal(frame[0, 0], [100, 100, 100])


def test_video_plays_in_real_time() -> None:
    """4 s at 25 frames a second: 15 frames standing, 100 driving, 40 standing."""
    times_ms = frame_times_ms(4000, 25)
    assert len(times_ms) == 155
    assert (times_ms == 0).sum() == 16  # the first driven picture is at the start, too
    np.testing.assert_allclose(np.diff(times_ms[15:116]), 40.0)
    assert times_ms[-1] == 4000.0
