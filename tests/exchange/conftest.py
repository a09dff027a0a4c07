"""A fake exchange on a real socket that pages, throttles, cuts responses and lies, as configured."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest
from urllib3.util import retry

from rulka.exchange import site as exchange
from tests.recordings import forge

MAP_UID = forge.MAP_UID


@dataclass
class Site:
    """State of the exchange: its content, the requests received, and the failures to inject.

    Attributes:
        maps: rows of maps.
        replays: rows of recordings by map.
        files: bytes by path.
        page: rows per page, whatever the request says.
        failures: per path, responses to send before the good one: a status, or "cut" to cut the body in half.
        retry_after: Retry-After header of every failed response; empty sends none.
        asked: number of requests by path, without query.
        url: base URL of the server.
    """

    maps: list[dict[str, Any]] = field(default_factory=list)
    replays: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    page: int = 2
    failures: dict[str, list[int | str]] = field(default_factory=dict)
    retry_after: str = ""
    asked: Counter[str] = field(default_factory=Counter)
    url: str = ""

    def add_map(self, map_id: int, uid: str, **facts: Any) -> None:
        row = {"TrackId": map_id, "UId": uid, "TrackName": f"Map {map_id}", "AuthorTime": 30_000}
        self.maps.append(row | {"Uploader": {"Name": "Maker"}} | facts)
        self.files[f"/trackgbx/{map_id}"] = forge.map_file(uid=uid)

    def add_replay(self, map_id: int, replay_id: int, position: Any, uid: str = MAP_UID) -> None:
        row = {"ReplayId": replay_id, "ReplayTime": 24_000 + replay_id, "Position": position}
        self.replays.setdefault(map_id, []).append(row)
        self.files[f"/recordgbx/{replay_id}"] = forge.recording_file(uid=uid)

    def answer(self, path: str, query: dict[str, list[str]]) -> tuple[bytes, str]:
        if path == "/api/tracks":
            after = int(query.get("after", ["-1"])[0])
            ids = [row["TrackId"] for row in self.maps]
            rows = self.maps[ids.index(after) + 1 :] if after >= 0 else self.maps
        elif path == "/api/replays":
            rows = self.replays.get(int(query["trackid"][0]), [])[int(query["offset"][0]) :]
        else:
            return self.files[path], "application/octet-stream"
        page = {"Results": rows[: self.page], "More": len(rows) > self.page}
        return json.dumps(page).encode(), "application/json"


@pytest.fixture
def site() -> Iterator[Site]:
    state = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlparse(self.path)
            state.asked[parts.path] += 1
            failure = state.failures[parts.path].pop(0) if state.failures.get(parts.path) else None
            if isinstance(failure, int):
                self._send(failure, b"", "text/plain")
                return
            try:
                data, kind = state.answer(parts.path, parse_qs(parts.query))
            except KeyError:
                self._send(404, b"", "text/plain")
                return
            self._send(200, data, kind, keep=len(data) // 2 if failure == "cut" else len(data))

        def _send(self, status: int, data: bytes, kind: str, keep: int | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            if status != 200 and state.retry_after:
                self.send_header("Retry-After", state.retry_after)
            self.end_headers()
            self.wfile.write(data[:keep])

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


@dataclass
class Clock:
    """Fake clock that advances only in `sleep`."""

    now_s: float = 0.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            self.slept.append(seconds)
            self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replaces the clock of the client and of urllib3's retries."""
    found = Clock()
    stand_in = SimpleNamespace(sleep=found.sleep, monotonic=lambda: found.now_s)
    monkeypatch.setattr(exchange, "time", stand_in)
    monkeypatch.setattr(retry, "time", SimpleNamespace(sleep=found.sleep, time=time.time))
    return found


@pytest.fixture
def client(site: Site, clock: Clock) -> exchange.Site:
    return exchange.Site(site.url, 1.0)
