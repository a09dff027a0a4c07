"""Pictures of Level 0."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.image import imread

from rulka.pretraining.plots import save_rows


def test_rows_of_images_lie_below_each_other(tmp_path: Path) -> None:
    rows = [np.full((3, 4, 5), grey, np.uint8) for grey in (0, 100, 200)]
    save_rows(tmp_path / "rows.png", *rows)
    picture = (imread(tmp_path / "rows.png")[..., 0] * 255).round()
    assert [picture[place, 4] for place in (3, 9, 15)] == [0, 100, 200]
