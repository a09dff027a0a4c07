"""Forward passes of an actor, in a precision that is named or in the one that is faster on this machine.

Dimensions: N cars.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import torch
from torch import Tensor

from models.torso import Torso
from rulka.agents.precision import FloatPrecision, faster_precision
from rulka.device import device_of

LEAST_CARS_MEASURED = 8
"""With fewer cars in a batch float32 is always taken: there is next to nothing to gain."""

NetworkT = TypeVar("NetworkT", bound=Torso)


class ActingNetwork(Generic[NetworkT]):
    """A network, and a copy of it in bfloat16 or float16 that follows its weights.

    Attributes:
        network: the float32 network; its weights change by `load` alone.
        precision: what is used; "measured" until the first batch that is large enough to tell.
    """

    def __init__(self, network: NetworkT, precision: FloatPrecision) -> None:
        self.network = network.eval().requires_grad_(False)
        self.precision: FloatPrecision = precision
        self._copy: NetworkT | None = None
        self._is_copy_old = False

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes new weights, which count from the next `run` on."""
        self.network.load_state_dict(dict(tensors))
        self._is_copy_old = True

    def run(self, forward: Callable[[NetworkT], Tensor | tuple[Tensor, ...]], num_cars: int) -> tuple[Tensor, ...]:
        """Runs `forward` on the network or on its faster copy, without gradients.

        Args:
            forward: takes the network to use, returns one or more tensors.
            num_cars: N, rows in the batch that `forward` passes on.
        """
        with torch.inference_mode():
            if self.precision == "measured" and num_cars >= LEAST_CARS_MEASURED:
                self.precision = faster_precision(
                    lambda precision: forward(self._network(precision)), device_of(self.network)
                )
            result = forward(self._network(self.precision))
        return result if isinstance(result, tuple) else (result,)

    def _network(self, precision: FloatPrecision) -> NetworkT:
        if precision in ("measured", "float32"):
            return self.network
        if self._copy is None:
            self._copy = copy.deepcopy(self.network)
            self._copy.store_in(getattr(torch, precision))
        elif self._is_copy_old:
            for target, source in zip(_tensors(self._copy), _tensors(self.network), strict=True):
                target.copy_(source)
        self._is_copy_old = False
        return self._copy


def _tensors(network: Torso) -> list[Tensor]:
    return [*network.parameters(), *network.buffers()]
