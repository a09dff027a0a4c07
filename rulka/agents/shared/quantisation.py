"""Quantises each weight version once for all actors, which run inference in that precision.

The learner, its greedy checks and the saved agent keep full precision. Source: QuaRL (Krishnan et al. 2022,
arXiv:1910.01055), which quantises the actors but not the learner.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models.prepared import can_prepare, input_scales, quantise
from models.torso import Torso
from rulka.agents.shared.spec import AgentError
from rulka.buffers.experience import ExperienceBlock
from rulka.machine.errors import UserError
from rulka.machine.precision import INSTRUCTIONS, ActingPrecision, has_instructions

BLOCKS_KEPT = 4
FRAMES_OF_BLOCK = 32
"""Frames of each of the last `BLOCKS_KEPT` blocks, on which activations are calibrated."""


class ActingPrecisionError(UserError):
    """Actors cannot run in a precision here; the message says why, and which ones work."""


class Quantiser:
    """Converts each weight version to the format in which it is published.

    bfloat16 and float16 cast the weights, except those that stay exact. int8 quantises the weights and adds the input
    scale of each layer, calibrated on recent frames with the newest weights.
    """

    def __init__(self, network: nn.Module, precision: ActingPrecision | None) -> None:
        """Prepares; None and "float32" publish versions unchanged.

        Raises:
            AgentError: if the network cannot act in int8.
        """
        self._is_int8 = precision == "int8"
        self._dtypes: dict[str, torch.dtype] = {}
        self._frames: list[tuple[Tensor, Tensor]] = []
        self._version: int | None = None
        self._scales: dict[str, Tensor] = {}
        if precision is None or precision == "float32":
            return
        assert isinstance(network, Torso)
        self._network = copy.deepcopy(network).cpu().eval().requires_grad_(False)
        if self._is_int8:
            check_int8(self._network)
        else:
            self._network.store_in(getattr(torch, precision))
            self._dtypes = {name: tensor.dtype for name, tensor in self._network.state_dict().items()}

    @property
    def needs_frames(self) -> bool:
        """True if it needs a block to calibrate on before it can quantise."""
        return self._is_int8 and not self._frames

    def observe(self, block: ExperienceBlock) -> None:
        """Copies calibration frames for int8, spread evenly over a block's decisions and cars."""
        if not self._is_int8:
            return
        steps, cars = block.spec.num_steps, block.spec.num_cars
        places = np.linspace(0, steps * cars - 1, min(FRAMES_OF_BLOCK, steps * cars)).astype(np.int64)
        rows = np.unravel_index(places, (steps, cars))
        self._frames.append((torch.from_numpy(block.image[rows]), torch.from_numpy(block.floats[rows])))
        del self._frames[:-BLOCKS_KEPT]

    def quantise(self, version: int, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the tensors to publish for a version; its scales are calibrated at the first call and reused."""
        if not self._is_int8:
            return {name: tensor.to(self._dtypes.get(name, tensor.dtype)) for name, tensor in tensors.items()}
        if version != self._version:
            self._network.load_state_dict(dict(tensors))
            image, floats = (torch.cat(columns) for columns in zip(*self._frames, strict=True))
            self._scales = input_scales(self._network, image, floats)
            self._version = version
        return quantise(tensors, self._scales)

    def state_dict(self) -> dict[str, Any]:
        """Returns the calibration frames, and the scales of the published version."""
        frames = [list(columns) for columns in self._frames]
        return {"frames": frames, "version": self._version, "scales": self._scales}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a `state_dict`."""
        self._frames = [(image, floats) for image, floats in state["frames"]]
        self._version, self._scales = state["version"], dict(state["scales"])


def check_acting_precision(precision: ActingPrecision | None, device: torch.device) -> None:
    """Checks that actors on a device can run in a precision.

    Raises:
        ActingPrecisionError: if they cannot; there is no fallback.
    """
    problem = _problem(precision, device)
    if problem:
        able = [name for name in ("bfloat16", "float16", "int8") if not _problem(name, device)]
        can = " or ".join(["float32", *able])
        message = f"train.acting_precision is {precision}, and {problem}"
        raise ActingPrecisionError(message, hint=f"Set it to {can}, or to nothing.")


def _problem(precision: str | None, device: torch.device) -> str:
    if precision in (None, "float32"):
        return ""
    if device.type != "cpu":
        return f"int8 runs on processors alone: actors are on {device}" if precision == "int8" else ""
    if not has_instructions(str(precision)):
        return f"this processor has none of the instructions {', '.join(INSTRUCTIONS[str(precision)])}"
    return ""


def check_int8(network: nn.Module) -> None:
    """Checks that a network can act in int8.

    Raises:
        AgentError: if its architecture is not supported.
    """
    if can_prepare(network) and getattr(network, "embedding_at", "hidden") == "hidden":
        return
    message = (
        "this network cannot act in int8, which knows encoder conv without pooling, fusion concat, one frame, and "
    )
    message += "of iqn embedding_at hidden without layer_norm and noisy_sigma"
    raise AgentError(message, hint="Set train.acting_precision to bfloat16, or to nothing.")
