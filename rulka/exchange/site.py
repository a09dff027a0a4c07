"""Client of an exchange site: its maps and recordings as typed rows, and their files.

Addresses and field names are those of tmnf.exchange (TMNF-X), as public programs use them. These programs disagree on
page sizes and on the filters that the site obeys, so every filter is applied here as well, and a page may be shorter
than requested.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Generic, TypeVar

import requests
from pydantic import AliasChoices, AliasPath, BaseModel, BeforeValidator, Field, ValidationError
from requests.adapters import HTTPAdapter
from urllib3 import Retry
from urllib3.exceptions import HTTPError, ProtocolError, ReadTimeoutError

from rulka.machine.errors import UserError


class UnavailableError(UserError):
    """The exchange does not answer, stays busy, or has an invalid address."""


class NotThereError(UserError):
    """The exchange does not have the requested file or page, or denies access."""


class BadAnswerError(UserError):
    """The exchange gave an answer outside its interface."""


USER_AGENT = "rulka (github.com/ArtyomZemlyak/rulka)"
TIMEOUT_S = 60.0
PATIENCE = Retry(4, backoff_factor=1, status_forcelist=(429, 500, 502, 503, 504), retry_after_max=300)
"""Four retries: at once, after 2, 4 and 8 s, or when the site says, but at most five minutes later."""
MAX_BYTES = 1 << 26
"""Larger files are rejected; an hour's recording has about two million bytes, a map with pictures ten million."""
MAX_REQUESTS_PER_S = 10.0
PAGE_SIZE = 100
MAX_PAGES = 1000
MAP_FIELDS = "TrackId,TrackName,UId,AuthorTime,Awards,Uploader.Name"
REPLAY_FIELDS = "ReplayId,User.UserId,User.Name,ReplayTime,ReplayScore,Position,IsBest,IsLeaderboard"
_GONE = frozenset({401, 403, 404, 410})

_Text = Annotated[str, BeforeValidator(lambda value: value or "")]
_UPLOADER = AliasChoices(AliasPath("Uploader", "Name"), "Uploader.Name")


class MapEntry(BaseModel):
    """A map on the exchange; `length_ms` is its author time, None if not stated."""

    map_id: int = Field(validation_alias="TrackId")
    uid: _Text = Field("", validation_alias="UId")
    name: _Text = Field("", validation_alias="TrackName")
    author: _Text = Field("", validation_alias=_UPLOADER)
    length_ms: int | None = Field(None, validation_alias="AuthorTime")


class ReplayEntry(BaseModel):
    """A recording on the exchange; `rank` is its rank on its map, None if it has none."""

    replay_id: int = Field(validation_alias="ReplayId")
    time_ms: int | None = Field(None, validation_alias="ReplayTime")
    rank: int | None = Field(None, validation_alias="Position")


_Row = TypeVar("_Row", MapEntry, ReplayEntry)


class _Page(BaseModel, Generic[_Row]):
    rows: list[_Row] = Field(validation_alias="Results")
    has_more: bool = Field(False, validation_alias="More")


@dataclass(frozen=True)
class MapQuery:
    """A selection of maps; empty and None mean any.

    Attributes:
        ids: ids of maps on the exchange.
        uids: UIDs of maps, as recordings state them.
        name: part of the display name, case-insensitive.
        author: name of the uploader, case-insensitive.
        max_length_ms: maximum author time.
        max_maps: maximum number of maps.

    Raises:
        UserError: if neither maps nor their number are given, or `max_maps` is less than 1.
    """

    ids: tuple[int, ...] = ()
    uids: tuple[str, ...] = ()
    name: str = ""
    author: str = ""
    max_length_ms: int | None = None
    max_maps: int | None = None

    def __post_init__(self) -> None:
        if self.max_maps is None and not self.ids and not self.uids:
            message = "neither the maps nor how many of them are named"
            raise UserError(message, hint="Name maps with --map-id or --map-uid, or say --maps 10.")
        if self.max_maps is not None and self.max_maps < 1:
            raise UserError(f"{self.max_maps} maps are wanted; at least one is possible")

    def fits(self, found: MapEntry) -> bool:
        """Returns True if a map is selected."""
        is_any = not self.ids and not self.uids
        most_ms, length_ms = self.max_length_ms, found.length_ms
        return (
            (is_any or found.map_id in self.ids or found.uid in self.uids)
            and self.name.casefold() in found.name.casefold()
            and (not self.author or self.author.casefold() == found.author.casefold())
            and (most_ms is None or (length_ms is not None and length_ms <= most_ms))
        )

    def parameters(self) -> dict[str, str]:
        """Returns the query parameters for the site."""
        asked = {
            "id": ",".join(map(str, self.ids)),
            "uid": ",".join(self.uids),
            "trackname": self.name,
            "authorTimeMax": self.max_length_ms,
        }
        return {name: str(value) for name, value in asked.items() if value not in ("", None)}


