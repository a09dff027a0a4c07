"""Where an encoder puts frames: which are near each other, and a plane to look at them in. For pictures alone.

Dimensions: N frames, E features, H x W pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from rulka.datasets.frames import FrameDataset, frames_of
from rulka.pretraining.probes import features_of, quantities_of, spread

MOST_FRAMES = 2_000


@dataclass(frozen=True)
class Embedding:
    """What an encoder makes of some frames.

    Attributes:
        features: [N, E].
        images: [N, H, W] uint8.
        race: [N] number of the race of each.
        speed_mps: [N].
        along_m: [N] progress along the line.
    """

    features: NDArray[np.float64]
    images: NDArray[np.uint8]
    race: NDArray[np.int32]
    speed_mps: NDArray[np.float64]
    along_m: NDArray[np.float32]


def embed(encoder: nn.Module, frames: FrameDataset) -> Embedding:
    """Returns what an encoder makes of frames spread over all races on the main track; call it without gradients."""
    rows = spread(frames_of(frames.on_main_track()), MOST_FRAMES)
    along_m = frames.along_m[rows]
    speed_mps = quantities_of(frames.floats[rows], along_m)["speed_mps"]
    features = features_of(encoder, frames, rows)
    return Embedding(features, frames.images[rows][:, 0], frames.race_index[rows], speed_mps, along_m)


def nearest_in_other_races(
    features: NDArray[np.float64], race: NDArray[np.int32], queries: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """Returns [Q, count] the frames of other races whose features have the largest cosine with those of each query.

    Args:
        features: [N, E]; their mean is taken off first.
        race: [N] number of the race of each frame.
        queries: [Q] numbers of frames.
        count: how many, nearest first; fewer where the other races have fewer frames.
    """
    centred = features - features.mean(axis=0)
    unit = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    cosine = unit[queries] @ unit.T
    is_same = race[queries][:, None] == race
    cosine[is_same] = -np.inf
    fewest = int((~is_same).sum(axis=1).min())
    return np.argsort(-cosine, axis=1, kind="stable")[:, : min(count, fewest)]


def principal_plane(features: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns features [N, E] along the two directions of most variance [N, 2], and the share of it in each [2]."""
    centred = features - features.mean(axis=0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    share = values**2 / max(float((values**2).sum()), np.finfo(np.float64).tiny)
    plane, shares = np.zeros((len(features), 2)), np.zeros(2)
    known = min(2, len(values))
    plane[:, :known], shares[:known] = left[:, :known] * values[:known], share[:known]
    return plane, shares
