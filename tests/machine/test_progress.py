import io
import re

import pytest

from rulka.machine import progress as progress_module
from rulka.machine.progress import Progress


class Clock:
    """Fake clock, advanced by the test."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress_module, "time", clock)
    return clock


def test_plain_lines_come_every_five_seconds_with_rate_facts_and_time_left(clock: Clock) -> None:
    stream = io.StringIO()
    with Progress("capture", 1000, "frames", stream=stream) as progress:
        for _ in range(5):
            clock.now_s += 2.0
            progress.advance(100, loss=0.12345)
    lines = stream.getvalue().splitlines()
    # 300 frames after 6 s (4 s is too early, 10 s is the next but 4 s later): 50 a second, 700 left take 14 s.
    assert lines == [
        "capture: 300/1,000 frames (30 %), 50 frames/s, loss 0.1235, 14 s left",
        "capture: 500/1,000 frames (50 %), 50 frames/s, loss 0.1235, done",
    ]


def left_after(clock: Clock, total: float, steps: list[tuple[float, float]]) -> str:
    """Returns the displayed time left after steps of (seconds, advance)."""
    progress = Progress("train", total, "steps", stream=io.StringIO())
    for seconds, amount in steps:
        clock.now_s += seconds
        progress.advance(amount)
    return progress.time_left()


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], ""),
        ([(60.0, 10)], ""),  # no estimate of the pace from compilation and one step
        ([(60.0, 10), (2.0, 100)], ""),  # too short
        ([(60.0, 10), (10.0, 90)], "1 min 40 s left"),  # 9 a second, 900 left; the first minute does not count
        ([(60.0, 10), (50.0, 10)], "81 min 40 s left"),  # 0.2 a second, 980 left
        ([(60.0, 10), (3.0, 90), (57.0, 910)], "0 s left"),  # never negative, even beyond the planned total
        ([(60.0, 10), (50.0, 0)], ""),
    ],
)
def test_time_left_needs_a_basis(clock: Clock, steps: list[tuple[float, float]], expected: str) -> None:
    assert left_after(clock, 1000, steps) == expected


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_and_work_that_fails_is_not_called_done() -> None:
    stream = Terminal()
    with Progress("clone", 4, "epochs", stream=stream) as progress:
        progress.advance(4, accuracy=0.9)
    shown = stream.getvalue()
    assert "clone" in shown
    assert "100 %" in shown
    assert "accuracy 0.9" in shown
    stream = io.StringIO()
    with pytest.raises(RuntimeError), Progress("clone", None, "epochs", stream=stream):
        raise RuntimeError
    assert re.fullmatch(r"clone: 0 epochs, 0 epochs/s, stopped\n", stream.getvalue())


def test_a_total_that_may_change_is_marked_until_it_is_reached(clock: Clock) -> None:
    stream = io.StringIO()
    with Progress("train", 1000, "steps", stream=stream) as progress:
        progress.total, progress.is_estimate = 800, True
        clock.now_s += 10.0
        progress.advance(400)
        clock.now_s += 10.0
        progress.left_s = 67.0
        progress.advance(400)
    marked = [line.split(" steps")[0] for line in stream.getvalue().splitlines()]
    assert marked == ["train: 400/~800", "train: 800/800", "train: 800/800"]
    assert "1 min 7 s left" in stream.getvalue().splitlines()[1]
