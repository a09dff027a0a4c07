"""Colours of the scene by name: RGB for people, and their brightness (grey) for agents."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_COLOURS: tuple[tuple[str, tuple[int, int, int]], ...] = (
    ("sky_zenith", (84, 140, 208)),
    ("sky_horizon", (206, 222, 236)),
    ("ground_horizon", (150, 164, 140)),
    ("ground_near", (104, 132, 78)),
    ("terrain", (112, 148, 78)),  # the terrain beside the road alternates between this ink and the next
    ("terrain_dark", (92, 126, 62)),
    ("asphalt", (70, 70, 74)),
    ("asphalt_dark", (54, 54, 58)),
    ("dirt", (132, 98, 66)),
    ("dirt_dark", (114, 84, 54)),
    ("grass_road", (84, 112, 52)),
    ("grass_road_dark", (72, 98, 44)),
    ("turbo", (214, 190, 40)),
    ("turbo_dark", (190, 120, 30)),
    ("other_road", (96, 98, 104)),
    ("other_road_dark", (82, 84, 90)),
    ("line", (250, 250, 250)),  # painted along both edges
    ("line_dark", (232, 226, 226)),
    ("underside", (40, 40, 44)),
    ("wall", (178, 172, 160)),
    ("wall_dark", (150, 144, 134)),
    ("post", (28, 28, 34)),
    ("start_banner", (245, 245, 245)),
    ("checkpoint_banner", (24, 48, 110)),
    ("finish_light", (250, 250, 250)),
    ("finish_dark", (12, 12, 12)),
    ("car_side", (168, 24, 28)),
    ("car_top", (214, 40, 40)),
    ("car_end", (120, 14, 18)),
    ("cabin_side", (38, 44, 58)),
    ("cabin_top", (58, 66, 84)),
    ("cabin_end", (26, 32, 44)),
    ("tyre_side", (22, 22, 24)),
    ("tyre_top", (44, 44, 48)),
    ("tyre_end", (30, 30, 33)),
    ("other_side", (36, 84, 160)),
    ("other_top", (70, 130, 210)),
    ("other_end", (24, 60, 120)),
)

INK: dict[str, int] = {name: index for index, (name, _) in enumerate(_COLOURS)}
"""Index of every ink by name."""

RGB_INK: NDArray[np.float32] = np.array([colour for _, colour in _COLOURS], np.float32)
"""[I, 3] red, green and blue of every ink, 0 to 255."""

GREY_INK: NDArray[np.float32] = (RGB_INK * np.array([0.299, 0.587, 0.114], np.float32)).sum(axis=1)
"""[I] brightness of every ink, weighted by ITU-R BT.601 like the game's captured frames."""
