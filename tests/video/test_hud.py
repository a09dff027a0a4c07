"""Texts and bars over the video."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rulka.evaluation.results import RaceResult
from rulka.tracks.track import Track
from rulka.video.hud import CAR, GAS, GHOST, PANEL, HudTexts, Minimap, draw_hud, font_of, split_at
from rulka.video.motion import Moment
from rulka.video.race_video import frame_times_ms

MakeRace = Callable[..., RaceResult]
TEXTS = HudTexts("Agent", "somewhere", "")


def test_splits_by_hand(make_race: MakeRace) -> None:
    """Gates at 40, 80 and 100 m: passed after 2, 4 and 5 s at 20 m/s, after 1.6, 3.2 and 4 s at 25 m/s."""
    fast, slow = make_race(25), make_race(20)
    assert split_at(fast, slow, 1599) == ("", None)
    assert split_at(fast, slow, 1600) == ("gate 1  1.60  \N{MINUS SIGN}0.40", True)
    assert split_at(slow, fast, 5000) == ("finish  5.00  +1.00", False)
    assert split_at(slow, None, 4100) == ("gate 2  4.00", None)
    assert split_at(slow, make_race(25, stop_m=50), 4100) == ("gate 2  4.00", None)  # the ghost never came there
    race = make_race(5)  # gates after 8, 16 and 20 s
    assert split_at(race, None, 11_000)[0] != ""
    assert split_at(race, None, 11_001)[0] == ""
    assert split_at(race, None, 60_000)[0] == "finish  20.00"


def moment(time_ms: int = 0, speed_mps: float = 0.0, controls: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> Moment:
    return Moment(time_ms, np.zeros(12, np.float32), 0, 0, speed_mps, controls)


def drawn(size: tuple[int, int], texts: HudTexts, now: Moment, *more: Any, shade: int = 0) -> np.ndarray:
    """Returns a picture [H, W, 3] of one shade with everything written over it."""
    image = Image.new("RGB", (size[1], size[0]), (shade,) * 3)
    draw_hud(image, texts, now, *more)
    return np.array(image)


def coloured(frame: np.ndarray, colour: tuple[int, int, int]) -> int:
    return int((frame == np.array(colour, np.uint8)).all(axis=2).sum())


def test_gas_bar_view_and_panels() -> None:
    counts = [coloured(drawn((540, 960), TEXTS, moment(controls=(0.0, gas, 0.0))), GAS) for gas in (0.0, 0.5, 1.0)]
    assert counts[0] == 0
    assert counts[2] == 2 * counts[1] == 156 * 10
    view = np.full((64, 64), 251, np.uint8)
    for size in ((22, 40), (120, 160), (1080, 1920)):
        frame = drawn(size, TEXTS, moment(1234, 30.0, (-1.0, 1.0, 1.0)), ("gate 1  1.00", True), view, shade=99)
        factor = max(1, round(180 * size[0] / 540 / 64))
        assert size == (22, 40) or coloured(frame, (251, 251, 251)) >= (64 * factor) ** 2 * 0.9
    # 0.72 of the panel and 0.28 of the picture. The clock's box ends 16 pixels from the right, its text 30.
    frame = drawn((540, 960), TEXTS, moment(119_870), shade=100)
    np.testing.assert_allclose(frame[20, 300], 0.72 * np.array(PANEL) + 0.28 * 100, atol=1.0)
    np.testing.assert_array_equal(frame[5, 5], [100, 100, 100])
    columns = np.flatnonzero((frame[20:66, 720:] > 150).any(axis=(0, 2)))
    assert 720 + columns[-1] == pytest.approx(928, abs=4)


def test_letters_that_the_font_lacks_leave_no_box() -> None:
    letters = font_of(18, True)[1]
    assert ord("é") in letters
    assert 0x4E2D not in letters
    now = moment()
    with_missing = drawn((540, 960), HudTexts("\u4e2dAgent", "", ""), now)
    np.testing.assert_array_equal(with_missing, drawn((540, 960), HudTexts("Agent", "", ""), now))


def test_minimap_shows_the_cars_where_they_are(track: Track) -> None:
    """A straight road along the page: the car at its end is right of the ghost at its start."""
    image = Image.new("RGB", (960, 540))
    Minimap(track, 540).draw(image, track.centre_m[-1], track.centre_m[:1])
    frame = np.array(image)
    at_x = [np.flatnonzero((frame == np.array(colour)).all(axis=2).any(axis=0)).mean() for colour in (GHOST, CAR)]
    np.testing.assert_allclose(at_x, [16 + 14, 16 + 286], atol=1.5)


def test_video_plays_in_real_time() -> None:
    """4 s at 25 frames a second: 15 frames standing, 100 driving, 40 standing."""
    times_ms = frame_times_ms(4000, 25)
    assert len(times_ms) == 155
    assert (times_ms == 0).sum() == 16  # the first driven picture is at the start, too
    np.testing.assert_allclose(np.diff(times_ms[15:116]), 40.0)
    assert times_ms[-1] == 4000.0
