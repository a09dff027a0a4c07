"""How kernels are compiled.

numba's cache looks only at the file of the kernel that is called from Python: an edited constant or kernel in another
file would go unseen, and stale code would run. So only outermost kernels are cached, and the key of each holds a stamp
of every file that it is made of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from rulka.simulator import quick_compiling as _quick_compiling  # noqa: F401 listens to numba from here on
from rulka.simulator.inner_compiling import InnerKernel

Array = NDArray[np.float64]
F = TypeVar("F", bound=Callable[..., Any])

# Arrays are only borrowed, so reference counting, which would take a third of the time, is switched off (_nrt).
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
CACHED: dict[str, Any] = OPTIONS | {"cache": True, "no_cfunc_wrapper": True}
cached_kernel = njit(**CACHED)


def inlined_kernel(function: F) -> F:
    """Makes a kernel that becomes part of the kernels that call it."""
    return cast("F", InnerKernel(function, OPTIONS | {"forceinline": True}))


def called_kernel(function: F) -> F:
    """Makes a kernel that kernels call, unless LLVM thinks it better to inline it."""
    return cast("F", InnerKernel(function, OPTIONS))


def source_stamp(modules: tuple[ModuleType, ...]) -> int:
    """Returns a positive number that changes whenever the source of one of the modules does."""
    digest = hashlib.sha256()
    for module in modules:
        digest.update(Path(str(module.__file__)).read_bytes())
    return int.from_bytes(digest.digest()[:7], "little") | 1
