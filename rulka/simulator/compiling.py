"""How kernels are compiled.

numba's cache looks only at the file of the kernel that is called from Python: an edited constant or kernel in another
file would go unseen, and stale code would run. So only outermost kernels are cached, and the key of each holds a stamp
of every file that it is made of.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from rulka.simulator import quick_compiling as _quick_compiling  # noqa: F401 listens to numba from here on

Array = NDArray[np.float64]

# Arrays are only borrowed, so reference counting, which would take a third of the time, is switched off (_nrt).
# Wrappers for C, and for Python around what only kernels call, would be a fifth of what is compiled.
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}
INNER_OPTIONS: dict[str, Any] = OPTIONS | {"no_cpython_wrapper": True}
inlined_kernel = njit(forceinline=True, **INNER_OPTIONS)
cached_kernel = njit(cache=True, **OPTIONS)


def source_stamp(modules: tuple[ModuleType, ...]) -> int:
    """Returns a positive number that changes whenever the source of one of the modules does."""
    digest = hashlib.sha256()
    for module in modules:
        digest.update(Path(str(module.__file__)).read_bytes())
    return int.from_bytes(digest.digest()[:7], "little") | 1
