"""Which way to compute an IQN actor's advantages is fastest here, and keeping it up to date with the weights.

Dimensions: N cars, T quantile fractions, A actions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from models.iqn import IqnNetwork
from models.iqn_acting import PreparedAdvantages
from models.layers import KERNEL_DTYPES
from rulka.agents.iqn_onnx import OnnxAdvantages
from rulka.agents.onnx_graph import has_onnx
from rulka.agents.precision import Precision

Engine = Literal["float32", "bfloat16", "onnx"]
Advantages = Callable[[Tensor, Tensor], Tensor]

TORCH_ENGINES: tuple[Engine, ...] = ("float32", "bfloat16") if torch.bfloat16 in KERNEL_DTYPES else ("float32",)
"""Those of torch that this processor has."""

NUM_TRIES = 5
INEXACT_GAIN = 0.9
"""bfloat16 must be a tenth faster than the fastest in float32 to be chosen, as it costs accuracy."""


class ActingIqn:
    """Advantages of a network at fixed fractions, in one of several ways that differ in speed.

    "float32" and "bfloat16" are torch, as far as they are `TORCH_ENGINES`; "onnx" is ONNX Runtime in float32, which is
    tried where it is installed.

    Attributes:
        engines: what is used for batches of 1, of 2 or 3, of 4 to 7 and so on, by the number of bits of N; filled as
            such batches come if the precision is "measured".
    """

    def __init__(self, network: IqnNetwork, tau: Tensor, precision: Precision) -> None:
        """Prepares nothing yet.

        Args:
            network: one that `can_prepare`; call `forget` after its weights have changed.
            tau: [T] fractions.
            precision: of torch, one of `TORCH_ENGINES`; "measured" takes the fastest engine for each size of batch.
        """
        self.engines: dict[int, Engine] = {}
        self._network, self._tau, self._precision = network, tau, precision
        self._prepared: dict[Engine, Advantages] = {}

    def __call__(self, image: Tensor, floats: Tensor) -> Tensor:
        """Maps raw images [N, 1, H, W] uint8 and raw floats [N, F] to mean advantages [N, A] float32."""
        with torch.inference_mode():
            if self._precision == "float32" or self._precision == "bfloat16":
                return self._engine(self._precision)(image, floats)
            size = len(floats).bit_length()
            if size not in self.engines:
                self.engines[size] = self._fastest(image, floats)
            return self._engine(self.engines[size])(image, floats)

    def forget(self) -> None:
        """Has the weights read again before the next decision, as they have changed."""
        self._prepared.clear()

    def _engine(self, engine: Engine) -> Advantages:
        if engine not in self._prepared:
            if engine == "onnx":
                self._prepared[engine] = OnnxAdvantages(self._network, self._tau)
            else:
                self._prepared[engine] = PreparedAdvantages(self._network, self._tau, getattr(torch, engine))
        return self._prepared[engine]

    def _fastest(self, image: Tensor, floats: Tensor) -> Engine:
        engines: list[Engine] = [*TORCH_ENGINES, "onnx"] if has_onnx() else [*TORCH_ENGINES]
        best_s: dict[Engine, float] = dict.fromkeys(engines, float("inf"))
        for attempt in range(NUM_TRIES + 1):
            for engine in engines:
                run = self._engine(engine)
                start_s = time.perf_counter()
                run(image, floats)
                if attempt:
                    best_s[engine] = min(best_s[engine], time.perf_counter() - start_s)
        exact: Engine = "onnx" if "onnx" in best_s and best_s["onnx"] < best_s["float32"] else "float32"
        return "bfloat16" if best_s.get("bfloat16", float("inf")) < INEXACT_GAIN * best_s[exact] else exact
