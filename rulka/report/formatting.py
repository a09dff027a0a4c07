"""Jinja2 environment and number formats of the HTML pages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from rulka.machine.errors import counted

NONE = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
THIN = "\N{NO-BREAK SPACE}"


def templates(folder: Path) -> Environment:
    """Returns a Jinja2 environment for a folder of templates, with the filters `seconds`, `counted` and `marked`."""
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,  # track and player names come from untrusted files
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"seconds": seconds, "counted": counted, "marked": marked}
    return environment


def marked(text: str) -> Markup:
    """Escapes text; what stands between backticks becomes code."""
    return Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def seconds(time_s: float | None, digits: int = 2) -> str:
    """Formats a time with its unit; None as a dash."""
    return NONE if time_s is None else f"{time_s:.{digits}f}{THIN}s"


def signed(time_s: float) -> str:
    """Formats a time difference with its sign."""
    return f"{time_s:+z.2f}{THIN}s".replace("-", MINUS)


def percent(interval: Sequence[float]) -> str:
    """Formats the interval of a rate in percent."""
    low, high = interval
    return f"{100 * low:.0f}{NONE}{100 * high:.0f}{THIN}%"
