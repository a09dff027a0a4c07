"""The frames that a car sees at once: the newest, and those of the decisions before it.

At the start of a race, the first frame stands for those before it. Dimensions: N cars, L frames, H x W pixels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class FrameHistory:
    """The last L frames of every car.

    Attributes:
        seen: [N, L, H, W] uint8, oldest first.
        newest: [N, H, W], contiguous, for whoever draws the next frames; `add` then takes them in.
    """

    def __init__(self, num_cars: int, image_shape: tuple[int, int, int]) -> None:
        self.seen = np.zeros((num_cars, *image_shape), np.uint8)
        self.newest = np.zeros((num_cars, *image_shape[1:]), np.uint8)

    def add(self, has_moved: bool, is_first: NDArray[np.bool_]) -> None:
        """Takes in what was drawn into `newest`.

        Args:
            has_moved: whether a decision lies between these frames and those before them, which they else replace.
            is_first: [N] cars whose race begins with them.
        """
        if has_moved:
            self.seen[:, :-1] = self.seen[:, 1:]
        self.seen[:, -1] = self.newest
        self.seen[is_first] = self.newest[is_first, None]
