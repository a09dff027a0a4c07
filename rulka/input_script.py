"""Input scripts as TMInterface reads them: the controls of a race, tick by tick, as text.

    # a comment
    0.00-1.25 press up       # pressed at 0.00, let go at 1.25
    0.50 press left
    0.80 rel left
    1.30 steer -12000        # analog, -65536 (full left) to 65536, until the next
    1.30-1.80 gas -65536     # an axis for the pedals: gas from -19661 down, brake from 19661 up; 0 from 1.80 on

Times are seconds with at most two decimals, or whole milliseconds that end in 0. Lines need not be in order; of two
that say different things about one control at one time, the later line holds. Grammar: TMInterface's documentation,
"Script syntax". Console commands and other keys (`enter`, `horn`, `delete`) have no meaning here and are refused.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from rulka.actions import TICK_MS
from rulka.errors import UserError

FULL = 65536
"""The largest analog value."""
PEDAL = 19661 / FULL
"""Where the axis of the pedals counts as pressed, either way."""
MAX_TICKS = 360_000
"""An hour; a script that names a later time is refused."""
KEYS = ("up", "down", "left", "right")
ANALOG = ("steer", "gas")

Controls = NDArray[np.float32]

_TIME = r"(\d+\.\d{1,2}|\d+)"
_LINE = re.compile(rf"{_TIME}(?:-{_TIME})?\s+(press|rel|steer|gas)\s+(\S+)", re.ASCII)


class InputScriptError(UserError):
    """A script that cannot be read or written; the message names the line."""


def write_script(controls: Controls, comments: tuple[str, ...] = ()) -> str:
    """Writes the controls of a race as a script that reads back equal.

    Keys are written where all values are those of keys, else `steer` and keys for the pedals. Values between are
    rounded to 1/65536.

    Args:
        controls: [T, 3] steer in [-1, 1] (positive right), gas and brake each tick. Pedals are 0 or 1.
        comments: lines for the head of the script.

    Raises:
        InputScriptError: if a control is out of range, or a pedal between 0 and 1, for which there is no command that
            keeps gas and brake apart.
    """
    values = np.asarray(controls, np.float64)
    if values.ndim != 2 or values.shape[1] != 3 or not (np.abs(values) <= 1.0).all():
        message = "a script is made from rows of steer in [-1, 1], gas and brake"
        raise InputScriptError(message)
    if not np.isin(values[:, 1:], (0.0, 1.0)).all():
        message = "gas and brake must be 0 or 1 in a script"
        raise InputScriptError(message)
    spans = [*_key_spans(values[:, 1] > 0, "up"), *_key_spans(values[:, 2] > 0, "down")]
    if np.isin(values[:, 0], (-1.0, 0.0, 1.0)).all():
        spans += [*_key_spans(values[:, 0] < 0, "left"), *_key_spans(values[:, 0] > 0, "right")]
    else:
        spans += _steer_spans(np.rint(values[:, 0] * FULL).astype(np.int64))
    if any("\n" in comment or "\r" in comment for comment in comments):
        message = "a comment of a script is one line"
        raise InputScriptError(message)
    head = [f"# {comment}" for comment in comments]
    return "\n".join([*head, *(text for _, text in sorted(spans, key=lambda span: span[0]))]) + "\n"


def read_script(text: str, num_ticks: int | None = None) -> Controls:
    """Reads a script.

    Args:
        text: the script.
        num_ticks: T; until the last time that the script names when left out.

    Returns:
        [T, 3] float32 steer in [-1, 1] (positive right), gas and brake of each tick.

    Raises:
        InputScriptError: for a line that is none, naming it.
    """
    events = []
    for number, line in enumerate(text.splitlines(), 1):
        command = line.partition("#")[0].strip()
        if command:
            events += [(tick, number, name, value) for tick, name, value in _events(command, number)]
    last = max((event[0] for event in events), default=0)
    channels = np.full((last + 1, len(KEYS) + len(ANALOG)), np.nan)
    channels[0] = 0.0
    for tick, _, name, value in sorted(events, key=lambda event: event[:2]):
        channels[tick, (*KEYS, *ANALOG).index(name)] = value
    up, down, left, right, steer, gas = _held(channels).T
    sides = np.where((left > 0) | (right > 0), right - left, steer)
    pedals = np.maximum(up, gas <= -PEDAL), np.maximum(down, gas >= PEDAL)
    controls = np.stack([sides, *pedals], axis=1).astype(np.float32)
    if num_ticks is None:
        return controls[:last]
    beyond = np.repeat(controls[-1:], max(num_ticks - len(controls), 0), axis=0)
    return np.concatenate([controls, beyond])[:num_ticks]


def _held(channels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns values [T, C] with every gap filled by what was there before it."""
    rows = np.where(np.isnan(channels), 0, np.arange(len(channels))[:, None])
    return np.take_along_axis(channels, np.maximum.accumulate(rows, axis=0), axis=0)


def read_comments(text: str) -> list[str]:
    """Returns the comments that stand on lines of their own, without their mark."""
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


def _events(command: str, number: int) -> list[tuple[int, str, float]]:
    """Returns tick, control and value of what one line says: its beginning and, where it has one, its end."""
    parts = _LINE.fullmatch(command)
    if parts is None:
        message = f"line {number}: {command!r:.80} is not `TIME press|rel KEY` or `TIME steer|gas VALUE`"
        raise InputScriptError(message)
    first, end, verb, what = parts.groups()
    name, value = _meaning(verb, what, number)
    begin = _tick(first, number)
    if end is None:
        return [(begin, name, value)]
    until = _tick(end, number)
    if until <= begin or verb == "rel":
        message = f"line {number}: {command!r:.80} has an end that is not after its beginning, or that means nothing"
        raise InputScriptError(message)
    return [(begin, name, value), (until, name, 0.0)]


def _meaning(verb: str, what: str, number: int) -> tuple[str, float]:
    if verb in ("press", "rel"):
        if what not in KEYS:
            message = f"line {number}: the key {what!r:.40} is none of {', '.join(KEYS)}"
            raise InputScriptError(message)
        return what, float(verb == "press")
    if re.fullmatch(r"-?\d{1,5}", what, re.ASCII) is None or abs(int(what)) > FULL:
        message = f"line {number}: {what!r:.40} is not a whole number from -{FULL} to {FULL}"
        raise InputScriptError(message)
    return verb, int(what) / FULL


def _tick(time: str, number: int) -> int:
    whole, _, fraction = time.partition(".")
    # Python refuses to convert very long numbers, and no race is that long.
    time_ms = MAX_TICKS * TICK_MS + 1 if len(whole) > 9 else int(whole)
    if "." in time:
        time_ms = time_ms * 1000 + int(fraction.ljust(3, "0"))
    if time_ms % TICK_MS or time_ms > MAX_TICKS * TICK_MS:
        message = f"line {number}: the time {time!r:.40} is not one of a tick (whole {TICK_MS} ms), up to an hour"
        raise InputScriptError(message)
    return time_ms // TICK_MS
