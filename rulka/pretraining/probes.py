"""Linear probes of an encoder's features, with the same encoder at random weights as baseline.

A probe is a ridge regression from features to one quantity (Alain and Bengio 2016, arXiv:1610.01644). It is fitted on
training frames of the main track and evaluated on held-out races of that track, because the same progress on another
map is another place. Random features are a strong baseline for small grey frames: pretraining has added only what it
predicts better than they do.
Dimensions: N frames, E features, Q quantities.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.encoders.base import normalise_image
from rulka.contracts.observation import FLOATS
from rulka.datasets.formats.frames import FrameDataset, frames_of
from rulka.machine.device import device_of

MOST_FRAMES = 20_000
"""Maximum number of frames for a probe, spread evenly; more would not improve it."""
CHOOSING_SHARE = 0.2
"""Share of the training frames, the last ones, that selects a probe's penalty, see `PENALTIES`."""
PENALTIES = tuple(10.0**power for power in range(-4, 5))
"""Candidate ridge penalties, in units of the mean variance of a feature times the number of frames."""
_BATCH = 512


Probes = dict[str, dict[str, float]]
"""Results for each quantity, plain JSON by its name; see `probe_encoder`."""


def quantities_of(floats: NDArray[np.float32], along_m: NDArray[np.float32]) -> dict[str, NDArray[np.float64]]:
    """Returns the target quantities of probes, [N] each.

    `lateral_m` is the car's distance to the left of the line, which gives the distances to both edges if the road has
    constant width. `heading_deg` is its angle to the left of the road.

    Args:
        floats: [N, 184] raw.
        along_m: [N] progress along the line.
    """
    velocity = floats[:, FLOATS["velocity"]].astype(np.float64)
    # In the car's frame, x to the left: the centre of its zone, and the direction of the line from there.
    waypoints = floats[:, FLOATS["waypoints"]].astype(np.float64).reshape(len(floats), -1, 3)
    here, ahead = waypoints[:, 0], waypoints[:, 1] - waypoints[:, 0]
    left_of_road = np.stack([ahead[:, 2], -ahead[:, 0]], axis=1) / np.hypot(ahead[:, 0], ahead[:, 2])[:, None]
    return {
        "speed_mps": np.linalg.norm(velocity, axis=1),
        "progress_m": along_m.astype(np.float64),
        "lateral_m": -(here[:, [0, 2]] * left_of_road).sum(axis=1),
        "heading_deg": np.degrees(np.arctan2(-ahead[:, 0], ahead[:, 2])),
    }


def probe_encoder(encoder: nn.Module, fresh: nn.Module, train: FrameDataset, held_out: FrameDataset) -> Probes:
    """Fits probes on training frames and evaluates them on held-out ones; call it without gradients.

    Args:
        encoder: pretrained, on its device.
        fresh: the same with random weights.
        train: frames to fit on.
        held_out: frames to evaluate on, at least one of the main track.

    Returns:
        For each of `quantities_of` the root mean square errors, in the unit of its name: pretrained_error,
        random_error with random weights, and constant_error of always predicting the mean of the training frames. For
        `action` the shares of frames with a correctly predicted action: accuracy, random_accuracy, and
        constant_accuracy of the most frequent action of the training frames.
    """
    shown = [(frames, spread(frames_of(frames.on_main_track()), MOST_FRAMES)) for frames in (train, held_out)]
    known, wanted = (quantities_of(frames.floats[rows], frames.along_m[rows]) for frames, rows in shown)
    action, true_action = (frames.action[rows].astype(np.int64) for frames, rows in shown)
    one_hot = np.eye(train.action_share[:1].shape[1])[action]
    targets = np.concatenate([np.stack(list(known.values()), axis=1), one_hot], axis=1)
    probes: Probes = {name: {} for name in (*known, "action")}
    for prefix, network in (("pretrained_", encoder), ("random_", fresh)):
        network.eval()
        seen, met = (_features_of(network, frames, rows) for frames, rows in shown)
        told = _tell(seen, targets, met)
        for place, (name, values) in enumerate(wanted.items()):
            probes[name][f"{prefix}error"] = float(_root_mean_square(told[:, place] - values))
        is_right = told[:, len(known) :].argmax(axis=1) == true_action
        probes["action"][f"{prefix.removeprefix('pretrained_')}accuracy"] = float(is_right.mean())
    for name, values in wanted.items():
        probes[name]["constant_error"] = float(_root_mean_square(known[name].mean() - values))
    probes["action"]["constant_accuracy"] = float((true_action == np.bincount(action).argmax()).mean())
    return probes


def spread(numbers: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Returns at most `most` of the frame numbers, in order and evenly spaced."""
    return numbers[np.linspace(0, len(numbers) - 1, min(most, len(numbers))).astype(np.int64)]


def _features_of(encoder: nn.Module, frames: FrameDataset, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns an encoder's features [N, E] of frames."""
    device = device_of(encoder)
    batches = (
        torch.from_numpy(frames.frame_stacks(rows[start : start + _BATCH])) for start in range(0, len(rows), _BATCH)
    )
    parts: list[Tensor] = [encoder(normalise_image(image.to(device), torch.float32)).cpu() for image in batches]
    return torch.cat(parts).double().numpy()


def _tell(
    features: NDArray[np.float64], targets: NDArray[np.float64], seen: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Fits ridge regressions from features [N, E] to targets [N, Q]; returns predictions [M, Q] for `seen` [M, E].

    The penalty of each target is the one with the lowest error on the last `CHOOSING_SHARE` of the features.
    """
    num_fitted = max(1, round((1.0 - CHOOSING_SHARE) * len(features)))
    rest = slice(num_fitted if num_fitted < len(features) else 0, None)
    tried = _regressions(features[:num_fitted], targets[:num_fitted], features[rest])
    best = _root_mean_square(tried - targets[rest]).argmin(axis=0)
    return np.take_along_axis(_regressions(features, targets, seen), best[None, None], axis=0)[0]


def _regressions(
    features: NDArray[np.float64], targets: NDArray[np.float64], seen: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Returns the predictions [P, M, Q] with all P `PENALTIES`, from one eigendecomposition."""
    mean, offset = features.mean(axis=0), targets.mean(axis=0)
    centred = features - mean
    values, vectors = np.linalg.eigh(centred.T @ centred)
    values = values.clip(min=0.0)
    projected = vectors.T @ (centred.T @ (targets - offset))
    penalties = np.array(PENALTIES) * max(float(values.mean()), np.finfo(np.float64).tiny)
    weights = vectors @ (projected / (values + penalties[:, None])[..., None])
    return (seen - mean) @ weights + offset


def _root_mean_square(error: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the root mean square [..., Q] of errors [..., N, Q], or [] of errors [N]."""
    return np.sqrt(np.square(error).mean(axis=-2 if error.ndim > 1 else 0))
