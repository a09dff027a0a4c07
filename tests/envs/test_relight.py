"""Relit frames against the formula, statistics of the noise, and its independence of the batch."""

import numpy as np
import pytest

from rulka.envs.randomising import relight as relight_pixels


def numbers(count, gain=1.0, offset=0.0, noise=0.0):
    full = [np.full(count, value, np.float32) for value in (gain, offset, noise)]
    return (*full, np.arange(count, dtype=np.uint64) * np.uint64(977) + np.uint64(3))


def relight(images, *numbers) -> None:
    relight_pixels(images.reshape(len(images), -1), *numbers)


def test_nothing_changes_without_light_and_noise() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 9)).astype(np.uint8)
    relit = images.copy()
    relight(relit, *numbers(3))
    assert np.array_equal(relit, images)


def test_gain_and_offset_by_hand() -> None:
    """10 * 1.5 - 4 = 11, 100 -> 146, 200 -> 296, cut at 255, 0 -> -4, cut at 0."""
    images = np.array([[[10, 100], [200, 0]]], np.uint8)
    relight(images, *numbers(1, 1.5, -4.0))
    assert images.tolist() == [[[11, 146], [255, 0]]]


def test_noise_has_the_deviation_asked_for_and_no_pattern() -> None:
    images = np.full((2, 128, 128), 128, np.uint8)
    relight(images, *numbers(2, noise=10.0))
    noise = images.astype(float) - 128.0
    assert noise.mean() == pytest.approx(0.0, abs=0.25)
    assert noise.std() == pytest.approx(10.0, rel=0.02)
    within = (np.abs(noise) < 10.0).mean()  # rounded, so within 9.5; a normal distribution has 65.8 % there
    assert within == pytest.approx(0.658, abs=0.012)
    neighbours = [noise[:, :, 1:] * noise[:, :, :-1], noise[:, 1:] * noise[:, :-1], noise[0] * noise[1]]
    assert all(abs(product.mean()) < 3.0 for product in neighbours), "100 would be the same noise"


def test_a_frame_does_not_depend_on_its_batch() -> None:
    images = np.random.default_rng(1).integers(0, 256, (5, 16, 16)).astype(np.uint8)
    arguments = numbers(5, 0.8, 5.0, 6.0)
    together = images.copy()
    relight(together, *arguments)
    for k in (0, 3, 4):
        alone = images[k : k + 1].copy()
        relight(alone, *(values[k : k + 1] for values in arguments))
        assert np.array_equal(alone[0], together[k])
