"""How actors compute: by ONNX Runtime in float32 or int8 where a network is of the plain kind, else as torch does.

Dimensions: N cars.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from models.prepared import PreparedNetwork, Scales, can_prepare, dequantise
from models.torso import ActingHead, Torso
from rulka.agents.precision import ActingPrecision, Precision, faster_precision
from rulka.agents.quantisation import check_int8
from rulka.device import Generators, device_of
from rulka.schedule import Moment

LEAST_CARS_MEASURED = 8
"""With fewer cars in a batch float32 is always taken: there is next to nothing to gain."""

NetworkT = TypeVar("NetworkT", bound=Torso)


class ActingNetwork(Generic[NetworkT]):
    """A network that acts.

    A precision that is named is that of torch, to the bit; in "int8" what can be is integers, and the rest float32.
    "measured" is float32 by ONNX Runtime; or bfloat16 by torch where a batch of `LEAST_CARS_MEASURED` takes it a tenth
    less time.

    Attributes:
        network: the float32 network; its weights change by `load` alone.
        precision: what is used; "measured" until the first batch that is large enough to tell.
    """

    def __init__(
        self,
        network: NetworkT,
        precision: Precision | ActingPrecision,
        outputs: Callable[[NetworkT, Tensor, Tensor], Tensor],
        head: Callable[[NetworkT], ActingHead | None],
    ) -> None:
        """Prepares nothing yet.

        Args:
            network: on the device where it acts.
            precision: one of torch, "measured" or "int8".
            outputs: maps the network, raw images and raw floats to what deciding takes [N, ...].
            head: returns the layers that end in these outputs; it is asked again whenever the weights have changed.

        Raises:
            AgentError: if the network cannot act in int8.
        """
        if precision == "int8":
            check_int8(network)
        self.network = network.eval().requires_grad_(False)
        self.precision: Precision | ActingPrecision = precision
        self._outputs, self._head = outputs, head
        self._is_prepared = precision in ("measured", "int8") and can_prepare(network)
        self._prepared: PreparedNetwork | None = None
        self._scales: Scales | None = None
        self._copy: NetworkT | None = None

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes new weights as they were published, which count from the next decision on; copies them."""
        if self.precision == "int8":
            tensors, self._scales = dequantise(tensors)
        self.network.load_state_dict(dict(tensors))
        self._prepared = None
        if self._copy is not None:
            self._copy.load_state_dict(self.network.state_dict())

    def __call__(self, image: Tensor, floats: Tensor) -> Tensor:
        """Maps raw images [N, L, H, W] uint8 and raw floats [N, F] to the outputs."""
        if self.precision == "measured" and len(floats) >= LEAST_CARS_MEASURED:
            self.precision = faster_precision(lambda each: self._run(each, image, floats), device_of(self.network))
        return self._run(self.precision, image, floats)

    def run(self, forward: Callable[[NetworkT], Tensor]) -> Tensor:
        """Runs something else on the network by torch, without gradients; `forward` is given the network to use."""
        network = self._in_torch(self.precision)
        with torch.inference_mode():
            return forward(network)

    def _run(self, precision: Precision | ActingPrecision, image: Tensor, floats: Tensor) -> Tensor:
        if not self._is_prepared or precision == "bfloat16":
            network = self._in_torch(precision)
            with torch.inference_mode():
                return self._outputs(network, image, floats)
        if self._prepared is None:
            with torch.inference_mode():
                head = self._head(self.network)
            assert head is not None
            self._prepared = PreparedNetwork(self.network, head, self._scales)
        return self._prepared(image, floats)

    def _in_torch(self, precision: Precision | ActingPrecision) -> NetworkT:
        if precision not in ("bfloat16", "float16"):
            return self.network
        if self._copy is None:
            low = copy.deepcopy(self.network)
            low.store_in(getattr(torch, precision))
            self._copy = low
        return self._copy


class NetworkActor(Generic[NetworkT]):
    """What the actors of all algorithms share: weights, progress of the run, RNG state; see `rulka.agents.spec.Actor`.

    What derives from it makes `_acting`.
    """

    _acting: ActingNetwork[NetworkT]

    def __init__(self, seed: int, device: torch.device) -> None:
        self._device, self._generators = device, Generators(device, seed)
        self._moment = Moment(0)

    @property
    def network(self) -> NetworkT:
        """The weights it acts with."""
        return self._acting.network

    def load_network(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes weights to act with, from the next decision on."""
        self._acting.load(tensors)

    def set_moment(self, moment: Moment) -> None:
        """Tells how far the run has come, for schedules."""
        self._moment = moment

    def state_dict(self) -> dict[str, Any]:
        """Returns the RNG state."""
        return self._generators.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` returned."""
        self._generators.load_state_dict(state)
