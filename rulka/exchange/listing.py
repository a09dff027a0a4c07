"""What an exchange has: maps that fit a query, and the best recordings of a map.

Addresses and names of fields are those of tmnf.exchange (TMNF-X), as public programs use them. These disagree on page
sizes and on which filters the site obeys, so every filter is applied here as well, and a page may be shorter than asked
for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rulka.exchange.client import BadAnswerError

MAP_FIELDS = "TrackId,TrackName,UId,AuthorTime,Awards,Uploader.Name"
REPLAY_FIELDS = "ReplayId,User.UserId,User.Name,ReplayTime,ReplayScore,Position,IsBest,IsLeaderboard"
PAGE_SIZE = 100
MAX_PAGES = 1000

Ask = Callable[[str, Mapping[str, str | int]], Any]
"""Asks an exchange for JSON, as `Client.get_json` does."""


@dataclass(frozen=True)
class MapQuery:
    """Which maps are wanted; empty and None mean any.

    Attributes:
        ids: numbers of maps on the exchange.
        uids: unique names of maps, as recordings state them.
        name: part of the shown name.
        author: name of the uploader, whatever its case.
        min_length_ms: least author time.
        max_length_ms: greatest author time.
        max_maps: at most so many.
    """

    ids: tuple[int, ...] = ()
    uids: tuple[str, ...] = ()
    name: str = ""
    author: str = ""
    min_length_ms: int | None = None
    max_length_ms: int | None = None
    max_maps: int | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the wanted maps are named one by one."""
        return bool(self.ids or self.uids)

    def fits(self, found: MapEntry) -> bool:
        """Returns whether a map is wanted."""
        length_ms = found.length_ms
        return (
            (not self.is_exact or found.map_id in self.ids or found.uid in self.uids)
            and self.name.casefold() in found.name.casefold()
            and (not self.author or self.author.casefold() == found.author.casefold())
            and (self.min_length_ms is None or (length_ms is not None and length_ms >= self.min_length_ms))
            and (self.max_length_ms is None or (length_ms is not None and length_ms <= self.max_length_ms))
        )

    def parameters(self) -> dict[str, str | int]:
        """Returns what the site is asked."""
        asked: dict[str, str | int | None] = {
            "id": ",".join(map(str, self.ids)),
            "uid": ",".join(self.uids),
            "trackname": self.name,
            "authorTimeMin": self.min_length_ms,
            "authorTimeMax": self.max_length_ms,
        }
        return {name: value for name, value in asked.items() if value not in ("", None)}


@dataclass(frozen=True)
class MapEntry:
    """A map on the exchange; `length_ms` is its author time, None where not stated."""

    map_id: int
    uid: str
    name: str
    author: str
    length_ms: int | None


@dataclass(frozen=True)
class ReplayEntry:
    """A recording on the exchange; `rank` is its place among those of its map, None where it has none."""

    replay_id: int
    time_ms: int | None
    rank: int | None


def find_maps(ask: Ask, query: MapQuery) -> Iterator[MapEntry]:
    """Yields the maps that fit a query, in the order of the site, page by page as they are needed.

    Raises:
        ExchangeError: if the site does not answer, or not as its interface says.
    """
    found, last, num_pages = 0, None, 0
    wanted = len(query.ids) + len(query.uids) if query.is_exact else None
    limit = query.max_maps if wanted is None else min(wanted, query.max_maps or wanted)
    seen: set[int] = set()
    while limit is None or found < limit:
        parameters = {"fields": MAP_FIELDS, "count": PAGE_SIZE, **query.parameters()}
        rows, is_more = _page(ask, "/api/tracks", parameters | ({} if last is None else {"after": last}))
        entries = [entry for entry in map(_map_entry, rows) if entry.map_id not in seen]
        for entry in entries:
            seen.add(entry.map_id)
            if query.fits(entry) and (limit is None or found < limit):
                found += 1
                yield entry
        num_pages += 1
        if not entries or not is_more or num_pages >= MAX_PAGES:
            return
        last = entries[-1].map_id


def best_replays(ask: Ask, map_id: int, count: int) -> list[ReplayEntry]:
    """Returns the recordings of a map with the best ranks, 9 before 10, those without a rank last by their time.

    Raises:
        ExchangeError: if the site does not answer, or not as its interface says.
    """
    found: dict[int, ReplayEntry] = {}
    for number in range(MAX_PAGES):
        parameters = {"trackid": map_id, "fields": REPLAY_FIELDS, "limit": PAGE_SIZE, "offset": len(found)}
        rows, is_more = _page(ask, "/api/replays", parameters)
        before = len(found)
        found |= {entry.replay_id: entry for entry in map(_replay_entry, rows)}
        if len(found) == before or not is_more or number + 1 == MAX_PAGES:
            break
    last = float("inf")
    ordered = sorted(
        found.values(),
        key=lambda one: (
            last if one.rank is None else one.rank,
            last if one.time_ms is None else one.time_ms,
            one.replay_id,
        ),
    )
    return ordered[:count]


def _page(ask: Ask, path: str, parameters: Mapping[str, str | int]) -> tuple[list[Mapping[str, Any]], bool]:
    """Returns the rows of a page and whether there are more after it."""
    answer = ask(path, parameters)
    rows = answer.get("Results") if isinstance(answer, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        message = f"{path} answered without a list of results"
        raise BadAnswerError(message)
    return rows, bool(answer.get("More", len(rows) >= PAGE_SIZE))


def _map_entry(row: Mapping[str, Any]) -> MapEntry:
    uploader = row.get("Uploader")
    return MapEntry(
        map_id=_id(row, "TrackId"),
        uid=_text(row.get("UId")),
        name=_text(row.get("TrackName")),
        author=_text(uploader.get("Name") if isinstance(uploader, dict) else row.get("Uploader.Name")),
        length_ms=_number(row.get("AuthorTime")),
    )


def _replay_entry(row: Mapping[str, Any]) -> ReplayEntry:
    return ReplayEntry(_id(row, "ReplayId"), _number(row.get("ReplayTime")), _number(row.get("Position")))


def _id(row: Mapping[str, Any], field: str) -> int:
    number = _number(row.get(field))
    if number is None:
        message = f"a result states no {field}: {str(dict(row))[:200]}"
        raise BadAnswerError(message)
    return number


def _number(value: object) -> int | None:
    """Returns a whole number that is not negative, also one that is written as text; None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
