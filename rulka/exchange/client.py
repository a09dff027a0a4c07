"""One connection to an exchange: at most so many requests a second, and patience when the site asks for it.

What can go wrong with an exchange has its errors here.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from rulka.errors import UserError


class ExchangeError(UserError):
    """Base of everything that can be wrong with the exchange or its answers."""


class UnavailableError(ExchangeError):
    """The exchange does not answer, or asks to come back later than this is willing to wait."""


class NotThereError(ExchangeError):
    """The exchange does not have what was asked for, or does not give it out."""


class BadAnswerError(ExchangeError):
    """The exchange answered with something that its interface does not say."""


USER_AGENT = "rulka (github.com/ArtyomZemlyak/rulka)"
JSON_TIMEOUT_S, FILE_TIMEOUT_S = 30.0, 60.0
MAX_FILE_BYTES = 1 << 26
"""A larger file is not taken; a recording of an hour has some two million bytes, a map with pictures ten."""
MAX_JSON_BYTES = 1 << 25
_RETRIED = frozenset({429, 500, 502, 503, 504})
_GONE = frozenset({401, 403, 404, 410})


@dataclass(frozen=True)
class Pace:
    """How fast to ask, and how long to wait for a site that is busy.

    Attributes:
        seconds_between: least time from one request to the next.
        max_tries: how often one thing is asked for before giving up.
        first_wait_s: wait after the first failure; doubles with each further one.
        max_wait_s: longest wait; a site that asks for a longer one is left alone.
        clock: gives seconds that never go back.
        sleep: waits for seconds.
    """

    seconds_between: float = 1.0
    max_tries: int = 5
    first_wait_s: float = 2.0
    max_wait_s: float = 300.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Client:
    """Asks an exchange for JSON and files. Use as a context manager.

    Args:
        base_url: address of the site, for example `https://tmnf.exchange`.
        pace: how fast to ask.
        on_wait: called with a sentence before every wait that the site caused.
    """

    def __init__(self, base_url: str, pace: Pace, on_wait: Callable[[str], None] = lambda _: None) -> None:
        self.base_url = base_url.rstrip("/")
        self.pace = pace
        self.on_wait = on_wait
        self._next_s = -float("inf")
        try:
            self._http = httpx.Client(headers={"User-Agent": USER_AGENT}, follow_redirects=True, max_redirects=5)
            scheme = httpx.URL(self.base_url).scheme
        except httpx.InvalidURL as error:
            scheme = f"{error}"
        if scheme not in ("http", "https"):
            message = f"{base_url!r} is no address of a site"
            raise UnavailableError(message, hint="It begins with https://, as in https://tmnf.exchange.")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get_json(self, path: str, parameters: Mapping[str, str | int]) -> Any:
        """Returns a parsed answer.

        Raises:
            UnavailableError: if the site does not answer in time or in good order, again and again.
            NotThereError: if it does not have this.
            BadAnswerError: if the answer is no JSON.
        """
        data = self._persist(path, lambda: self._read(path, parameters))
        try:
            return httpx.Response(200, content=data).json()
        except ValueError as error:
            message = f"{self.base_url}{path} answered with something that is no JSON: {data[:60]!r}"
            raise BadAnswerError(message) from error

    def download(self, path: str, target: Path) -> None:
        """Writes a file to `target`, from its beginning on at every try.

        Raises:
            UnavailableError: as for `get_json`.
            NotThereError: as for `get_json`.
            BadAnswerError: if the file is larger than any recording.
        """
        self._persist(path, lambda: self._save(path, target))

    def _read(self, path: str, parameters: Mapping[str, str | int]) -> bytes:
        with self._answer(path, parameters, JSON_TIMEOUT_S) as response:
            return b"".join(_limited(response, MAX_JSON_BYTES))

    def _save(self, path: str, target: Path) -> bytes:
        with self._answer(path, {}, FILE_TIMEOUT_S) as response, target.open("wb") as file:
            for part in _limited(response, MAX_FILE_BYTES):
                file.write(part)
        return b""

    @contextmanager
    def _answer(self, path: str, parameters: Mapping[str, str | int], timeout_s: float) -> Iterator[httpx.Response]:
        """Asks once, when it is time to."""
        wait_s = self._next_s - self.pace.clock()
        if wait_s > 0:
            self.pace.sleep(wait_s)
        self._next_s = self.pace.clock() + self.pace.seconds_between
        with self._http.stream("GET", self.base_url + path, params=dict(parameters), timeout=timeout_s) as response:
            if response.status_code in _GONE:
                message = f"{self.base_url}{path} is not there (status {response.status_code})"
                raise NotThereError(message)
            if response.status_code in _RETRIED:
                message = f"status {response.status_code}"
                raise _BusyError(message, _retry_after_s(response))
            if response.status_code != httpx.codes.OK:
                message = f"{self.base_url}{path} answered with status {response.status_code}"
                raise BadAnswerError(message)
            yield response

    def _persist(self, path: str, ask: Callable[[], bytes]) -> bytes:
        """Asks until there is an answer, waiting longer each time, or as long as the site says."""
        reason, asked_s, wait_s = "", None, 0.0
        for attempt in range(self.pace.max_tries):
            try:
                return ask()
            except _BusyError as error:
                reason, asked_s = str(error), error.retry_after_s
            except httpx.HTTPError as error:
                reason, asked_s = f"{type(error).__name__}: {error}", None
            wait_s = self.pace.first_wait_s * 2**attempt if asked_s is None else asked_s
            if wait_s > self.pace.max_wait_s or attempt + 1 == self.pace.max_tries:
                break
            self.on_wait(f"{self.base_url}{path}: {reason}; trying again in {wait_s:.0f} s")
            self.pace.sleep(wait_s)
        later = f"It asks to come back in {wait_s:.0f} s. " if asked_s else ""
        message = f"{self.base_url}{path} gives no answer: {reason}"
        raise UnavailableError(message, hint=f"{later}Run the same command again later; it goes on where it stopped.")


class _BusyError(Exception):
    """The site cannot answer now."""

    def __init__(self, message: str, retry_after_s: float | None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def _limited(response: httpx.Response, most: int) -> Iterator[bytes]:
    num_bytes = 0
    for part in response.iter_bytes():
        num_bytes += len(part)
        if num_bytes > most:
            message = f"{response.url} has more than {most} bytes"
            raise BadAnswerError(message)
        yield part


def _retry_after_s(response: httpx.Response) -> float | None:
    """Returns the wait that an answer asks for, given in seconds or as a date; None where it asks for none."""
    text = response.headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        date = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())
