"""Overlay (HUD) of the video: speed, time, splits, the driver's inputs, a minimap, and the agent's own view."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from matplotlib import font_manager
from matplotlib.ft2font import FT2Font
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from rulka.evaluation.results import MPS_TO_KMH, RaceResult
from rulka.tracks.top_view import top_view
from rulka.tracks.track import Track
from rulka.video.motion import Moment

Colour = tuple[int, int, int]
PANEL: Colour = (14, 17, 22)
PAPER: Colour = (245, 246, 248)
SOFT: Colour = (176, 184, 196)
GROOVE: Colour = (62, 69, 80)
GAS: Colour = (47, 195, 154)
BRAKE: Colour = (240, 140, 60)
STEER: Colour = (86, 180, 233)
CAR: Colour = (230, 60, 56)
GHOST: Colour = (90, 150, 235)
OPACITY = 0.72
DESIGN_HEIGHT = 540
"""Image height that the sizes below refer to; they scale with the actual height."""
SPLIT_SHOWN_MS = 3000
MAP_LEFT, MAP_TOP, MAP_WIDTH, MAP_MAX_HEIGHT, MAP_MARGIN = 16, 108, 300, 170, 14
LINE_PX, DOT_PX, END_PX = 3.0, 11.0, 6.6
SMOOTHING = 4
"""Supersampling factor of the minimap: Pillow draws lines and dots without antialiasing."""


@dataclass(frozen=True)
class HudTexts:
    """Constant texts of a video.

    Attributes:
        title: the driver.
        subtitle: the track.
        ghost: describes the ghost car; empty without one.
    """

    title: str
    subtitle: str
    ghost: str


def split_at(race: RaceResult, ghost: RaceResult | None, time_ms: int) -> tuple[str, bool | None]:
    """Returns the split text shown at `time_ms`, and whether the car was ahead of the ghost there.

    A split is shown for `SPLIT_SHOWN_MS` after its gate, the finish for good. The text is empty if there is none;
    the second value is None without a comparison.
    """
    passed = np.flatnonzero((race.gate_times_ms > 0) & (race.gate_times_ms <= time_ms))
    if not len(passed):
        return "", None
    gate, is_finish = int(passed[-1]), int(passed[-1]) == len(race.gate_times_ms) - 1
    split_ms = int(race.gate_times_ms[gate])
    if time_ms - split_ms > SPLIT_SHOWN_MS and not is_finish:
        return "", None
    text = f"{'finish' if is_finish else f'gate {gate + 1}'}  {split_ms / 1000:.2f}"
    if ghost is None or not ghost.gate_times_ms[gate]:
        return text, None
    behind_s = (split_ms - int(ghost.gate_times_ms[gate])) / 1000.0
    return f"{text}  {behind_s:+z.2f}".replace("-", "\N{MINUS SIGN}"), behind_s <= 0


def draw_hud(
    image: Image.Image,
    texts: HudTexts,
    moment: Moment,
    split: tuple[str, bool | None] = ("", None),
    view: NDArray[np.uint8] | None = None,
) -> None:
    """Draws everything but the map over an RGB image, changed in place.

    Args:
        image: the image.
        texts: constant texts.
        moment: state of the followed car.
        split: result of `split_at`.
        view: [h, w] the agent's observation; None to leave it out.
    """
    pen = _Pen(image)
    _draw_titles(pen, texts)
    _draw_clock(pen, moment.time_ms, *split)
    _draw_speed(pen, moment.speed_mps)
    _draw_controls(pen, moment.controls)
    if view is not None:
        _draw_view(pen, view)


class _Pen:
    """Draws on an image of any height, in coordinates of an image `DESIGN_HEIGHT` high."""

    def __init__(self, image: Image.Image) -> None:
        self.image, self.scale = image, image.height / DESIGN_HEIGHT
        self.width, self.height = image.width / self.scale, float(DESIGN_HEIGHT)
        self._draw = ImageDraw.Draw(image, "RGBA")  # blends colours by their opacity

    def px(self, length: float) -> int:
        """Converts a length to pixels of the image."""
        return round(length * self.scale)

    def box(self, left: float, top: float, width: float, height: float, colour: Colour, opacity: float = 1.0) -> None:
        """Fills a box."""
        x, y, x_size, y_size = (self.px(length) for length in (left, top, width, height))
        if x_size > 0 and y_size > 0:
            self._draw.rectangle((x, y, x + x_size - 1, y + y_size - 1), (*colour, round(255 * opacity)))

    def text(
        self, text: str, x: float, y: float, size: float, colour: Colour, *, bold: bool = False, anchor: str = "l"
    ) -> None:
        """Writes a line of text with baseline `y`; anchor "l", "m" or "r": `x` is its left end, middle or right end."""
        font, letters = font_of(max(1, self.px(size)), bold)
        known = "".join(letter for letter in text if ord(letter) in letters)
        self._draw.text((self.px(x), self.px(y)), known, (*colour, 255), font, f"{anchor}s")


@lru_cache(maxsize=64)
def font_of(size_px: int, is_bold: bool = False) -> tuple[ImageFont.FreeTypeFont, frozenset[int]]:
    """Returns matplotlib's bundled font in a size, and the code points that it has."""
    weight = "bold" if is_bold else "normal"
    path = font_manager.findfont(font_manager.FontProperties(family="DejaVu Sans", weight=weight))
    # Pillow draws a box for a missing glyph; player names are full of them.
    return ImageFont.truetype(path, size_px), frozenset(FT2Font(path).get_charmap())


