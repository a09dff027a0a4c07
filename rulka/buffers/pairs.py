"""Preference pairs: of two stretches of races from the same place, the better one.

Dimensions: M decisions, S stretches, P pairs, K actions of a decision, L frames seen at once, H x W pixels, F floats.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class PreferencePairs(NamedTuple):
    """Stretches, one after another, and which of two is preferred; a stretch may be in several pairs.

    Attributes:
        image: [M, L, H, W] uint8.
        floats: [M, F] float32 raw.
        action: [M, K] indices of the actions of each decision.
        num_decisions: [S] int64 of each stretch; M together.
        pairs: [P, 2] int64 the preferred stretch and the other one.
    """

    image: NDArray[np.uint8]
    floats: NDArray[np.float32]
    action: NDArray
    num_decisions: NDArray[np.int64]
    pairs: NDArray[np.int64]
