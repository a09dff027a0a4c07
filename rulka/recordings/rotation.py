"""Unit quaternions (w, x, y, z) and 3 x 3 rotation matrices, in batches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_NEARLY_PARALLEL = 0.9995


def quaternion_to_matrix(quaternion: NDArray) -> NDArray[np.float64]:
    """Turns [N, 4] quaternions into [N, 3, 3] matrices; they need not be of unit length."""
    unit = quaternion.astype(np.float64)
    unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
    w, x, y, z = unit.T
    return np.stack(
        [
            np.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], axis=1),
            np.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)], axis=1),
            np.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], axis=1),
        ],
        axis=1,
    )


def matrix_to_quaternion(matrix: NDArray) -> NDArray[np.float64]:
    """Turns [N, 3, 3] rotation matrices into [N, 4] unit quaternions; the sign is arbitrary.

    Each of w, x, y, z in turn may be the largest; the rest follow from it, which never divides by a small number.
    """
    m = matrix.astype(np.float64)
    xx, yy, zz = m[:, 0, 0], m[:, 1, 1], m[:, 2, 2]
    squares = np.stack([1 + xx + yy + zz, 1 + xx - yy - zz, 1 - xx + yy - zz, 1 - xx - yy + zz], axis=1)
    wx, wy, wz = m[:, 2, 1] - m[:, 1, 2], m[:, 0, 2] - m[:, 2, 0], m[:, 1, 0] - m[:, 0, 1]
    xy, xz, yz = m[:, 0, 1] + m[:, 1, 0], m[:, 0, 2] + m[:, 2, 0], m[:, 1, 2] + m[:, 2, 1]
    products = np.stack(
        [
            np.stack([squares[:, 0], wx, wy, wz], axis=1),
            np.stack([wx, squares[:, 1], xy, xz], axis=1),
            np.stack([wy, xy, squares[:, 2], yz], axis=1),
            np.stack([wz, xz, yz, squares[:, 3]], axis=1),
        ],
        axis=1,
    )
    chosen = products[np.arange(len(m)), squares.argmax(axis=1)]
    return chosen / np.maximum(np.linalg.norm(chosen, axis=1, keepdims=True), 1e-12)


def slerp(start: NDArray, end: NDArray, share: NDArray) -> NDArray[np.float64]:
    """Turns from `start` to `end` at a steady rate, the short way round.

    Args:
        start: [N, 4] unit quaternions.
        end: [N, 4] unit quaternions.
        share: [N] how much of the way, in [0, 1].

    Returns:
        [N, 4] unit quaternions.
    """
    cosine = (start * end).sum(axis=1)
    end = np.where(cosine[:, None] < 0, -end, end)
    cosine = np.clip(np.abs(cosine), 0.0, 1.0)
    angle = np.arccos(cosine)
    sine = np.maximum(np.sin(angle), 1e-12)
    is_straight = cosine > _NEARLY_PARALLEL
    first = np.where(is_straight, 1 - share, np.sin((1 - share) * angle) / sine)
    second = np.where(is_straight, share, np.sin(share * angle) / sine)
    mixed = first[:, None] * start + second[:, None] * end
    return mixed / np.linalg.norm(mixed, axis=1, keepdims=True)
