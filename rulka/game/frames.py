"""Frames of the game, as agents see them and as the game sends them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.game.protocol import NUM_CHANNELS

_BRIGHTNESS = np.array([29, 150, 77, 0], np.float32) / 256
"""Shares of blue, green and red in brightness (ITU-R BT.601 in 256ths): they add up to 1, so that grey stays grey."""
_WIDENED = (np.arange(256, dtype=np.uint32) * 0x010101 + 0xFF000000).astype("<u4")
"""A grey value as blue, green, red and an opaque fourth byte."""


def grey_from_bgra(pixels: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Turns a frame of the game into the grey image of an observation; the row order is kept.

    Args:
        pixels: [H, W, 4] blue, green, red, unused.
        out: [H, W] uint8, overwritten; where all three colours are equal, exactly their value.
    """
    flat = pixels.reshape(-1, NUM_CHANNELS).astype(np.float32)
    out[:] = (flat @ _BRIGHTNESS).reshape(out.shape)


def bgra_from_grey(grey: NDArray[np.uint8], out: NDArray[np.uint32]) -> None:
    """Turns a grey image into what the game would send.

    Args:
        grey: [H, W].
        out: [H * W] little-endian pixels, overwritten.
    """
    np.take(_WIDENED, grey.ravel(), out=out, mode="clip")


def bgra_from_rgb(rgb: NDArray[np.uint8], out: NDArray[np.uint32]) -> None:
    """Turns a colour image [H, W, 3] into what the game would send, [H * W] as above."""
    pixels = out.view(np.uint8).reshape(*rgb.shape[:2], NUM_CHANNELS)
    pixels[..., :3], pixels[..., 3] = rgb[..., ::-1], 255
