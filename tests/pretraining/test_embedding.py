"""Where features put frames, worked by hand; and pictures of it where there is little to show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from rulka.pretraining.embedding import Embedding, nearest_in_other_races, principal_plane
from rulka.pretraining.plots import plot_embedding, plot_neighbours, save_rows


def test_nearest_frames_are_of_other_races() -> None:
    """Around a mean of (5, 5) by their angles, whatever their lengths: 0, 10, 50, 182, 200 and 120 degrees."""
    degrees = np.array([0.0, 10.0, 50.0, 182.0, 200.0, 120.0])
    around = np.stack([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], axis=1)
    lengths = np.array([1.0, 9.0, 2.0, 3.0, 1.0, 2.0])
    around = around * lengths[:, None]
    features = np.concatenate([around, -around]) + 5.0  # opposites, so that the mean is known
    race = np.array([0, 0, 1, 1, 2, 2] + [3] * 6, np.int32)
    found = nearest_in_other_races(features, race, np.array([0, 4]), 3)
    # From 0 degrees: 2, 20 and 50. From 200: 190, 182 and 180.
    assert found.tolist() == [[9, 10, 2], [7, 3, 6]]


def test_no_more_frames_than_the_other_races_have() -> None:
    features = np.random.default_rng(0).normal(size=(5, 3))
    found = nearest_in_other_races(features, np.array([0, 0, 0, 1, 1], np.int32), np.array([0, 3]), 4)
    assert found.shape == (2, 2)
    assert set(found[0]) == {3, 4}


def test_the_plane_has_the_directions_of_most_variance() -> None:
    rng = np.random.default_rng(0)
    spread = np.array([1.0, 10.0, 0.1, 4.0])
    features = rng.normal(size=(2000, 4)) * spread + 7.0
    plane, shares = principal_plane(features)
    centred = features - features.mean(axis=0)
    for column, feature in enumerate((1, 3)):
        assert abs(np.corrcoef(plane[:, column], centred[:, feature])[0, 1]) > 0.99
    np.testing.assert_allclose(shares, np.array([100.0, 16.0]) / (spread**2).sum(), rtol=0.1)


@pytest.mark.parametrize("num_frames", [1, 2])
def test_a_plane_of_few_frames_is_finite(num_frames: int) -> None:
    plane, shares = principal_plane(np.ones((num_frames, 3)))
    np.testing.assert_array_equal(plane, np.zeros((num_frames, 2)))
    np.testing.assert_array_equal(shares, np.zeros(2))


def embedding(num_races: int, num_frames: int = 8) -> Embedding:
    rng = np.random.default_rng(0)
    count = num_races * num_frames
    along_m = np.tile(np.arange(num_frames, dtype=np.float32), num_races)
    images = rng.integers(0, 256, (count, 34, 40), dtype=np.uint8)
    race = np.repeat(np.arange(num_races, dtype=np.int32), num_frames)
    return Embedding(rng.normal(size=(count, 6)), images, race, along_m.astype(np.float64), along_m)


def test_pictures_are_drawn_where_there_are_other_races_and_where_there_are_none(tmp_path: Path) -> None:
    plot_neighbours(tmp_path / "many.png", embedding(3))
    plot_neighbours(tmp_path / "few.png", embedding(2, num_frames=2))
    plot_neighbours(tmp_path / "one.png", embedding(1))
    dark = {name: float((imread(tmp_path / f"{name}.png")[..., 0] < 0.6).mean()) for name in ("many", "few", "one")}
    assert dark["many"] > dark["few"] > 5 * dark["one"]
    plot_embedding(tmp_path / "plane.png", embedding(1, num_frames=1))
    assert imread(tmp_path / "plane.png").shape == (400, 900, 4)


def test_rows_of_images_lie_below_each_other(tmp_path: Path) -> None:
    rows = [np.full((3, 4, 5), grey, np.uint8) for grey in (0, 100, 200)]
    save_rows(tmp_path / "rows.png", *rows)
    picture = (imread(tmp_path / "rows.png")[..., 0] * 255).round()
    assert [picture[place, 4] for place in (3, 9, 15)] == [0, 100, 200]
