"""Waits for other processes and threads until a condition holds, with a timeout long enough for a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

PATIENCE_S = 300.0
"""Timeout of a wait. Far longer than any wait should take, since no test measures speed: two slow cores shared by three
workers and another user's program are ten times slower than an idle machine."""
_LOOK_S = 0.02


def wait_for(condition: Callable[[], Value], what: str) -> Value:
    """Polls a condition and returns its first true value.

    Args:
        condition: polled until its value is true.
        what: names the awaited event in the error message.

    Raises:
        AssertionError: after `PATIENCE_S`.
    """
    give_up_s = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < give_up_s, f"waited {PATIENCE_S:.0f} s in vain for {what}"
        time.sleep(_LOOK_S)
    return value
