"""How numbers are written on pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rulka.statistics import Interval

NONE = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
THIN = "\N{NO-BREAK SPACE}"


def seconds(time_s: float | None, digits: int = 2) -> str:
    """Returns a time with its unit, a dash where there is none."""
    return NONE if time_s is None else f"{time_s:.{digits}f}{THIN}s"


def signed(value: float) -> str:
    """Returns a number with its sign, as it is printed."""
    return f"{value:+.2f}".replace("-", MINUS)


def percent(interval: Interval) -> str:
    """Returns the interval of a rate in percent."""
    return f"{100 * interval.low:.0f}{NONE}{100 * interval.high:.0f}{THIN}%"


def duration(seconds: float) -> str:
    """Returns how long something took."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.1f} s"


def memory(megabytes: float | None) -> str:
    """Returns how much memory something took, a dash where nobody knows."""
    return NONE if megabytes is None else f"{megabytes / 1000:.2f} GB"
