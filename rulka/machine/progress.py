"""Progress of long tasks: a bar with rate and time left on a terminal, a plain line every few seconds elsewhere.

Plain lines are flushed at once, so that they stream through pipes into a log.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as RichProgress

from rulka.machine.terminal import note_word, say, shown

LINE_PERIOD_S = 5.0
BAR_PERIOD_S = 0.2
BASIS_S = 3.0
"""Measured time needed before the time left is shown."""
COLUMNS = (
    TextColumn("{task.description}", markup=False),
    BarColumn(bar_width=30),
    TextColumn("{task.percentage:>3.0f} %"),
    TextColumn("{task.fields[left]}"),
    TextColumn("{task.fields[details]}", markup=False),
)
"""Columns of the bar."""

Fact = str | float | int


class Progress:
    """Progress display of one task. Use as a context manager.

    Args:
        label: name of the task, usually the stage and the activity.
        total: total amount of work, in `unit`; None if unknown.
        unit: plural name of the counted items, for example "frames".
        done: amount done before, for example by a run that is being resumed.
        stream: output stream; None is standard output.

    Attributes:
        is_estimate: whether the total is an estimate that may change, for example if a time limit ends the task.
        left_s: seconds left, if the task knows them better than its pace here suggests.
    """

    def __init__(
        self, label: str, total: float | None, unit: str, *, done: float = 0.0, stream: TextIO | None = None
    ) -> None:
        self.label, self.total, self.unit, self.done = label, total, unit, done
        self.is_estimate = False
        self.left_s: float | None = None
        self._done_before = done
        self._basis: tuple[float, float] | None = None  # time in seconds, and the amount done then
        self._facts: dict[str, Fact] = {}
        self._stream = stream or sys.stdout
        self._started_s = self._shown_s = time.monotonic()
        self._bar = RichProgress(*COLUMNS, console=Console(file=self._stream)) if self._stream.isatty() else None
        self._task = self._bar.add_task(shown(label), total=total, left="", details="") if self._bar else TaskID(0)

    def __enter__(self) -> Self:
        self._started_s = self._shown_s = time.monotonic()
        if self._bar:
            self._bar.start()
            self._show()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._show("done" if kind is None else "stopped")
        if self._bar:
            self._bar.stop()

    def advance(self, amount: float = 1, **facts: Fact) -> None:
        """Adds to the amount done and stores facts to show, such as a loss; cheap enough for inner loops."""
        self.done += amount
        self._facts.update(facts)
        now_s = time.monotonic()
        if self._basis is None:
            self._basis = now_s, self.done
        if now_s - self._shown_s < (BAR_PERIOD_S if self._bar else LINE_PERIOD_S):
            return
        self._shown_s = now_s
        self._show(self.time_left())

    def skip(self, amount: float) -> None:
        """Adds work that an earlier run did. It does not count towards the rate."""
        self.done += amount
        self._done_before += amount

    @property
    def rate(self) -> float:
        """Units per second since the start of this run; 0 before any time has passed."""
        elapsed_s = time.monotonic() - self._started_s
        return (self.done - self._done_before) / elapsed_s if elapsed_s > 0 else 0.0

    def time_left(self) -> str:
        """Returns the time left in words; empty as long as too little time was measured to estimate it.

        Measuring begins with the first advance, so that compilation before it does not distort the pace.
        """
        if self._basis is None or self.total is None:
            return ""
        since_s, done_then = self._basis
        measured_s, measured = time.monotonic() - since_s, self.done - done_then
        if measured <= 0 or measured_s < BASIS_S:
            return ""
        by_pace_s = max(0.0, self.total - self.done) * measured_s / measured
        left_s = by_pace_s if self.left_s is None else self.left_s
        minutes, seconds = divmod(round(left_s), 60)
        return f"{minutes} min {seconds} s left" if minutes else f"{seconds} s left"

    def details(self) -> str:
        """Returns the rate and the facts in words."""
        facts = [f"{name} {_number(value)}" for name, value in self._facts.items()]
        return ", ".join([f"{_number(self.rate)} {self.unit}/s", *facts])

    def _show(self, ending: str = "") -> None:
        """Updates the bar or writes a line."""
        if self._bar:
            note_word()
            left, details = self.time_left(), self.details()
            self._bar.update(self._task, completed=self.done, total=self.total, left=left, details=details)
            return
        about = "~" if self.is_estimate and self.total != self.done else ""
        of_total = f"/{about}{_number(self.total)}" if self.total is not None else ""
        percent = f" ({min(100.0, 100.0 * self.done / self.total):.0f} %)" if self.total else ""
        parts = [f"{self.label}: {_number(self.done)}{of_total} {self.unit}{percent}", self.details(), ending]
        say(", ".join(part for part in parts if part), self._stream)


def _number(value: Fact) -> str:
    if isinstance(value, str):
        return shown(value)
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{round(value):,}"
    return f"{value:.4g}"
