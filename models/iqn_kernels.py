"""Compiled loops over the bfloat16 activations of IQN's heads, for learning on CPUs.

numba has no bfloat16: arrays hold its bits as uint16, which are the upper half of a float32. Sums are in float32.
Dimensions: B batch, T quantile fractions, D state, H hidden units of one head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Bits = NDArray[np.uint16]
Floats = NDArray[np.float32]

_jit: Any = njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"}, error_model="numpy")


@_jit
def _widen(bits: Any) -> Any:
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


@_jit
def _narrow(value: Any) -> Any:
    """Rounds to bfloat16, halves to even, as torch does; infinities and the NaNs of arithmetic stay what they are."""
    bits = np.float32(value).view(np.uint32)
    last = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))
    return np.uint16(np.uint32(bits + np.uint32(0x7FFF) + last) >> np.uint32(16))


@_jit
def action_values(hidden: Bits, weight: Floats, result: Floats) -> None:
    """Multiplies hidden units by output weights that differ between rows.

    Args:
        hidden: [B, T, 2 H].
        weight: [B, 2 H].
        result: [B, T], overwritten by the sums over the hidden units.
    """
    for b in range(hidden.shape[0]):
        row = weight[b]
        for t in range(hidden.shape[1]):
            units = hidden[b, t]
            total = np.float32(0.0)
            for i in range(row.shape[0]):
                total += _widen(units[i]) * row[i]
            result[b, t] = total


@_jit
def action_values_backward(
    hidden: Bits, weight: Floats, gradient: Floats, slope: np.float32, of_hidden: Bits, of_weight: Floats
) -> None:
    """Finds the gradients of what enters the LeakyReLU of the hidden units, and of the output weights.

    Args:
        hidden: [B, T, 2 H], after the LeakyReLU.
        weight: [B, 2 H].
        gradient: [B, T] of the result of `action_values`.
        slope: of the LeakyReLU below zero.
        of_hidden: [B, T, 2 H], overwritten.
        of_weight: [B, 2 H], overwritten.
    """
    for b in range(hidden.shape[0]):
        row, sums = weight[b], of_weight[b]
        sums[:] = np.float32(0.0)
        for t in range(hidden.shape[1]):
            units, results, factor = hidden[b, t], of_hidden[b, t], gradient[b, t]
            for i in range(row.shape[0]):
                unit = _widen(units[i])
                sums[i] += factor * unit
                value = factor * row[i] * (np.float32(1.0) if unit > np.float32(0.0) else slope)
                results[i] = _narrow(value)


@_jit
def mix_backward(
    gradient: Bits, embedded: Bits, state: Bits, slope: np.float32, of_embedded: Bits, of_state: Floats
) -> None:
    """Finds the gradients of a state multiplied by embedded fractions.

    Args:
        gradient: [B, T, D] of the product.
        embedded: [B, T, D] embeddings, after their LeakyReLU.
        state: [B, D].
        slope: of the LeakyReLU below zero.
        of_embedded: [B, T, D], overwritten by the gradient of what enters the LeakyReLU.
        of_state: [B, D], overwritten.
    """
    for b in range(gradient.shape[0]):
        row, sums = state[b], of_state[b]
        sums[:] = np.float32(0.0)
        for t in range(gradient.shape[1]):
            factors, units, results = gradient[b, t], embedded[b, t], of_embedded[b, t]
            for i in range(row.shape[0]):
                factor = _widen(factors[i])
                unit = _widen(units[i])
                sums[i] += factor * unit
                value = factor * _widen(row[i])
                value *= np.float32(1.0) if unit > np.float32(0.0) else slope
                results[i] = _narrow(value)