def _draw_titles(pen: _Pen, texts: HudTexts) -> None:
    lines = [text for text in (texts.subtitle, texts.ghost) if text]
    pen.box(16, 16, 300, 36 + 20 * len(lines), PANEL, OPACITY)
    pen.text(texts.title, 28, 41, 18, PAPER, bold=True)
    for number, line in enumerate(lines):
        pen.text(line, 28, 61 + 20 * number, 13, SOFT)


def _draw_clock(pen: _Pen, time_ms: int, split: str, is_ahead: bool | None) -> None:
    pen.box(pen.width - 244, 16, 228, 82 if split else 52, PANEL, OPACITY)
    pen.text(f"{time_ms / 1000:.2f} s", pen.width - 30, 52, 30, PAPER, bold=True, anchor="r")
    if split:
        colour = SOFT if is_ahead is None else STEER if is_ahead else BRAKE
        pen.text(split, pen.width - 30, 84, 15, colour, bold=True, anchor="r")


def _draw_speed(pen: _Pen, speed_mps: float) -> None:
    bottom = pen.height - 16
    pen.box(16, bottom - 72, 176, 72, PANEL, OPACITY)
    pen.text(f"{speed_mps * MPS_TO_KMH:.0f}", 120, bottom - 22, 42, PAPER, bold=True, anchor="r")
    pen.text("km/h", 130, bottom - 22, 16, SOFT)


def _draw_controls(pen: _Pen, controls: tuple[float, float, float]) -> None:
    """Draws steering as a bar from the centre, gas and brake as bars from the left."""
    top, left, bar_left, bar_width = pen.height - 88, 200, 262, 156
    pen.box(left, top, 232, 72, PANEL, OPACITY)
    steer, gas, brake = controls
    half = bar_width / 2
    filled = (
        ("steer", bar_left + half + min(0.0, steer * half), abs(steer * half), STEER),
        ("gas", bar_left, gas * bar_width, GAS),
        ("brake", bar_left, brake * bar_width, BRAKE),
    )
    for number, (name, start, length, colour) in enumerate(filled):
        bar_top = top + 12 + 20 * number
        pen.text(name, left + 12, bar_top + 10, 12, SOFT)
        pen.box(bar_left, bar_top, bar_width, 10, GROOVE)
        pen.box(start, bar_top, length, 10, colour)
    pen.box(bar_left + half, top + 10, max(1.0, 1.0 / pen.scale), 14, PAPER)


def _draw_view(pen: _Pen, view: NDArray[np.uint8]) -> None:
    """Draws the agent's image in the lower right corner, enlarged by nearest neighbour."""
    factor = max(1, round(180 * pen.scale / view.shape[0]))
    width, height = view.shape[1] * factor, view.shape[0] * factor
    left, top = pen.image.width - pen.px(20) - width, pen.image.height - pen.px(20) - height
    at_x, at_y, size_x, size_y = (length / pen.scale for length in (left, top, width, height))
    pen.box(at_x - 4, at_y - 22, size_x + 8, size_y + 26, PANEL, OPACITY)
    large = Image.fromarray(view).resize((width, height), Image.Resampling.NEAREST)
    pen.image.paste(large.convert("RGB"), (left, top))
    label = f"what it sees: {view.shape[1]} \N{MULTIPLICATION SIGN} {view.shape[0]} grey"
    pen.text(label, at_x + size_x / 2, at_y - 7, 11, SOFT, anchor="m")


class Minimap:
    """Minimap: the track from above with a dot for each car. Draws onto images of one height."""

    def __init__(self, track: Track, image_height: int) -> None:
        self._scale = image_height / DESIGN_HEIGHT
        self._view = top_view(track)
        path = self._view(track.centre_m)
        self._low, size = path.min(axis=0), np.maximum(np.ptp(path, axis=0), 1.0)
        room = np.array([MAP_WIDTH - 2 * MAP_MARGIN, MAP_MAX_HEIGHT - 2 * MAP_MARGIN]) * self._scale
        self._pixels_per_m = float((room / size).min())
        self._size = np.round(size * self._pixels_per_m + 2 * MAP_MARGIN * self._scale).astype(int)
        width, height = (self._size * SMOOTHING).tolist()
        self._large = Image.new("RGBA", (width, height), (*PANEL, round(255 * OPACITY)))
        points = [(x, y) for x, y in self._places(track.centre_m).tolist()]
        line_px = max(1, round(LINE_PX * self._scale * SMOOTHING))
        ImageDraw.Draw(self._large).line(points, (*SOFT, 255), line_px, joint="curve")
        self._ends = self._places(track.centre_m[[0, -1]])

    def draw(self, image: Image.Image, car_m: NDArray[np.floating], ghosts_m: NDArray[np.floating]) -> None:
        """Draws the map onto an RGB image, changed in place.

        Args:
            image: the image.
            car_m: [3] world position of the followed car.
            ghosts_m: [M, 3] world positions of the ghosts.
        """
        large = self._large.copy()
        pen = ImageDraw.Draw(large)
        dots = [(place, END_PX, PAPER) for place in self._ends]
        dots += [(place, DOT_PX, GHOST) for place in self._places(ghosts_m)]
        dots.append((self._places(car_m[None])[0], DOT_PX, CAR))
        for (x, y), size, colour in dots:
            radius = max(1.0, size * self._scale) * SMOOTHING / 2
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), (*colour, 255))
        small = large.reduce(SMOOTHING)
        image.paste(small, (round(MAP_LEFT * self._scale), round(MAP_TOP * self._scale)), small)

    def _places(self, position_m: NDArray[np.floating]) -> NDArray[np.float64]:
        """Maps world positions [K, 3] to pixels [K, 2] of the large map."""
        flat = (self._view(position_m) - self._low) * self._pixels_per_m + MAP_MARGIN * self._scale
        return SMOOTHING * np.stack([flat[:, 0], self._size[1] - flat[:, 1]], axis=1)
