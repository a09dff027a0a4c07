"""What is written over the video: speed, time, splits, the driver's inputs, and the agent's own view."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rulka.evaluation.results import MPS_TO_KMH, RaceResult
from rulka.video.text import Colour, draw_text, fill_box

PANEL: Colour = (14, 17, 22)
PAPER: Colour = (245, 246, 248)
SOFT: Colour = (176, 184, 196)
TRACK: Colour = (62, 69, 80)
GAS: Colour = (47, 195, 154)
BRAKE: Colour = (240, 140, 60)
STEER: Colour = (86, 180, 233)
AHEAD: Colour = (86, 180, 233)
BEHIND: Colour = (240, 140, 60)
OPACITY = 0.72
DESIGN_HEIGHT = 540
"""Sizes below are for an image of this height; others are scaled."""
SPLIT_SHOWN_MS = 3000


@dataclass(frozen=True)
class HudTexts:
    """Texts that stay the same for the whole video.

    Attributes:
        title: who drives.
        subtitle: where.
        ghost: what the other car is, empty without one.
    """

    title: str
    subtitle: str
    ghost: str


@dataclass(frozen=True)
class HudState:
    """One moment.

    Attributes:
        time_ms: race time.
        speed_mps: speed over ground.
        controls: steering in [-1, 1], gas and brake in [0, 1].
        split: text beside the last gate, empty when none is shown.
        is_ahead: whether the split is faster than the ghost's, None without a ghost's time.
        view: [h, w] what the agent sees, None to leave it out.
    """

    time_ms: int
    speed_mps: float
    controls: tuple[float, float, float]
    split: str
    is_ahead: bool | None
    view: NDArray[np.uint8] | None


def split_at(race: RaceResult, ghost: RaceResult | None, time_ms: int) -> tuple[str, bool | None]:
    """Returns the text of the last gate passed shortly before `time_ms`, and whether it was ahead of the ghost."""
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
    return f"{text}  {behind_s:+.2f}".replace("-", "\N{MINUS SIGN}"), behind_s <= 0


def draw_hud(frame: NDArray[np.uint8], texts: HudTexts, state: HudState) -> None:
    """Draws everything over an image [H, W, 3], changed in place."""
    scale = frame.shape[0] / DESIGN_HEIGHT
    _draw_titles(frame, texts, scale)
    _draw_clock(frame, state, scale)
    _draw_speed(frame, state, scale)
    _draw_controls(frame, state.controls, scale)
    if state.view is not None:
        _draw_view(frame, state.view, scale)


def _draw_titles(frame: NDArray[np.uint8], texts: HudTexts, scale: float) -> None:
    def at(x: float, y: float) -> tuple[int, int]:
        return round(x * scale), round(y * scale)

    lines = [text for text in (texts.subtitle, texts.ghost) if text]
    fill_box(frame, (*at(16, 16), round(300 * scale), round((36 + 20 * len(lines)) * scale)), PANEL, OPACITY)
    draw_text(frame, texts.title, at(28, 41), round(18 * scale), PAPER, is_bold=True)
    for number, line in enumerate(lines):
        draw_text(frame, line, at(28, 61 + 20 * number), round(13 * scale), SOFT)


def _draw_clock(frame: NDArray[np.uint8], state: HudState, scale: float) -> None:
    right = frame.shape[1] - round(16 * scale)
    width, height = round(228 * scale), round((82 if state.split else 52) * scale)
    fill_box(frame, (right - width, round(16 * scale), width, height), PANEL, OPACITY)
    edge = right - round(14 * scale)
    clock = f"{state.time_ms / 1000:.2f} s"
    draw_text(frame, clock, (edge, round(52 * scale)), round(30 * scale), PAPER, is_bold=True, anchor=1.0)
    if state.split:
        colour = SOFT if state.is_ahead is None else AHEAD if state.is_ahead else BEHIND
        draw_text(frame, state.split, (edge, round(84 * scale)), round(15 * scale), colour, is_bold=True, anchor=1.0)


def _draw_speed(frame: NDArray[np.uint8], state: HudState, scale: float) -> None:
    bottom = frame.shape[0] - round(16 * scale)
    left, width, height = round(16 * scale), round(176 * scale), round(72 * scale)
    fill_box(frame, (left, bottom - height, width, height), PANEL, OPACITY)
    base = bottom - round(22 * scale)
    number = f"{state.speed_mps * MPS_TO_KMH:.0f}"
    draw_text(frame, number, (left + round(104 * scale), base), round(42 * scale), PAPER, is_bold=True, anchor=1.0)
    draw_text(frame, "km/h", (left + round(114 * scale), base), round(16 * scale), SOFT)


def _draw_controls(frame: NDArray[np.uint8], controls: tuple[float, float, float], scale: float) -> None:
    """Draws steering as a bar from the middle, gas and brake as bars from the left."""
    bottom, left = frame.shape[0] - round(16 * scale), round(200 * scale)
    width, height = round(232 * scale), round(72 * scale)
    fill_box(frame, (left, bottom - height, width, height), PANEL, OPACITY)
    bar_left, bar_width, bar_height = left + round(62 * scale), round(156 * scale), round(10 * scale)
    steer, gas, brake = controls
    half = bar_width // 2
    filled = (
        ("steer", bar_left + half + min(0, round(steer * half)), abs(round(steer * half)), STEER),
        ("gas", bar_left, round(gas * bar_width), GAS),
        ("brake", bar_left, round(brake * bar_width), BRAKE),
    )
    for number, (name, start, length, colour) in enumerate(filled):
        top = bottom - height + round((12 + 20 * number) * scale)
        draw_text(frame, name, (left + round(12 * scale), top + bar_height), round(12 * scale), SOFT)
        fill_box(frame, (bar_left, top, bar_width, bar_height), TRACK)
        fill_box(frame, (start, top, length, bar_height), colour)
    fill_box(frame, (bar_left + half, bottom - height + round(10 * scale), max(1, round(scale)), bar_height + 4), PAPER)


def _draw_view(frame: NDArray[np.uint8], view: NDArray[np.uint8], scale: float) -> None:
    """Draws the agent's image, enlarged without smoothing, in the lower right corner."""
    factor = max(1, round(180 * scale / view.shape[0]))
    large = np.repeat(np.repeat(view, factor, axis=0), factor, axis=1)
    height, width = large.shape
    border, caption = max(2, round(4 * scale)), round(22 * scale)
    right, bottom = frame.shape[1] - round(16 * scale), frame.shape[0] - round(16 * scale)
    left, top = right - width - border, bottom - height - border
    fill_box(frame, (left - border, top - caption, width + 2 * border, height + caption + border), PANEL, OPACITY)
    frame[top : top + height, left : left + width] = large[:, :, None]
    label = f"what it sees: {view.shape[1]} \N{MULTIPLICATION SIGN} {view.shape[0]} grey"
    middle = left + width // 2
    draw_text(frame, label, (middle, top - round(7 * scale)), round(11 * scale), SOFT, anchor=0.5)
