"""Input scripts: the controls of a race, tick by tick, as text that TMInterface plays.

    # a comment
    0.00-1.25 press up       # pressed at 0.00, released at 1.25
    0.80 steer -12000        # analog, -65536 (full left) to 65536, until the next

Times are seconds with two decimals. The reader accepts the commands that the writer uses, and refuses the rest of
TMInterface's grammar (its documentation, "Script syntax").
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.actions import TICK_MS
from rulka.machine.errors import UserError

FULL = 65536
"""The largest analog value."""
MAX_TICKS = 360_000
"""One hour; scripts with a later time are refused."""
KEYS = ("up", "down", "left", "right")

Controls = NDArray[np.float32]

_TIME = r"(\d{1,4}\.\d\d)"
_PRESS = re.compile(rf"{_TIME}-{_TIME}\s+press\s+({'|'.join(KEYS)})", re.ASCII)
_STEER = re.compile(rf"{_TIME}\s+steer\s+(-?\d{{1,5}})", re.ASCII)


class InputScriptError(UserError):
    """A script that cannot be read or written; the message names the line."""


def write_script(controls: Controls, comments: tuple[str, ...] = ()) -> str:
    """Writes the controls of a race as a script that reads back equal.

    Steering is written as keys if all its values are -1, 0 or 1, else as `steer`; pedals are keys. Other values are
    rounded to 1/65536.

    Args:
        controls: [T, 3] steer in [-1, 1] (positive right), gas and brake each tick. Pedals are 0 or 1.
        comments: lines for the head of the script.

    Raises:
        InputScriptError: if a control is out of range, or a pedal is between 0 and 1, for which no command
            keeps gas and brake apart.
    """
    values = np.asarray(controls, np.float64)
    if values.ndim != 2 or values.shape[1] != 3 or not (np.abs(values) <= 1.0).all():
        raise InputScriptError("a script is made from rows of steer in [-1, 1], gas and brake")
    if not np.isin(values[:, 1:], (0.0, 1.0)).all():
        raise InputScriptError("gas and brake must be 0 or 1 in a script")
    spans = [*_key_spans(values[:, 1] > 0, "up"), *_key_spans(values[:, 2] > 0, "down")]
    if np.isin(values[:, 0], (-1.0, 0.0, 1.0)).all():
        spans += [*_key_spans(values[:, 0] < 0, "left"), *_key_spans(values[:, 0] > 0, "right")]
    else:
        spans += _steer_spans(np.rint(values[:, 0] * FULL).astype(np.int64))
    if any("\n" in comment or "\r" in comment for comment in comments):
        raise InputScriptError("a comment of a script is one line")
    head = [f"# {comment}" for comment in comments]
    return "\n".join([*head, *(text for _, text in sorted(spans, key=lambda span: span[0]))]) + "\n"


def read_script(text: str, num_ticks: int | None = None) -> Controls:
    """Reads a script.

    Args:
        text: the script.
        num_ticks: T; by default up to the last time in the script.

    Returns:
        [T, 3] float32 steer in [-1, 1] (positive right), gas and brake of each tick.

    Raises:
        InputScriptError: for an invalid line, naming it.
    """
    presses: list[tuple[int, int, int]] = []
    steers: list[tuple[int, float]] = [(0, 0.0)]
    for number, line in enumerate(text.splitlines(), 1):
        command = line.partition("#")[0].strip()
        if parts := _PRESS.fullmatch(command):
            first, end = _tick(parts[1], number), _tick(parts[2], number)
            if end <= first:
                raise InputScriptError(f"line {number}: {command!r} ends before it has begun")
            presses.append((first, end, KEYS.index(parts[3])))
        elif parts := _STEER.fullmatch(command):
            if abs(value := int(parts[2])) > FULL:
                raise InputScriptError(f"line {number}: {value} is not a whole number from -{FULL} to {FULL}")
            steers.append((_tick(parts[1], number), value / FULL))
        elif command:
            raise InputScriptError(f"line {number}: {command!r:.80} is not `TIME-TIME press KEY` or `TIME steer VALUE`")
    if num_ticks is None:
        num_ticks = max(*(end for _, end, _ in presses), *(tick for tick, _ in steers), 0)
    keys, steer = np.zeros((num_ticks, len(KEYS)), np.float32), np.zeros(num_ticks, np.float32)
    for first, end, key in presses:
        keys[first:end, key] = 1.0
    for tick, value in sorted(steers, key=lambda event: event[0]):
        steer[tick:] = value
    up, down, left, right = keys.T
    return np.stack([np.where((left > 0) | (right > 0), right - left, steer), up, down], axis=1)


def read_comments(text: str) -> list[str]:
    """Returns the comments on lines of their own, without the `#`."""
    lines = (line.strip() for line in text.splitlines())
    return [line[1:].strip() for line in lines if line.startswith("#")]


def _key_spans(is_down: NDArray[np.bool_], key: str) -> list[tuple[int, str]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_down, [False]]).astype(np.int8)))
    spans = edges.reshape(-1, 2).tolist()
    return [(first, f"{_seconds(first)}-{_seconds(end)} press {key}") for first, end in spans]


def _steer_spans(steer: NDArray[np.int64]) -> list[tuple[int, str]]:
    changes = np.flatnonzero(np.diff(steer, prepend=0)).tolist()
    lines = [(tick, f"{_seconds(tick)} steer {steer[tick]}") for tick in changes]
    return [*lines, (len(steer), f"{_seconds(len(steer))} steer 0")]


def _seconds(tick: int) -> str:
    return f"{tick * TICK_MS // 1000}.{tick * TICK_MS % 1000 // 10:02d}"


def _tick(time: str, number: int) -> int:
    tick = round(float(time) * 1000) // TICK_MS
    if tick > MAX_TICKS:
        raise InputScriptError(f"line {number}: the time {time} is later than an hour")
    return tick
