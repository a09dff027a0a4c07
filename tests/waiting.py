"""How tests wait for other processes and threads: until something holds, and long enough for a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

PATIENCE_S = 300.0
"""Ends a wait for something that will never happen. Far longer than any wait takes, as no test is one of speed: two
slow cores that three workers and somebody else's program share are ten times slower than an idle machine."""
_LOOK_S = 0.02


def wait_for(condition: Callable[[], Value], what: str) -> Value:
    """Returns the first true value of a condition.

    Args:
        condition: called again and again.
        what: what it waits for, to say so if it never comes.
    """
    give_up_s = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < give_up_s, f"waited {PATIENCE_S:.0f} s in vain for {what}"
        time.sleep(_LOOK_S)
    return value
