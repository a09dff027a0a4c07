"""Makes numba's own work shorter while it compiles; what comes out is the same to the bit.

Two thirds of a compilation are numba's Python, and much of that is spent twice: an operator such as `array[int]` is
looked up among dozens of implementations wherever it stands, a millisecond each time, and the garbage collector walks
again and again through a graph that grows until the end. So answers are kept, and the collector rests, from the
beginning of an outermost compilation to its end. numba holds a lock of its own all that time.

The hook into numba's lookup is private to it; `pyproject.toml` therefore pins numba to one minor version.
"""

from __future__ import annotations

import gc
from typing import Any

from numba.core import event
from numba.core.types.functions import BaseFunction

COMPILATION = "numba:compile"
"""numba's event; kernels that a kernel calls are compiled within its own. Not sent where the cache has the kernel."""
_look_up = BaseFunction.get_call_type


class QuickCompiling(event.Listener):
    """Keeps looked up signatures, and the garbage collector at rest, while numba compiles."""

    def __init__(self) -> None:
        self._depth, self._was_collecting = 0, False
        self._signatures: dict[Any, Any] = {}

    def on_start(self, event: event.Event) -> None:
        """Begins with the outermost compilation."""
        self._depth += 1
        if self._depth > 1:
            return
        self._was_collecting = gc.isenabled()
        gc.disable()
        signatures = self._signatures

        def remember(function: BaseFunction, context: Any, args: Any, kws: Any) -> Any:
            if kws:
                return _look_up(function, context, args, kws)
            key = function, context, args
            if key not in signatures:
                signatures[key] = _look_up(function, context, args, kws)
            return signatures[key]

        BaseFunction.get_call_type = remember  # pyright: ignore[reportAttributeAccessIssue] same arguments, other names

    def on_end(self, event: event.Event) -> None:
        """Ends with the outermost compilation, also a failed one."""
        self._depth -= 1
        if self._depth:
            return
        BaseFunction.get_call_type = _look_up
        self._signatures.clear()
        if self._was_collecting:
            gc.enable()


LISTENER = QuickCompiling()
event.register(COMPILATION, LISTENER)
