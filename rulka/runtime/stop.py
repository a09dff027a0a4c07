"""Stops a run between two of its steps instead of in the middle of one."""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Self

IMPATIENCE_S = 5.0
"""A signal more than this after the first is no repetition: the user wants the run to end at once."""

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


class StopRequestedError(KeyboardInterrupt):
    """The run was asked to stop, and did so between two of its steps."""


class StopSignals:
    """Turns Ctrl-C, SIGTERM and a closed terminal into a request that the run checks when it can stop cleanly.

    Use as a context manager in the main thread. A second signal, more than `IMPATIENCE_S` later, interrupts at once.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self._first_s = 0.0
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        for name in _SIGNALS:
            number = getattr(signal, name, None)  # Windows has no SIGHUP
            if number is not None and (name != "SIGHUP" or signal.getsignal(number) != signal.SIG_IGN):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before.clear()

    def check(self) -> None:
        """Raises if a stop was requested.

        Raises:
            StopRequestedError: if so; it ends the stage as Ctrl-C does.
        """
        if self.is_requested:
            raise StopRequestedError("asked to stop")

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_requested and time.monotonic() - self._first_s > IMPATIENCE_S:
            raise KeyboardInterrupt
        if not self.is_requested:
            self.is_requested, self._first_s = True, time.monotonic()
