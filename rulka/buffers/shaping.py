"""Potential-based shaping of single decisions, Ng et al. 1999, for algorithms without mini-races.

Dimensions: T decisions, N cars.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.buffers.experience import ExperienceBlock


def shaped_rewards(block: ExperienceBlock, discount: float) -> NDArray[np.float32]:
    """Returns rewards [T, N] with gamma phi(s') - phi(s) added; phi(s') is 0 where a race ended for good."""
    following = np.where(block.terminated, np.float32(0.0), block.potential[1:])
    return block.reward + np.float32(discount) * following - block.potential[:-1]
