"""Medal times: those of a map of the game, or derived from a reference lap by the rule of TrackMania's editor.

Gold, silver and bronze are 1.06, 1.2 and 1.5 times the author's time, rounded to the next whole second; a product of
whole seconds also gains one. (Formula from the Openplanet plug-in "Ultimate Medals Extended":
`floor(author * 0.00106) + 1` seconds.)
"""

from __future__ import annotations

from typing import NamedTuple

from rulka.tracks.track import Track

PERCENT = {"gold": 106, "silver": 120, "bronze": 150}


class Medals(NamedTuple):
    """Times to beat or equal, in milliseconds."""

    author_ms: int
    gold_ms: int
    silver_ms: int
    bronze_ms: int


def medals_of(track: Track, lap_ms: int | None) -> Medals | None:
    """Returns the medal times of a track, or None.

    Args:
        track: a map of the game has its own medals. A map known only from recordings has none: a time found by search
            in physics fitted to recordings is not an author's time.
        lap_ms: time of the reference lap, positive; on generated tracks it serves as the author's time.
    """
    if track.medals_ms:
        return Medals(*track.medals_ms)
    if lap_ms is None or track.is_driven:
        return None
    return Medals(lap_ms, *((lap_ms * percent // 100_000 + 1) * 1000 for percent in PERCENT.values()))


def medal_won(race_time_ms: float, medals: Medals) -> str | None:
    """Returns the best medal that a time earns: "author", "gold", "silver" or "bronze", or None."""
    won = [name for name, limit_ms in zip(("author", *PERCENT), medals, strict=True) if race_time_ms <= limit_ms]
    return won[0] if won else None
