"""The small map over the video: the track from above, with a dot for each car."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.tracks.top_view import top_view
from rulka.tracks.track import Track
from rulka.video.hud import DESIGN_HEIGHT, OPACITY, PANEL, PAPER, SOFT
from rulka.video.text import Colour, blend, fill_box

LEFT, TOP, WIDTH, MAX_HEIGHT, MARGIN = 16, 108, 300, 170, 14
"""Place and size in an image that is `DESIGN_HEIGHT` high."""
LINE_PX, DOT_PX = 3.0, 11.0
CAR: Colour = (230, 60, 56)
GHOST: Colour = (90, 150, 235)


class Minimap:
    """Draws the map onto images of one height."""

    def __init__(self, track: Track, image_height: int) -> None:
        self._scale = image_height / DESIGN_HEIGHT
        self._view = top_view(track)
        path = self._view(track.centre_m)
        self._low, size = path.min(axis=0), np.maximum(np.ptp(path, axis=0), 1.0)
        room = np.array([WIDTH - 2 * MARGIN, MAX_HEIGHT - 2 * MARGIN]) * self._scale
        self._pixels_per_m = float((room / size).min())
        self._size = np.round(size * self._pixels_per_m + 2 * MARGIN * self._scale).astype(int)
        self._line = self._draw_line(self._places(track.centre_m))
        ends = self._places(track.centre_m[[0, -1]])
        self._ends = [(int(x), int(y)) for x, y in np.round(ends)]

    def draw(self, frame: NDArray[np.uint8], car_m: NDArray[np.floating], ghosts_m: NDArray[np.floating]) -> None:
        """Draws the map onto an image [H, W, 3], changed in place.

        Args:
            frame: the image.
            car_m: [3] world position of the car that is followed.
            ghosts_m: [M, 3] of the others.
        """
        corner = (round(LEFT * self._scale), round(TOP * self._scale))
        fill_box(frame, (*corner, int(self._size[0]), int(self._size[1])), PANEL, OPACITY)
        blend(frame, self._line, corner, SOFT)
        for x, y in self._ends:
            self._dot(frame, corner, (x, y), 0.6 * DOT_PX, PAPER)
        places = np.round(self._places(np.concatenate([ghosts_m, car_m[None]]).astype(np.float64)))
        for k, (x, y) in enumerate(places):
            self._dot(frame, corner, (int(x), int(y)), DOT_PX, GHOST if k < len(ghosts_m) else CAR)

    def _places(self, position_m: NDArray[np.floating]) -> NDArray[np.float64]:
        """Maps world positions [K, 3] to pixels [K, 2] of the map."""
        flat = (self._view(position_m) - self._low) * self._pixels_per_m + MARGIN * self._scale
        return np.stack([flat[:, 0], self._size[1] - flat[:, 1]], axis=1)

    def _draw_line(self, places: NDArray[np.float64]) -> NDArray[np.float32]:
        """Returns the coverage of a line through places [K, 2]."""
        mask = np.zeros((int(self._size[1]), int(self._size[0])), np.float32)
        brush = _disc(LINE_PX * self._scale)
        for x, y in np.round(places).astype(int):
            top, left = y - brush.shape[0] // 2, x - brush.shape[1] // 2
            part = mask[max(top, 0) : top + brush.shape[0], max(left, 0) : left + brush.shape[1]]
            np.maximum(part, brush[: part.shape[0], : part.shape[1]], out=part)
        return mask

    def _dot(
        self, frame: NDArray[np.uint8], corner: tuple[int, int], place: tuple[int, int], size_px: float, colour: Colour
    ) -> None:
        disc = _disc(size_px * self._scale)
        half = disc.shape[0] // 2
        blend(frame, disc, (corner[0] + place[0] - half, corner[1] + place[1] - half), colour)


def _disc(diameter_px: float) -> NDArray[np.float32]:
    """Returns the coverage of a disc with smooth borders."""
    half = int(np.ceil(diameter_px / 2.0)) + 1
    y, x = np.mgrid[-half : half + 1, -half : half + 1]
    return np.clip(diameter_px / 2.0 - np.hypot(x, y) + 0.5, 0.0, 1.0).astype(np.float32)
