"""Pictures of a race for people: the car from behind, with speed, time and inputs written over it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.actions import ActionTable
from rulka.envs.batch import RaceBatch
from rulka.envs.settings import SettingsError
from rulka.observation import CAR
from rulka.simulator.render import POSE_SIZE, render_rgb

WIDTH, HEIGHT = 640, 480
RENDER_FPS = 20
"""One picture a decision of 50 ms shows the race in real time."""
RENDER_MODES = ("rgb_array",)
MPS_TO_KMH = 3.6
Colour = tuple[int, int, int]
PAPER: Colour = (245, 246, 248)
PANEL: Colour = (18, 21, 27)
UNPRESSED: Colour = (62, 69, 80)
GAS, BRAKE, STEER = (47, 195, 154), (240, 140, 60), (86, 180, 233)
KEYS: tuple[tuple[str, int, Colour], ...] = (("<", 2, STEER), ("^", 0, GAS), ("v", 1, BRAKE), (">", 3, STEER))
"""Sign, place among the keys of the observation, and colour when pressed, from left to right."""

_GLYPHS = {
    "0": "01110 10001 10011 10101 11001 10001 01110",
    "1": "00100 01100 00100 00100 00100 00100 01110",
    "2": "01110 10001 00001 00010 00100 01000 11111",
    "3": "11111 00010 00100 00010 00001 10001 01110",
    "4": "00010 00110 01010 10010 11111 00010 00010",
    "5": "11111 10000 11110 00001 00001 10001 01110",
    "6": "00110 01000 10000 11110 10001 10001 01110",
    "7": "11111 00001 00010 00100 01000 01000 01000",
    "8": "01110 10001 10001 01110 10001 10001 01110",
    "9": "01110 10001 10001 01111 00001 00010 01100",
    ".": "00000 00000 00000 00000 00000 01100 01100",
    "/": "00001 00001 00010 00100 01000 10000 10000",
    "k": "10000 10000 10010 10100 11000 10100 10010",
    "m": "00000 00000 11010 10101 10101 10001 10001",
    "h": "10000 10000 10110 11001 10001 10001 10001",
    "s": "00000 00000 01110 10000 01110 00001 11110",
    "<": "00010 00100 01000 10000 01000 00100 00010",
    ">": "01000 00100 00010 00001 00010 00100 01000",
    "^": "00100 01110 10101 00100 00100 00100 00100",
    "v": "00100 00100 00100 00100 10101 01110 00100",
    " ": "00000 00000 00000 00000 00000 00000 00000",
}


def pictures_per_s(table: ActionTable) -> int:
    """Returns what shows a race in real time, one picture a decision."""
    return max(1, round(1000 / table.duration_ms))


def check_render_mode(render_mode: str | None) -> str | None:
    """Returns the render mode, or raises SettingsError where there is no such one."""
    if render_mode is not None and render_mode not in RENDER_MODES:
        message = f"render_mode {render_mode!r} is not known; it is None or one of {list(RENDER_MODES)}"
        raise SettingsError(message)
    return render_mode


def race_picture(batch: RaceBatch, car: int) -> NDArray[np.uint8]:
    """Draws one car of a batch [480, 640, 3]."""
    simulator = batch.simulator
    row = simulator.cars[car]
    picture = render_rgb(batch.scene, row[:POSE_SIZE], int(simulator.zone_index[car]), WIDTH, HEIGHT)
    speed_kmh = float(np.linalg.norm(row[CAR["velocity"]])) * MPS_TO_KMH
    _write(picture, f"{speed_kmh:3.0f} km/h", 16, HEIGHT - 46)
    _write(picture, f"{batch.scores.facts()['time_ms'][car] / 1000.0:6.2f} s", WIDTH - 170, 16)
    for number, (sign, key, colour) in enumerate(KEYS):
        x, y = WIDTH - 160 + 36 * number, HEIGHT - 46
        _fill(picture, x, y, 32, 32, PANEL)
        _fill(picture, x + 3, y + 3, 26, 26, colour if simulator.previous_keys[car, -1, key] else UNPRESSED)
        _stamp(picture, _mask(sign, 2), x + 11, y + 9)
    return picture


def _write(picture: NDArray[np.uint8], text: str, x: int, y: int) -> None:
    """Writes a line of text, 21 pixels high, on a dark panel; x and y are its upper left corner."""
    mask = _mask(text, 3)
    _fill(picture, x - 6, y - 4, mask.shape[1] + 9, mask.shape[0] + 8, PANEL)
    _stamp(picture, mask, x, y)


def _mask(text: str, scale: int) -> NDArray[np.bool_]:
    mask = np.concatenate([_glyph(letter) for letter in text], axis=1)
    return np.repeat(np.repeat(mask, scale, axis=0), scale, axis=1)


def _stamp(picture: NDArray[np.uint8], mask: NDArray[np.bool_], x: int, y: int) -> None:
    picture[y : y + mask.shape[0], x : x + mask.shape[1]][mask] = PAPER


def _glyph(letter: str) -> NDArray[np.bool_]:
    """Returns a letter [7, 6], the last column empty."""
    rows = [[bit == "1" for bit in row] + [False] for row in _GLYPHS[letter].split()]
    return np.array(rows)


def _fill(picture: NDArray[np.uint8], x: int, y: int, width: int, height: int, colour: Colour) -> None:
    picture[y : y + height, x : x + width] = colour
