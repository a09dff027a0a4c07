"""What the renderer's kernels read of a track: arrays, and where each number lies in them. Baked by `scene`.

Dimensions: S sections, C chunks of `CHUNK_SECTIONS` sections, G gates with the start, I inks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CHUNK_SECTIONS = 16
"""Sections in one piece (8 m) of road that is far along the line but near in space."""
LIGHT, SURFACE, EDGE, NUM_COLUMNS = 9, 10, 11, 12
"""Later columns of a section."""
SECTION_STEPS = (4, 8, 16, 32, 64, 128)
"""Lengths of the strips that the renderer draws, in sections."""
GATE_START, GATE_CHECKPOINT, GATE_FINISH = 0, 1, 2


class Scene(NamedTuple):
    """What the renderer needs of a track.

    Attributes:
        sections: [S, NUM_COLUMNS] float32: centre (3), unit vector to the left edge (3), half width, width of the
            terrain on the left and on the right, light (a factor around 1 that grows with the slope towards the sun),
            first ink of the road surface, edge kind (`rulka.tracks.track`).
        deviation: [len(SECTION_STEPS), S / 4] float32 metres by which a straight strip of that length, beginning at a
            section that is a multiple of four, strays from the road's true course.
        neighbours: [C, MAX_NEIGHBOURS, 2] int32 first and last section of stretches of road near in space, nearest
            first; -1 is none.
        gates: [G, 2] int32 section and kind (0 start, 1 checkpoint, 2 finish).
        ink: [I] float32 brightness of everything, 0 to 255, by `palette.INK`.
        num_before: sections before zone 0.
        view_m: how far along the line road is drawn.
    """

    sections: NDArray[np.float32]
    deviation: NDArray[np.float32]
    neighbours: NDArray[np.int32]
    gates: NDArray[np.int32]
    ink: NDArray[np.float32]
    num_before: int
    view_m: float

    @property
    def num_bytes(self) -> int:
        """Memory of the arrays."""
        return sum(part.nbytes for part in self if isinstance(part, np.ndarray))
