"""Compiled kernels, cached on disk by numba, and the repair of that cache.

A power cut or an unfinished copy may leave a damaged file in the cache, with which numba would fail at each start.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba import njit
from numba.core import event

F = TypeVar("F", bound=Callable[..., Any])
_LOGGER = logging.getLogger(__name__)
_UNCHECKED: list[Any] = []


def cached_njit(function: F, **options: Any) -> F:
    """Compiles a function on its first call and caches the machine code on disk; `options` are those of `njit`."""
    kernel = njit(cache=True, nogil=True, **options)(function)
    _UNCHECKED.append(kernel)
    return cast("F", kernel)


def remove_damaged() -> list[Path]:
    """Removes and logs each index of the cache that cannot be loaded, or whose machine code cannot.

    Looks once at each kernel defined so far. numba then compiles it again and replaces the files.
    """
    removed: list[Path] = []
    while _UNCHECKED:
        kernel = _UNCHECKED.pop()
        for index in Path(kernel.stats.cache_path).glob(f"*.{kernel.py_func.__qualname__}-*.nbi"):
            try:
                _load(index)
            except Exception:  # unpickling damaged bytes may raise anything
                index.unlink(missing_ok=True)
                removed.append(index)
    if removed:
        names = ", ".join(map(str, removed))
        _LOGGER.warning("damaged and removed from the cache of compiled kernels, which are compiled again: %s", names)
    return removed


def _load(index: Path) -> None:
    """Unpickles what numba itself would: an index, which is its version, then its content, and the files it names."""
    with index.open("rb") as file:
        if pickle.load(file) != numba.__version__:
            return
        _, names = pickle.load(file)
    for name in names.values():
        with suppress(FileNotFoundError):  # numba compiles again
            pickle.loads((index.parent / name).read_bytes())


class _Check(event.Listener):
    def on_start(self, event: event.Event) -> None:
        """Repairs the cache before it is used: all that an index refers to is imported by then."""
        remove_damaged()

    def on_end(self, event: event.Event) -> None:
        """Does nothing."""


event.register("numba:compiler_lock", _Check())  # a documented event, whose first precedes the first use of the cache