class Site:
    """Rate-limited client of an exchange.

    Args:
        url: its address, for example `https://tmnf.exchange`.
        requests_per_s: rate limit; greater than 0, at most `MAX_REQUESTS_PER_S`.

    Raises:
        UserError: if the address is invalid or the rate out of range.
    """

    def __init__(self, url: str, requests_per_s: float) -> None:
        if not url.startswith(("http://", "https://")):
            message = f"{url!r} is no address of a site"
            raise UnavailableError(message, hint="It begins with https://, as in https://tmnf.exchange.")
        if not 0 < requests_per_s <= MAX_REQUESTS_PER_S:
            message = (
                f"{requests_per_s} requests a second; more than 0 and at most {MAX_REQUESTS_PER_S:.0f} is possible"
            )
            raise UserError(message, hint="One a second is what the site is asked by default.")
        self.url, self._between_s, self._next_s = url.rstrip("/"), 1 / requests_per_s, time.monotonic()
        self._session = requests.Session()
        self._session.headers["User-Agent"] = USER_AGENT
        self._session.max_redirects = int(PATIENCE.total or 0)
        self._adapter = HTTPAdapter(max_retries=PATIENCE)
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, self._adapter)

    def maps(self, query: MapQuery) -> Iterator[MapEntry]:
        """Yields the maps that match a query, in the site's order; fetches pages on demand.

        Raises:
            UserError: if the site gives no answer or an invalid one.
        """
        num_named = len(query.ids) + len(query.uids)
        most = min(count for count in (query.max_maps, num_named or None) if count is not None)
        return islice((entry for entry in self._all_maps(query.parameters()) if query.fits(entry)), most)

    def best_replays(self, map_id: int, count: int) -> list[ReplayEntry]:
        """Returns the best-ranked recordings of a map in numeric order of rank, then unranked ones by time.

        Raises:
            UserError: if the site gives no answer or an invalid one.
        """
        found: dict[int, ReplayEntry] = {}
        parameters = {"trackid": f"{map_id}", "fields": REPLAY_FIELDS, "limit": f"{PAGE_SIZE}"}
        for _ in range(MAX_PAGES):
            num_before = len(found)
            page = self._page("/api/replays", parameters | {"offset": f"{num_before}"}, _Page[ReplayEntry])
            found |= {entry.replay_id: entry for entry in page.rows}
            if len(found) == num_before or not page.has_more:
                break

        def order(entry: ReplayEntry) -> tuple[float, float, int]:
            rank, time_ms = (float("inf") if value is None else value for value in (entry.rank, entry.time_ms))
            return rank, time_ms, entry.replay_id

        return sorted(found.values(), key=order)[:count]

    def file(self, path: str, parameters: Mapping[str, str] | None = None) -> bytes:
        """Downloads a file or a page, at most at the agreed rate; retries if the answer breaks off.

        Raises:
            UnavailableError: if the site still gives no complete answer after all retries.
            NotThereError: if it does not have the file.
            BadAnswerError: if the file is larger than any recording, or the status is an error.
        """
        time.sleep(max(0.0, self._next_s - time.monotonic()))
        self._next_s = time.monotonic() + self._between_s
        url, tries = self.url + path, PATIENCE
        try:
            while True:
                self._adapter.max_retries = tries
                with self._session.get(url, params=parameters, timeout=TIMEOUT_S, stream=True) as answer:
                    try:
                        data = answer.raw.read(MAX_BYTES + 1, decode_content=True)
                        break
                    except (ProtocolError, ReadTimeoutError) as error:
                        tries = tries.increment("GET", url, error=error)
                tries.sleep()
        except (requests.RequestException, HTTPError) as error:
            message = f"{url} gives no answer: {error}"
            hint = "The same command goes on later where it stopped; http_proxy and no_proxy hold for it."
            raise UnavailableError(message, hint=hint) from error
        if answer.status_code in _GONE:
            raise NotThereError(f"{url} is not there (status {answer.status_code})")
        if answer.status_code != 200 or len(data) > MAX_BYTES:
            problem = f"status {answer.status_code}" if answer.status_code != 200 else f"more than {MAX_BYTES} bytes"
            raise BadAnswerError(f"{url} answered with {problem}")
        return data

    def _all_maps(self, parameters: Mapping[str, str]) -> Iterator[MapEntry]:
        seen: set[int] = set()
        asked = {"fields": MAP_FIELDS, "count": f"{PAGE_SIZE}", **parameters}
        for _ in range(MAX_PAGES):
            page = self._page("/api/tracks", asked, _Page[MapEntry])
            entries = [entry for entry in page.rows if entry.map_id not in seen]
            yield from entries
            if not entries or not page.has_more:
                return
            seen |= {entry.map_id for entry in entries}
            asked["after"] = f"{entries[-1].map_id}"

    def _page(self, path: str, parameters: Mapping[str, str], kind: type[_Page[_Row]]) -> _Page[_Row]:
        data = self.file(path, parameters)
        try:
            return kind.model_validate_json(data)
        except ValidationError as error:
            message = f"{self.url}{path} answered with something else than a page of results: {data[:60]!r}"
            raise BadAnswerError(message) from error
