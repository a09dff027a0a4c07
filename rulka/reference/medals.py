"""Medal times from the author's time, by the rule with which TrackMania's editor fills them in.

Gold, silver and bronze are 1.06, 1.2 and 1.5 times the author's time, in whole seconds, always the next one: a product
that is a whole second already gets one more. (The formula as the Openplanet plug-in "Ultimate Medals Extended" states
it, `floor(author * 0.00106) + 1` seconds.)
"""

from __future__ import annotations

from typing import NamedTuple

PERCENT = {"gold": 106, "silver": 120, "bronze": 150}


class Medals(NamedTuple):
    """Times to beat or equal, in milliseconds."""

    author_ms: int
    gold_ms: int
    silver_ms: int
    bronze_ms: int


def medals_of(author_ms: int) -> Medals:
    """Returns the medal times of a track whose author, here the reference lap, needs `author_ms`, positive."""
    return Medals(author_ms, *((author_ms * percent // 100_000 + 1) * 1000 for percent in PERCENT.values()))


def medal_won(race_time_ms: float, medals: Medals) -> str | None:
    """Returns the best medal that a time earns: "author", "gold", "silver" or "bronze"; None for none."""
    won = [name for name, limit_ms in zip(("author", *PERCENT), medals, strict=True) if race_time_ms <= limit_ms]
    return won[0] if won else None
