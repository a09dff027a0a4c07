"""The simulator's camera: behind and above the car, turned with it, like the game's camera 2."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rulka.params import CameraParams


def camera_array(camera: CameraParams) -> NDArray[np.float32]:
    """Packs the camera for the kernels, which take it as an argument so that a change always takes effect.

    Returns:
        [5] float32: metres behind the car, metres above it, sine and cosine of the downward pitch, and the focal
        length in half image widths.
    """
    pitch, half_view = math.radians(camera.pitch_deg), math.radians(camera.fov_deg) / 2.0
    numbers = (camera.back_m, camera.height_m, math.sin(pitch), math.cos(pitch), 1.0 / math.tan(half_view))
    return np.array(numbers, dtype=np.float32)
