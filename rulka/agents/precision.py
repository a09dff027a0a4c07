"""Precisions, what a processor has instructions for, and malloc's thresholds."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from rulka.device import has_bfloat16

Precision = Literal["auto", "float32", "bfloat16"]
ActingPrecision = Literal["float32", "bfloat16", "float16", "int8"]
"""In which actors may be told to compute, on weights that are published in it."""

INSTRUCTIONS = {
    "bfloat16": ("avx512_bf16", "amx_bf16", "bf16"),
    "float16": ("avx512_fp16", "amx_fp16", "fp16_arith"),
    "int8": ("avx512_vnni", "avx_vnni", "amx_int8", "dot"),
}
"""Of which a processor needs one: by x86 and by Arm. Without these sums of int8 products would be slow, or saturate."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # names of glibc's mallopt
_LARGEST_MMAP_THRESHOLD = 32 << 20
_NEVER_TRIM = 2**31 - 1


def raise_malloc_thresholds() -> bool:
    """Has malloc keep freed memory, pieces of up to 32 MiB, instead of handing it back to the system.

    A training step frees and takes the same activations over and over; on virtual machines the page faults of that
    cost up to a third of the step (150 ms against 105 ms at batch 512). Costs some tens of megabytes.

    Returns:
        Whether the C library offers this (glibc does); where not, nothing has changed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # no such function, or no such way to look (Windows)
        return False
    is_set = mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD) == 1
    return mallopt(_M_TRIM_THRESHOLD, _NEVER_TRIM) == 1 and is_set


def has_instructions(precision: str) -> bool:
    """Whether this processor has instructions for one of `INSTRUCTIONS`; torch emulates what it has none for."""
    return any(torch.cpu.get_capabilities().get(name, False) for name in INSTRUCTIONS[precision])


@contextmanager
def autocast(precision: Precision, device: torch.device) -> Iterator[None]:
    """Runs the block under bfloat16 autocast of a device, or plainly for "float32"."""
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        yield


def chosen_precision(asked: Precision, device: torch.device) -> Precision:
    """Returns what was asked for, where "auto" is bfloat16 if the device has instructions for it, and float32 if not.

    What the device is decides, and no clock: equal processors choose alike. docs/performance.md has the rates.
    """
    if asked != "auto":
        return asked
    is_fast = has_instructions("bfloat16") if device.type == "cpu" else has_bfloat16(device)
    return "bfloat16" if is_fast else "float32"
