"""Kernel decorators: `cached_kernel` for kernels called from Python, the other two for functions that kernels call.

numba caches machine code on disk under the kernel's name and checks only that kernel's own file for changes. After an
edit of a constant or kernel in another file, stale code would run. So the cached name ends in a digest of all files
that kernels depend on.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core import event
from numba.extending import register_jitable
from numpy.typing import NDArray

from rulka.machine.kernels import cached_njit

Array = NDArray[np.float64]
F = TypeVar("F", bound=Callable[..., Any])

# Python holds all arrays for the duration of a call and kernels allocate none. Reference counting of arrays and their
# rows would take two thirds of the time; `_nrt` turns it off, as in numba's documentation of `register_jitable`. We
# found no other public way.
# Kernels are not called from C, and that wrapper takes long to compile.
OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}
COMPILATION = "numba:compile"
"""A documented numba event, not sent on a cache hit."""
_LOGGER = logging.getLogger(__name__)
_HERE = ("car", "compiling", "palette", "physics", "race_end", "render_kernels", "scene")
_ELSEWHERE = (
    "planner/kernels",
    "envs/rewards",
    "envs/scoring",
    "contracts/actions",
    "contracts/observation",
    "tracks/track",
)
_NAMES = (*(f"simulator/{name}" for name in _HERE), *_ELSEWHERE)
SOURCES = [Path(__file__).resolve().parents[1] / f"{name}.py" for name in _NAMES]
"""All files whose kernels and constants are compiled in; a test compares the list with their imports."""


def digest_of(sources: Iterable[Path]) -> str:
    """Returns a digest of the files' contents and numba's version."""
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


DIGEST = digest_of(SOURCES)


def inlined_kernel(function: F) -> F:
    """Inlines a function into the kernels that call it. Called from Python, it runs uncompiled."""
    return register_jitable(**OPTIONS, forceinline=True)(function)


def called_kernel(function: F) -> F:
    """Compiles a function for calls from kernels; LLVM may inline it. Called from Python, it runs uncompiled."""
    return register_jitable(**OPTIONS)(function)


def cached_kernel(function: F) -> F:
    """Compiles a kernel that Python calls; its machine code is cached on disk."""
    function.__qualname__ += f"_{DIGEST}"
    return cached_njit(function, **OPTIONS)


class CompilationNotice(event.Listener):
    """Logs once per process that kernels are being compiled, since compilation blocks for some seconds."""

    def __init__(self) -> None:
        self._is_told = False

    def on_start(self, event: event.Event) -> None:
        """Logs the first of our kernels that is not in the cache."""
        told: Any = event.data
        kernel = told["dispatcher"]
        if not self._is_told and kernel.py_func.__module__.startswith("rulka.") and kernel.stats.cache_path:
            self._is_told = True
            _LOGGER.warning(
                "compiling kernels: some 20 s, once for each kind of use; kept in %s",
                kernel.stats.cache_path,
            )

    def on_end(self, event: event.Event) -> None:
        """Does nothing."""


event.register(COMPILATION, CompilationNotice())
