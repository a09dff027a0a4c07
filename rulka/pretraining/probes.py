"""What an encoder's features tell of a frame: linear probes, beside those of the same encoder with random weights.

A probe is a ridge regression from features to one quantity (Alain and Bengio 2016, arXiv:1610.01644), fitted on
training frames of the main track and measured on held-out races there, as progress on another map is another place.
Random features are a strong baseline for small grey frames: what is told no better than by these, pretraining has not
brought.
Dimensions: N frames, E features, Q quantities.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.encoders.base import normalise_image
from rulka.datasets.frames import FrameDataset, frames_of
from rulka.device import device_of
from rulka.observation import FLOATS

MOST_FRAMES = 20_000
"""More than these, spread over all, would tell the probes nothing new."""
CHOOSING_SHARE = 0.2
"""The last of the training frames choose how strongly a probe is held back, see `PENALTIES`."""
PENALTIES = tuple(10.0**power for power in range(-4, 5))
"""Of the ridge regression, in units of the mean variance of a feature times the number of frames."""
_BATCH = 512


@dataclass(frozen=True)
class Probe:
    """How well one quantity is told from features; errors are root mean squares, in the unit of its name.

    Attributes:
        pretrained_error: with the pretrained encoder.
        random_error: with random weights in the same encoder.
        constant_error: of the mean of the training frames, which looks at nothing.
    """

    pretrained_error: float
    random_error: float
    constant_error: float


@dataclass(frozen=True)
class ActionProbe:
    """The same for the action: the share of frames of which it is told right.

    Attributes:
        accuracy: with the pretrained encoder.
        random_accuracy: with random weights in the same encoder.
        constant_accuracy: of the most frequent action of the training frames.
    """

    accuracy: float
    random_accuracy: float
    constant_accuracy: float


@dataclass(frozen=True)
class Probes:
    """All probes of an encoder.

    Attributes:
        quantities: by name, see `quantities_of`.
        action: of the recorded action.
    """

    quantities: dict[str, Probe]
    action: ActionProbe

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON."""
        return {name: asdict(probe) for name, probe in self.quantities.items()} | {"action": asdict(self.action)}


def quantities_of(floats: NDArray[np.float32], along_m: NDArray[np.float32]) -> dict[str, NDArray[np.float64]]:
    """Returns what probes are to tell, [N] each.

    `lateral_m` is how far the car is left of the line, from which the distances to both edges follow where the road
    is equally wide, and `heading_deg` how far it is turned left of the road.

    Args:
        floats: [N, 184] raw.
        along_m: [N] progress along the line.
    """
    velocity = floats[:, FLOATS["velocity"]].astype(np.float64)
    # In the car's frame, x to the left: its zone's centre, and how the line goes on from there.
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
    """Fits probes on training frames and measures them on held-out ones; call it without gradients.

    Args:
        encoder: pretrained, on its device.
        fresh: the same with random weights.
        train: frames to fit on.
        held_out: frames to measure on, at least one of the main track.
    """
    shown = [spread(frames_of(frames.on_main_track()), MOST_FRAMES) for frames in (train, held_out)]
    targets = [
        np.stack(list(quantities_of(frames.floats[rows], frames.along_m[rows]).values()), axis=1)
        for frames, rows in zip((train, held_out), shown, strict=True)
    ]
    names = list(quantities_of(train.floats[:1], train.along_m[:1]))
    action, wanted = train.action[shown[0]].astype(np.int64), held_out.action[shown[1]].astype(np.int64)
    one_hot = np.eye(train.action_share[:1].shape[1])[action]
    errors, accuracies = [], []
    for network in (encoder, fresh):
        network.eval()
        seen, met = (features_of(network, frames, rows) for frames, rows in zip((train, held_out), shown, strict=True))
        told = _fit(seen, np.concatenate([targets[0], one_hot], axis=1))(met)
        errors.append(_root_mean_square(told[:, : len(names)] - targets[1]).tolist())
        accuracies.append(float((told[:, len(names) :].argmax(axis=1) == wanted).mean()))
    constant = _root_mean_square(targets[0].mean(axis=0) - targets[1]).tolist()
    most_frequent = float((wanted == np.bincount(action).argmax()).mean())
    return Probes(
        {name: Probe(*each) for name, each in zip(names, zip(*errors, constant, strict=True), strict=True)},
        ActionProbe(accuracies[0], accuracies[1], most_frequent),
    )


def spread(numbers: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Returns at most so many of some numbers of frames, in order, spread evenly over all."""
    return numbers[np.linspace(0, len(numbers) - 1, min(most, len(numbers))).astype(np.int64)]


def features_of(encoder: nn.Module, frames: FrameDataset, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns [N, E] what an encoder makes of frames; call it without gradients."""
    device = device_of(encoder)
    batches = (torch.from_numpy(frames.seen(rows[start : start + _BATCH])) for start in range(0, len(rows), _BATCH))
    parts: list[Tensor] = [encoder(normalise_image(image.to(device), torch.float32)).cpu() for image in batches]
    return torch.cat(parts).double().numpy()


def _fit(
    features: NDArray[np.float64], targets: NDArray[np.float64]
) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """Fits a ridge regression from features [N, E] to each of the targets [N, Q], with the penalty that suits each."""
    num_fitted = max(1, round((1.0 - CHOOSING_SHARE) * len(features)))
    choices = _solutions(features[:num_fitted], targets[:num_fitted])
    rest, wanted = (features[num_fitted:], targets[num_fitted:]) if num_fitted < len(features) else (features, targets)
    error = np.array([_root_mean_square(solve(rest) - wanted) for solve in choices])
    best = error.argmin(axis=0)
    final = _solutions(features, targets)

    def tell(seen: NDArray[np.float64]) -> NDArray[np.float64]:
        told = np.stack([solve(seen) for solve in final])
        return told[best, :, np.arange(len(best))].T

    return tell


def _solutions(
    features: NDArray[np.float64], targets: NDArray[np.float64]
) -> list[Callable[[NDArray[np.float64]], NDArray[np.float64]]]:
    """Returns the regressions with all `PENALTIES`, from one decomposition."""
    mean, offset = features.mean(axis=0), targets.mean(axis=0)
    centred = features - mean
    values, vectors = np.linalg.eigh(centred.T @ centred)
    projected = vectors.T @ (centred.T @ (targets - offset))
    scale = max(float(values.clip(min=0.0).mean()), np.finfo(np.float64).tiny)

    def regression(penalty: float) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
        weights = vectors @ (projected / (values.clip(min=0.0) + penalty * scale)[:, None])
        return lambda seen: (seen - mean) @ weights + offset

    return [regression(penalty) for penalty in PENALTIES]


def _root_mean_square(error: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns [Q] of errors [N, Q]."""
    return np.sqrt(np.square(error).mean(axis=0))
