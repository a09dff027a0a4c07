"""Frame stacking: the newest frame of each car and those of the decisions before it.

At the start of a race, the first frame fills the whole stack. Dimensions: N cars, L frames, H x W pixels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class FrameStack:
    """The last L frames of every car.

    Attributes:
        stack: [N, L, H, W] uint8, oldest first.
        newest: [N, H, W] contiguous buffer for the renderer; `push` appends it to the stack.
    """

    def __init__(self, num_cars: int, image_shape: tuple[int, int, int]) -> None:
        self.stack = np.zeros((num_cars, *image_shape), np.uint8)
        self.newest = np.zeros((num_cars, *image_shape[1:]), np.uint8)

    def push(self, has_moved: bool, is_first: NDArray[np.bool_]) -> None:
        """Pushes `newest` onto the stack.

        Args:
            has_moved: True if a decision was taken since the last frames; otherwise `newest` replaces those.
            is_first: [N] True for cars whose race begins with this frame.
        """
        if has_moved:
            self.stack[:, :-1] = self.stack[:, 1:]
        self.stack[:, -1] = self.newest
        self.stack[is_first] = self.newest[is_first, None]
