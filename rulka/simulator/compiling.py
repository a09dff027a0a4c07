"""How kernels are compiled: `cached_kernel` for those that Python calls, the other two for what they are made of.

numba keeps machine code on disk, under the name of its kernel, and looks only at that kernel's own file to see whether
it is still true: an edited constant or kernel in another file would go unseen, and stale code would run. So the name
under which code is kept ends in a digest of all files that kernels are made of.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba import njit
from numba.core import event
from numba.extending import register_jitable
from numpy.typing import NDArray

Array = NDArray[np.float64]
F = TypeVar("F", bound=Callable[..., Any])

# Python holds all arrays as long as a call lasts and kernels make none: counting references to them and to their rows
# would take two thirds of the time. `_nrt` is how numba's documentation of `register_jitable` says not to; another
# public way was not found.
# Kernels are not called from C, and code for that takes long to compile.
OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}
COMPILATION = "numba:compile"
"""An event that numba documents, not sent where the cache has the kernel."""
_LOGGER = logging.getLogger(__name__)
_HERE = ("car", "compiling", "palette", "physics", "race_end", "render_kernels", "scene")
_ELSEWHERE = ("envs/randomising", "envs/rewards", "envs/scoring", "observation", "tracks/track")
_NAMES = (*(f"simulator/{name}" for name in _HERE), *_ELSEWHERE)
SOURCES = [Path(__file__).resolve().parents[1] / f"{name}.py" for name in _NAMES]
"""All files whose kernels and constants become machine code; a test holds the list to what they import."""


def digest_of(sources: Iterable[Path]) -> str:
    """Returns a digest of files and of numba's version."""
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


DIGEST = digest_of(SOURCES)


def inlined_kernel(function: F) -> F:
    """Makes a kernel that becomes part of the kernels that call it. Python calls the function as it is, uncompiled."""
    return register_jitable(**OPTIONS, forceinline=True)(function)


def called_kernel(function: F) -> F:
    """Makes a kernel that kernels call, unless LLVM thinks it better to inline it. For Python as `inlined_kernel`."""
    return register_jitable(**OPTIONS)(function)


def cached_kernel(function: F) -> F:
    """Makes a kernel that Python calls; its machine code is kept on disk."""
    function.__qualname__ += f"_{DIGEST}"
    return cast("F", njit(cache=True, nogil=True, **OPTIONS)(function))


class CompilationNotice(event.Listener):
    """Says once in a process that kernels are being compiled: nothing else would show for some seconds."""

    def __init__(self) -> None:
        self._is_told = False

    def on_start(self, event: event.Event) -> None:
        """Tells of the first of our kernels that the cache lacks."""
        told: Any = event.data
        kernel = told["dispatcher"]
        if not self._is_told and kernel.py_func.__module__.startswith("rulka.") and kernel.stats.cache_path:
            self._is_told = True
            _LOGGER.warning(
                "compiling kernels: some 20 s, once for each kind of use; kept in %s",
                kernel.stats.cache_path,
            )

    def on_end(self, event: event.Event) -> None:
        """Has nothing to tell."""


event.register(COMPILATION, CompilationNotice())
