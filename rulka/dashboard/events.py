"""What pages are told without asking: server-sent events, made once for all pages that listen.

`training`: the newest of each training that is at work, when it has said something. `changed`: which results on the
disk are others now. Nothing is looked at while nobody listens.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from rulka.dashboard.asking import ask
from rulka.dashboard.live import LIVE_FILE
from rulka.dashboard.runs import Runs
from rulka.folders import AGENT, EVALUATION, FRAMES, KEPT_AGENTS, NIGHTS, RACES, STAGE_DURATIONS
from rulka.graph import LOCK_FILE, PARAMS_FILE

LOOK_S = 0.5
BEAT_S = 15.0
"""A listener hears something at least so often; one that has gone away is noticed by that."""
MOST_WAITING = 20
"""Events that wait for a slow page; what comes then is dropped, as all of it is told again."""
WATCHED = (
    LOCK_FILE,
    PARAMS_FILE,
    STAGE_DURATIONS,
    AGENT,
    EVALUATION,
    FRAMES,
    KEPT_AGENTS,
    NIGHTS,
    RACES,
)
"""A folder of results is another one when its time of change is: stages put theirs in place by a rename."""


class Watcher:
    """Looks at files on behalf of all listeners, and tells them what is new.

    Args:
        runs: trainings to look at.
        is_ending: asked before each wait: whether the server is about to end.
    """

    def __init__(self, runs: Runs, is_ending: Callable[[], bool]) -> None:
        self._runs, self._is_ending = runs, is_ending
        self._listeners: set[asyncio.Queue[str]] = set()
        self._task: asyncio.Task[None] | None = None
        self._told: dict[str, tuple[int, ...]] = {}
        self._marks: dict[str, int] = {}

    @property
    def num_listeners(self) -> int:
        """How many pages listen now."""
        return len(self._listeners)

    async def listen(self) -> AsyncIterator[str]:
        """Yields events as text of the protocol, first what holds now, until the server ends."""
        queue: asyncio.Queue[str] = asyncio.Queue(MOST_WAITING)
        self._listeners.add(queue)
        try:
            yield "retry: 1000\n\n"
            told: dict[str, tuple[int, ...]] = {}
            for event in await asyncio.to_thread(self._trainings, told):
                yield event
            if self._task is None or self._task.done():
                self._told, self._marks = told, await asyncio.to_thread(_marks)
                self._task = asyncio.create_task(self._look())
            quiet_s = 0.0
            while not self._is_ending():
                try:
                    yield await asyncio.wait_for(queue.get(), LOOK_S)
                    quiet_s = 0.0
                except TimeoutError:
                    quiet_s += LOOK_S
                    if quiet_s >= BEAT_S:
                        yield ": still here\n\n"
                        quiet_s = 0.0
        finally:
            self._listeners.discard(queue)

    async def _look(self) -> None:
        while self._listeners and not self._is_ending():
            for event in await asyncio.to_thread(self._news):
                for queue in self._listeners:
                    if not queue.full():
                        queue.put_nowait(event)
            await asyncio.sleep(LOOK_S)

    def _news(self) -> list[str]:
        events = self._trainings(self._told)
        marks = _marks()
        if changed := sorted(
            name for name in marks.keys() | self._marks.keys() if marks.get(name) != self._marks.get(name)
        ):
            events.append(_event("changed", json.dumps(changed)))
        self._marks = marks
        return events

    def _trainings(self, told: dict[str, tuple[int, ...]]) -> list[str]:
        """Returns an event for each training that has written something since it was told of."""
        events = []
        for log in self._runs.running():
            try:
                cars, numbers = (log.folder / LIVE_FILE).stat(), log.path.stat()
            except FileNotFoundError:
                continue
            # Times alone do not tell apart what is written within the same tick of the system's clock.
            mark = cars.st_mtime_ns, numbers.st_mtime_ns, numbers.st_size
            if told.get(log.key) == mark:
                continue
            told[log.key] = mark
            found = ask(lambda log=log: self._runs.newest(log))
            if found.problem is None:
                events.append(_event("training", json.dumps(found.value)))
        for key in [key for key in told if key not in {log.key for log in self._runs.running()}]:
            del told[key]
            events.append(_event("ended", json.dumps(key)))
        return events


def _event(name: str, data: str) -> str:
    return f"event: {name}\ndata: {data}\n\n"


def _marks() -> dict[str, int]:
    return {path.as_posix(): mark for path in WATCHED if (mark := _mark(path))}


def _mark(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
