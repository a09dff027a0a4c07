"""How pages are written: Jinja2's templates, and numbers in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined

if TYPE_CHECKING:
    from pathlib import Path

    from rulka.evaluation.statistics import Interval

NONE = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
THIN = "\N{NO-BREAK SPACE}"


def templates(folder: Path) -> Environment:
    """Returns the templates of a folder; they know the filter `seconds`."""
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,  # names of tracks and players come from files of strangers
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["seconds"] = seconds
    return environment


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
