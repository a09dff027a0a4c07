"""Compute precisions, processor support for them, and malloc's thresholds."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from rulka.machine.device import has_bfloat16

Precision = Literal["auto", "float32", "bfloat16"]
ActingPrecision = Literal["float32", "bfloat16", "float16", "int8"]
"""Precisions that actors can be set to, for inference and for the published weights."""

INSTRUCTIONS = {
    "bfloat16": ("avx512_bf16", "amx_bf16", "bf16"),
    "float16": ("avx512_fp16", "amx_fp16", "fp16_arith"),
    "int8": ("avx512_vnni", "avx_vnni", "amx_int8", "dot"),
}
"""CPU features of x86 and Arm, of which one is needed. Without them int8 dot products would be slow, or saturate."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
_LARGEST_MMAP_THRESHOLD = 32 << 20
_NEVER_TRIM = 2**31 - 1


def raise_malloc_thresholds() -> bool:
    """Makes malloc keep freed chunks of up to 32 MiB instead of returning them to the system.

    A training step frees and allocates the same activations again and again; on virtual machines the page faults cost
    up to a third of the step (150 ms against 105 ms at batch 512). Costs some tens of megabytes.

    Returns:
        True if the C library supports this (glibc does); otherwise nothing has changed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # no mallopt, or no CDLL(None) (Windows)
        return False
    is_set = mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD) == 1
    return mallopt(_M_TRIM_THRESHOLD, _NEVER_TRIM) == 1 and is_set


def has_instructions(precision: str) -> bool:
    """Returns True if this processor supports a precision of `INSTRUCTIONS` natively; torch emulates the others."""
    return any(torch.cpu.get_capabilities().get(name, False) for name in INSTRUCTIONS[precision])


@contextmanager
def autocast(precision: Precision, device: torch.device) -> Iterator[None]:
    """Runs the block under bfloat16 autocast on a device, or without autocast for "float32"."""
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        yield


def chosen_precision(asked: Precision, device: torch.device) -> Precision:
    """Returns the requested precision; "auto" is bfloat16 if the device supports it natively, else float32.

    The hardware decides, not a timing: equal processors choose alike. docs/performance.md has the rates.
    """
    if asked != "auto":
        return asked
    is_fast = has_instructions("bfloat16") if device.type == "cpu" else has_bfloat16(device)
    return "bfloat16" if is_fast else "float32"
