"""Domain randomisation: each race has its own friction, camera, light and noise, drawn as it begins.

Dimensions: N cars, H x W pixels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.params import CameraParams, RandomisationParams
from rulka.simulator.camera import camera_array
from rulka.simulator.relight import relight

FRICTION, BACK, HEIGHT, PITCH, GAIN, OFFSET, NOISE, KEY, NUM_DRAWS = range(9)
"""Columns of the draws, each uniform in [0, 1)."""
MIN_HEIGHT_M, MAX_PITCH_DEG = 0.1, 59.0
"""A camera is not moved beyond these."""
FRAME_KEY = np.uint64(0x9E3779B97F4A7C15)
"""Spreads the times of a race's frames over the keys of their noise."""


class Randomiser:
    """What differs from race to race.

    Attributes:
        draws: [N, NUM_DRAWS] chance of each car's race; all else follows from it.
    """

    def __init__(self, params: RandomisationParams, camera: CameraParams, num_cars: int) -> None:
        self._params, self._camera = params, camera
        self.draws = np.full((num_cars, NUM_DRAWS), 0.5)

    def begin(self, which: NDArray[np.bool_], draws: NDArray[np.float64]) -> None:
        """Takes the draws of the races of chosen cars [N], in rows [N, NUM_DRAWS]."""
        self.draws[which] = draws[which]

    def friction(self) -> NDArray[np.float64]:
        """[N] factor on the grip."""
        return 1.0 + self._params.friction * self._spread(FRICTION)

    def cameras(self) -> NDArray[np.float32]:
        """[N, 5] camera of each car."""
        moved = self._params.camera_m
        back = self._camera.back_m + moved * self._spread(BACK)
        height = np.maximum(self._camera.height_m + moved * self._spread(HEIGHT), MIN_HEIGHT_M)
        pitch = self._camera.pitch_deg + self._params.camera_deg * self._spread(PITCH)
        pitch = np.clip(pitch, -MAX_PITCH_DEG, MAX_PITCH_DEG)
        numbers = zip(back.tolist(), height.tolist(), pitch.tolist(), strict=True)
        return np.stack(
            [
                camera_array(self._camera.model_copy(update={"back_m": b, "height_m": h, "pitch_deg": p}))
                for b, h, p in numbers
            ]
        )

    def relight(self, images: NDArray[np.uint8], time_ms: NDArray[np.int64]) -> None:
        """Changes light and noise of frames [N, H, W] in place; noise differs from time to time [N]."""
        params = self._params
        gain = (1.0 + params.light_gain * self._spread(GAIN)).astype(np.float32)
        offset = (params.light_offset * self._spread(OFFSET)).astype(np.float32)
        noise = (params.pixel_noise * self.draws[:, NOISE]).astype(np.float32)
        keys = (self.draws[:, KEY] * 2.0**53).astype(np.uint64) + time_ms.astype(np.uint64) * FRAME_KEY
        relight(images, gain, offset, noise, keys)

    def _spread(self, column: int) -> NDArray[np.float64]:
        """[N] from -1 to 1."""
        return 2.0 * self.draws[:, column] - 1.0
