"""Frames of the game: conversion between the game's pixels and agents' grey images, and frames of a simulated game."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.game.protocol import NUM_CHANNELS, MessageId
from rulka.simulator.params import SimulatorParams
from rulka.simulator.render import FrameRenderer, camera_array
from rulka.simulator.scene import bake_scene
from rulka.simulator.simulator import Simulator
from rulka.tracks.track import Track

_BRIGHTNESS = np.array([29, 150, 77, 0], np.float32) / 256
"""Weights of blue, green and red in brightness (ITU-R BT.601 in 256ths); they sum to 1, so that grey stays grey."""
_WIDENED = (np.arange(256, dtype=np.uint32) * 0x010101 + 0xFF000000).astype("<u4")
"""Lookup table from grey values to blue, green, red and an opaque fourth byte."""


def grey_from_bgra(pixels: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Converts a frame of the game to the grey image of an observation; keeps the row order.

    Args:
        pixels: [H, W, 4] blue, green, red, unused.
        out: [H, W] uint8, overwritten; for three equal colours exactly their value.
    """
    flat = pixels.reshape(-1, NUM_CHANNELS).astype(np.float32)
    out[:] = (flat @ _BRIGHTNESS).reshape(out.shape)


def bgra_from_grey(grey: NDArray[np.uint8], out: NDArray[np.uint32]) -> None:
    """Converts a grey image to the pixels that the game would send.

    Args:
        grey: [H, W].
        out: [H * W] little-endian pixels, overwritten.
    """
    np.take(_WIDENED, grey.ravel(), out=out, mode="clip")


class GameFrames:
    """Draws frame messages for a simulated car.

    A frame is the agents' image with three equal colours: converted to grey, it is the simulator's own observation, bit
    for bit.

    Args:
        track: the track.
        params: source of the camera.
    """

    def __init__(self, track: Track, params: SimulatorParams) -> None:
        self._scene, self._camera = bake_scene(track), camera_array(params.camera)
        self._grey = np.empty((1, 0, 0), np.uint8)
        self._message = np.empty(0, np.uint32)

    def draw(self, simulator: Simulator, width: int, height: int) -> memoryview:
        """Returns a full frame message, including its id; the next call overwrites it."""
        if self._grey.shape[1:] != (height, width):
            self._grey = np.empty((1, height, width), np.uint8)
            self._message = np.empty(1 + height * width, "<u4")
            self._message[0] = MessageId.FRAME
        FrameRenderer(simulator.cars, simulator.zone_index, self._scene, self._camera).render(self._grey)
        bgra_from_grey(self._grey[0], self._message[1:])
        return self._message.data.cast("B")
