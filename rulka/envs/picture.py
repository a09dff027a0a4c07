"""Rendered pictures of a race: the car from behind, with speed, time and inputs overlaid."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from rulka.contracts.actions import ActionTable
from rulka.contracts.observation import CAR
from rulka.envs.batch import RaceBatch
from rulka.machine.errors import UserError
from rulka.simulator.render import POSE_SIZE, render_rgb

WIDTH, HEIGHT = 640, 480
RENDER_FPS = 20
"""Frame rate for real time at one picture per decision of 50 ms."""
RENDER_MODES = ("rgb_array",)
MPS_TO_KMH = 3.6
Colour = tuple[int, int, int]
PAPER: Colour = (245, 246, 248)
PANEL: Colour = (18, 21, 27)
UNPRESSED: Colour = (62, 69, 80)
GAS, BRAKE, STEER = (47, 195, 154), (240, 140, 60), (86, 180, 233)
KEYS: tuple[tuple[str, int, Colour], ...] = (("<", 2, STEER), ("^", 0, GAS), ("v", 1, BRAKE), (">", 3, STEER))
"""Symbol, index among the keys of the observation, and colour when pressed, from left to right."""

FONT = ImageFont.load_default(26)


def pictures_per_s(table: ActionTable) -> int:
    """Returns the frame rate for real time at one picture per decision."""
    return max(1, round(1000 / table.duration_ms))


def check_render_mode(render_mode: str | None) -> str | None:
    """Returns the render mode, or raises UserError if it is unknown."""
    if render_mode is not None and render_mode not in RENDER_MODES:
        raise UserError(f"render_mode {render_mode!r} is not known; it is None or one of {list(RENDER_MODES)}")
    return render_mode


def race_picture(batch: RaceBatch, car: int) -> NDArray[np.uint8]:
    """Draws one car of a batch [480, 640, 3]."""
    simulator = batch.simulator
    row = simulator.cars[car]
    picture = Image.fromarray(render_rgb(batch.scene, row[:POSE_SIZE], int(simulator.zone_index[car]), WIDTH, HEIGHT))
    pen = ImageDraw.Draw(picture)
    speed_kmh = float(np.linalg.norm(row[CAR["velocity"]])) * MPS_TO_KMH
    texts = [(f"{speed_kmh:3.0f} km/h", 16, HEIGHT - 46, PAPER)]
    texts.append((f"{batch.scores.facts()['time_ms'][car] / 1000.0:6.2f} s", WIDTH - 170, 16, PAPER))
    for number, (sign, key, colour) in enumerate(KEYS):
        is_pressed = simulator.previous_keys[car, -1, key]
        texts.append((sign, WIDTH - 160 + 36 * number, HEIGHT - 46, colour if is_pressed else UNPRESSED))
    for text, x, y, colour in texts:
        left, top, right, bottom = pen.textbbox((x, y), text, FONT)
        pen.rectangle((left - 6, top - 4, right + 6, bottom + 4), PANEL)
        pen.text((x, y), text, colour, FONT)
    return np.array(picture)
