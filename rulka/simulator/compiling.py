"""How kernels are compiled: `cached_kernel` for those that Python calls, the other two for what they are made of.

numba keeps machine code on disk, under the name of its kernel, and looks only at that kernel's own file to see whether
it is still true: an edited constant or kernel in another file would go unseen, and stale code would run. So the name
under which code is kept ends in a digest of all that the kernel is made of.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
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
_parts: dict[Callable[..., Any], dict[str, Any]] = {}
"""The options of every kernel that kernels call."""


def inlined_kernel(function: F) -> F:
    """Makes a kernel that becomes part of the kernels that call it. Python calls the function as it is, uncompiled."""
    return _registered(function, OPTIONS | {"forceinline": True})


def called_kernel(function: F) -> F:
    """Makes a kernel that kernels call, unless LLVM thinks it better to inline it. For Python as `inlined_kernel`."""
    return _registered(function, OPTIONS)


def _registered(function: F, options: dict[str, Any]) -> F:
    """Makes a function known to numba for use within kernels."""
    _parts[function] = options
    return register_jitable(**options)(function)


def cached_kernel(function: F) -> F:
    """Makes a kernel that Python calls; its machine code is kept on disk.

    What it names has to be defined before it: other kernels, numbers and arrays of them, and named tuples.

    Raises:
        TypeError: if it, or a kernel that it calls, names something else of ours, whose changes would go unseen.
    """
    digest = hashlib.sha256(Path(__file__).read_bytes() + numba.__version__.encode())
    for ingredient in _ingredients(function, set()):
        digest.update(ingredient.encode())
    function.__qualname__ += f"_{digest.hexdigest()[:16]}"
    return cast("F", njit(cache=True, nogil=True, **OPTIONS)(function))


def is_cached(kernel: Any) -> bool:
    """Whether machine code of a cached kernel lies on disk.

    numba looks at more, such as the processor: where it does not take what lies there, it compiles anew.
    """
    source = Path(kernel.py_func.__code__.co_filename)
    # numba names a kernel's index after module, name and line, and takes none from before an edit of the file.
    indices = Path(kernel.stats.cache_path).glob(f"*.{kernel.py_func.__qualname__}-*.nbi")
    return any(index.stat().st_mtime > source.stat().st_mtime for index in indices)


def _ingredients(function: Callable[..., Any], seen: set[Callable[..., Any]]) -> Iterator[str]:
    """Yields all that the machine code of a kernel follows from: its byte code, kernels and values that it names."""
    seen.add(function)
    code = function.__code__
    yield f"{code.co_code.hex()} {code.co_names} {code.co_consts} {function.__defaults__}\n"
    for name in code.co_names:
        value: Any = function.__globals__.get(name)
        if isinstance(value, int | float | tuple | np.generic):
            yield f"{name} = {value!r}\n"
        elif isinstance(value, np.ndarray):
            yield f"{name} = {value.dtype} {value.shape} {value.tobytes().hex()}\n"
        elif hasattr(value, "_fields"):
            yield f"{name} = {value._fields}\n"
        elif callable(value) and value in _parts:
            yield f"{name} = {value.__module__}.{value.__qualname__} {_parts[value]}\n"
            if value not in seen:
                yield from _ingredients(value, seen)
        elif _is_ours(value):
            message = f"the kernel {function.__qualname__} names {value!r}, whose changes would go unseen"
            raise TypeError(message)


def _is_ours(value: Any) -> bool:
    """Whether a module, class or function is one of this project."""
    return str(getattr(value, "__module__", getattr(value, "__name__", ""))).startswith("rulka.")


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
                "compiling kernels of the simulator (physics, rewards, frames): some 15 s, once; kept in %s",
                kernel.stats.cache_path,
            )

    def on_end(self, event: event.Event) -> None:
        """Has nothing to tell."""


event.register(COMPILATION, CompilationNotice())
