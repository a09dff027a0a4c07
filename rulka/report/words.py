"""How pages are written: Jinja2's templates, and numbers in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

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


def signed(time_s: float) -> str:
    """Returns a difference of times with its sign."""
    return f"{time_s:+z.2f}{THIN}s".replace("-", MINUS)


def percent(interval: Sequence[float]) -> str:
    """Returns the interval of a rate in percent."""
    low, high = interval
    return f"{100 * low:.0f}{NONE}{100 * high:.0f}{THIN}%"
