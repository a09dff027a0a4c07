"""Small text on images, with the font that comes with matplotlib."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from matplotlib import font_manager
from matplotlib.ft2font import FT2Font
from numpy.typing import NDArray

Colour = tuple[int, int, int]


@lru_cache(maxsize=8)
def _font(is_bold: bool) -> FT2Font:
    weight = "bold" if is_bold else "normal"
    return FT2Font(font_manager.findfont(font_manager.FontProperties(family="DejaVu Sans", weight=weight)))


@lru_cache(maxsize=512)
def text_mask(text: str, size_px: int, is_bold: bool = False) -> tuple[NDArray[np.float32], int]:
    """Draws a line of text, without the letters that the font does not have.

    Args:
        text: one line, not empty.
        size_px: height of the font.
        is_bold: whether to use the bold font.

    Returns:
        [h, w] coverage in [0, 1], and the number of its rows below the base line.
    """
    font = _font(is_bold)
    font.set_size(size_px, 72)
    font.set_text("".join(letter for letter in text if font.get_char_index(ord(letter))) or " ")
    font.draw_glyphs_to_bitmap(antialiased=True)
    return np.asarray(font.get_image(), dtype=np.float32) / 255.0, round(font.get_descent() / 64.0)


def draw_text(
    frame: NDArray[np.uint8],
    text: str,
    at: tuple[int, int],
    size_px: int,
    colour: Colour,
    *,
    is_bold: bool = False,
    anchor: float = 0.0,
) -> int:
    """Paints a line of text onto an image, clipped at its borders.

    Args:
        frame: [H, W, 3] image, changed in place.
        text: one line.
        at: x of the text, y of its base line, pixels.
        size_px: height of the font.
        colour: red, green, blue.
        is_bold: whether to use the bold font.
        anchor: which part of the text stands at x: 0 its left end, 0.5 its middle, 1 its right end.

    Returns:
        Width of the text in pixels.
    """
    if not text:
        return 0
    mask, below = text_mask(text, size_px, is_bold)
    height, width = mask.shape
    left, top = round(at[0] - anchor * width), at[1] - (height - below)
    blend(frame, mask, (left, top), colour)
    return width


def blend(frame: NDArray[np.uint8], mask: NDArray[np.float32], at: tuple[int, int], colour: Colour) -> None:
    """Mixes a colour into an image where a mask covers it.

    Args:
        frame: [H, W, 3] image, changed in place.
        mask: [h, w] coverage in [0, 1].
        at: x and y of the mask's upper left corner; may lie outside.
        colour: red, green, blue.
    """
    left, top = at
    x0, y0 = max(left, 0), max(top, 0)
    x1, y1 = min(left + mask.shape[1], frame.shape[1]), min(top + mask.shape[0], frame.shape[0])
    if x0 >= x1 or y0 >= y1:
        return
    cover = mask[y0 - top : y1 - top, x0 - left : x1 - left, None]
    part = frame[y0:y1, x0:x1]
    frame[y0:y1, x0:x1] = np.round(part + cover * (np.array(colour, np.float32) - part)).astype(np.uint8)


def fill_box(frame: NDArray[np.uint8], box: tuple[int, int, int, int], colour: Colour, opacity: float = 1.0) -> None:
    """Fills a box of left, top, width and height in pixels, clipped at the image's borders."""
    left, top, width, height = box
    part = frame[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)]
    # A box changes equal pixels equally: 256 sums and a look-up instead of a sum for each of its pixels.
    levels = np.arange(256, dtype=np.float32)[:, None]
    mixed = np.round(levels + np.float32(opacity) * (np.array(colour, np.float32) - levels)).astype(np.uint8)
    for channel in range(3):
        part[:, :, channel] = mixed[part[:, :, channel], channel]
