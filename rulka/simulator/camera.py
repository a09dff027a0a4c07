"""The simulator's camera: behind and above the car, turned with it, like the game's camera 2.

Where that place would be under the road or its terrain, as in a jump with the nose up, it is lifted above them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rulka.params import CameraParams

_PEOPLE = CameraParams(back_m=8.0, height_m=3.0, pitch_deg=9.0, fov_deg=78.0)
"""Shows the own car in the lower middle of a picture; decides nothing that an agent sees."""


def camera_array(camera: CameraParams) -> NDArray[np.float32]:
    """Packs the camera for the kernels, which take it as an argument so that a change always takes effect.

    Returns:
        [5] float32: metres behind the car, metres above it, sine and cosine of the downward pitch, and the focal
        length in half image widths.
    """
    pitch, half_view = math.radians(camera.pitch_deg), math.radians(camera.fov_deg) / 2.0
    numbers = (camera.back_m, camera.height_m, math.sin(pitch), math.cos(pitch), 1.0 / math.tan(half_view))
    return np.array(numbers, dtype=np.float32)


def people_camera() -> NDArray[np.float32]:
    """Returns the camera of pictures and videos for people."""
    return camera_array(_PEOPLE)
