"""Joins a person's races with a browser: a websocket takes controls and sends pictures.

The page sends `Message`s as JSON. It gets a state as JSON and then a JPEG that shows it, 30 times a second. The first
tab drives, others watch. Every finished race is kept and coached, an unfinished one is kept on request.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from PIL import Image
from pydantic import BaseModel, Field
from starlette.websockets import WebSocket, WebSocketDisconnect

from rulka.contracts.stored import checked
from rulka.dashboard.autopilot import Autopilot
from rulka.dashboard.driving import Driving, Ghost, Phase, Shot, TickClock
from rulka.datasets.drives import SUFFIX as DRIVE_SUFFIX
from rulka.datasets.drives import Recorder, check_player, save_drive
from rulka.datasets.formats.races import META_FILE, Race, load_main_track
from rulka.datasets.from_recordings import SUFFIX as GAME_SUFFIX
from rulka.evaluation.coach import coach_race, coached_summary, coached_table, planner_coach
from rulka.evaluation.contest import agent_driver
from rulka.evaluation.dataset import demonstration_results
from rulka.evaluation.race import EvaluationRaces, find_reference_race
from rulka.evaluation.results import RaceResult
from rulka.machine.device import use_device
from rulka.machine.errors import UserError
from rulka.operations.tracks import tracks_to_race_on
from rulka.params import Params
from rulka.reference.medals import medals_of
from rulka.simulator.race_settings import RaceSettings
from rulka.simulator.race_start import Starts
from rulka.simulator.scene import bake_scene
from rulka.stages.folders import RACES, RECORDINGS, TAKEOVERS
from rulka.stages.outputs import check_folder
from rulka.tracks.campaign import campaign_track
from rulka.tracks.track import Track
from rulka.video.race_video import draw_race
from rulka.video.sources import gather, sort_sources

WIDTH, HEIGHT, FPS = 640, 360, 30
JPEG_QUALITY = 85
MAX_MESSAGE = 256
MAX_MESSAGES_PER_S = 200
MAX_TABS = 8
FIRST_TRACK = "copper-oval"
REFUSED = 1008
"""Close code of a websocket for a violated rule."""


class MessageError(UserError):
    """A tab broke a rule of the connection, which ends with it."""


class Message(BaseModel, extra="forbid", strict=True):
    """What a tab sends: controls to hold, the driver's name, or an order.

    Attributes:
        kind: what it is.
        steer: -1 to 1, positive right; this and the three below only with `drive`.
        gas: 0 to 1.
        brake: 0 to 1.
        takes_over: drive in the agent's place.
        name: only with `name`.
    """

    kind: Literal["drive", "name", "restart", "keep"]
    steer: float = Field(0.0, ge=-1.0, le=1.0)
    gas: float = Field(0.0, ge=0.0, le=1.0)
    brake: float = Field(0.0, ge=0.0, le=1.0)
    takes_over: bool = False
    name: str = ""


class Lost(NamedTuple):
    """Where a race lost time: a table with its head, and a sentence on the whole race."""

    table: list[tuple[str, ...]]
    summary: str


class DrivePage:
    """The races of one person, and the tabs that show them.

    Everything runs in one event loop; drawing, saving and coaching run in threads. Without a tab, nothing runs.

    Attributes:
        track: the track.
        medals: its medal times; None if it has none.
    """

    def __init__(
        self,
        driving: Driving,
        keep: Callable[[Race], Path],
        coach: Callable[[RaceResult, Ghost | None], Lost],
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins before the first race.

        Args:
            driving: the races.
            keep: writes a race, and returns the file.
            coach: finds where a finished race lost time, also to a ghost.
            now: clock of wall time, in seconds.
        """
        self.track, self.medals = driving.recorder.track, driving.medals
        self._driving, self._keep, self._coach, self._now = driving, keep, coach, now
        self._scene = bake_scene(self.track)
        self._tabs: list[WebSocket] = []
        self._work: list[asyncio.Task[None]] = []
        self._under_way: set[asyncio.Task[None]] = set()
        self._is_kept, self._coaching, self._lost = False, asyncio.Lock(), Lost([], "")
        self._player, self._kept, self._problem = "driver", "", ""

    async def connect(self, tab: WebSocket) -> None:
        """Serves a tab until it closes or breaks a rule."""
        # Any page of the web may open a websocket to this machine; browsers say of which server it is.
        if tab.headers.get("origin") != f"http://{tab.headers.get('host')}":
            await tab.close(REFUSED)
            return
        await tab.accept()
        if len(self._tabs) == MAX_TABS:
            await _refuse(tab, f"{MAX_TABS} tabs show these races, no more are served")
            return
        self._enter(tab)
        showing = asyncio.create_task(self._show(tab))
        try:
            await self._obey(tab)
        except MessageError as error:
            showing.cancel()
            await _refuse(tab, str(error))
        finally:
            showing.cancel()
            self._leave(tab)

    def _enter(self, tab: WebSocket) -> None:
        self._tabs.append(tab)
        if len(self._tabs) == 1:
            self._clock = TickClock(self._now())
            self._next, self._news = asyncio.get_running_loop().create_future(), asyncio.Event()
            self._work = [asyncio.create_task(self._run()), asyncio.create_task(self._paint())]

    def _leave(self, tab: WebSocket) -> None:
        if tab is self._tabs[0]:
            self._driving.pause()
        self._tabs.remove(tab)
        if not self._tabs:
            for task in self._work:
                task.cancel()

    async def _obey(self, tab: WebSocket) -> None:
        """Does what a tab asks for, until it closes.

        Raises:
            MessageError: if a message breaks a rule.
        """
        at_s: deque[float] = deque(maxlen=MAX_MESSAGES_PER_S)
        while (received := await tab.receive())["type"] != "websocket.disconnect":
            now_s, text = self._now(), received.get("text")
            if len(at_s) == MAX_MESSAGES_PER_S and now_s - at_s[0] < 1.0:
                raise MessageError(f"more than {MAX_MESSAGES_PER_S} messages in a second")
            at_s.append(now_s)
            if text is None or len(text) > MAX_MESSAGE:
                raise MessageError(f"a message is JSON of at most {MAX_MESSAGE} characters")
            message = checked(text.encode(errors="replace"), Message, "a message", MessageError)
            if tab is not self._tabs[0]:
                raise MessageError("another tab drives, this one watches")
            self._do(message)

    def _do(self, message: Message) -> None:
        if message.kind == "drive":
            self._driving.set_controls(message.steer, message.gas, message.brake, takes_over=message.takes_over)
        elif message.kind == "restart":
            self._driving.restart()
            self._is_kept, self._kept, self._problem = False, "", ""
        elif message.kind == "keep" and self._is_offered():
            self._keep_race()
        elif message.kind == "name":
            try:
                self._player, self._problem = check_player(message.name), ""
            except UserError as error:
                self._problem = error.for_people()

    def _is_offered(self) -> bool:
        """True if there is an unfinished race of a person that may be kept on request."""
        is_unfinished = self._driving.phase in (Phase.OFF_TRACK, Phase.TOO_LONG)
        return is_unfinished and not self._is_kept and self._driving.recorder.has_person

    async def _run(self) -> None:
        """Runs all ticks that are due, a hundred times a second."""
        while True:
            num_applied = self._driving.num_applied
            for _ in range(self._clock.due(self._now())):
                self._tick()
            if self._driving.num_applied != num_applied:
                self._news.set()
            await asyncio.sleep(self._clock.wait_s(self._now()))

    def _tick(self) -> None:
        try:
            has_ended = self._driving.tick()
        except UserError as error:  # of an agent that is somebody's function
            self._problem, self._driving.phase = error.for_people(), Phase.READY
            return
        if has_ended and self._driving.phase is Phase.FINISHED and (race := self._driving.finished):
            self._keep_race()
            self._begin(self._coach_race(race, self._driving.ghost))

    def _keep_race(self) -> None:
        self._is_kept = self._driving.recorder.has_person
        if self._is_kept:
            self._begin(self._write(self._driving.recorder.race(self._player)))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._under_way.add(task)  # the loop itself keeps no task
        task.add_done_callback(self._under_way.discard)

    async def _write(self, race: Race) -> None:
        try:
            path = await asyncio.to_thread(self._keep, race)
            self._kept = path.as_posix()
        except UserError as error:
            self._problem = error.for_people()

    async def _coach_race(self, race: RaceResult, ghost: Ghost | None) -> None:
        async with self._coaching:
            if race is self._driving.finished:  # else the next one is waiting
                self._lost = await asyncio.to_thread(self._coach, race, ghost)

    async def _paint(self) -> None:
        """Draws the present state for all tabs, `FPS` times a second, or sooner after new controls."""
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            self._news.clear()
            state = self._driving.state() | {
                "pace": round(self._clock.pace, 2),
                "player": self._player,
                "kept": self._kept,
                "is_offered": self._is_offered(),
                "problem": self._problem,
                "lost": self._lost._asdict(),
            }
            picture = await asyncio.to_thread(self.picture, self._driving.shot())
            shown, self._next = self._next, loop.create_future()
            shown.set_result((state, picture))
            # A picture that shows a key at once feels better than one in step; more than twice `FPS` nobody sees.
            await asyncio.sleep(began_s + 0.5 / FPS - loop.time())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), began_s + 1.0 / FPS - loop.time())

    def picture(self, shot: Shot) -> bytes:
        """Returns a JPEG of `WIDTH` x `HEIGHT` pixels."""
        # JPEG takes 0.8 ms, WebP 5 ms and PNG 8 ms; on loopback, size does not matter.
        (pose, zone_index, ghosts), file = shot, io.BytesIO()
        frame = draw_race(self._scene, pose, zone_index, WIDTH, HEIGHT, ghosts)
        Image.fromarray(frame).save(file, "JPEG", quality=JPEG_QUALITY)
        return file.getvalue()

    async def _show(self, tab: WebSocket) -> None:
        """Sends every new picture, or as many as the tab takes."""
        with suppress(WebSocketDisconnect, RuntimeError):  # `_obey` learns of it, too
            while True:
                state, picture = await asyncio.shield(self._next)
                await tab.send_json(state | {"drives": tab is self._tabs[0]})
                await tab.send_bytes(picture)


async def _refuse(tab: WebSocket, reason: str) -> None:
    with suppress(WebSocketDisconnect, RuntimeError):  # it may be gone
        await tab.send_json({"refused": reason})
        await tab.close(REFUSED)


def make_page(
    name: str | None, params: Params, agent: Path | None = None, ghost: Path | None = None, device: str | None = None
) -> DrivePage:
    """Prepares races on a track, with a ghost if there is one.

    They are kept in `data/recordings` or, if the person took over from an agent, in `data/takeovers`.

    Args:
        name: slug, UID or file of a track, or a recording, whose race is the ghost; None for the main track of
            `data/races`, or without one for `FIRST_TRACK`.
        params: settings of races.
        agent: drives until the person takes over; None: the person drives.
        ghost: an agent, recording or lap that is the ghost instead.
        device: of the networks; see `rulka.machine.device.choose_device`.

    Raises:
        UserError: if there is no such track or it cannot be drawn, a file is damaged, an agent cannot be loaded or is
            made for other actions, or nothing can be written there.
    """
    track, rival, lap_ms = _road(name, params)
    for folder in (RECORDINGS, TAKEOVERS):
        check_folder(folder).mkdir(exist_ok=True)
    races = EvaluationRaces.of(track, params)
    settings, driver = races.settings, agent and agent_driver(agent, races, use_device(device))
    if ghost is not None:
        rival = Ghost(gather(sort_sources([ghost]), params, track, 1, device).race, ghost.as_posix())
    pilot = partial(Autopilot, driver, settings=settings) if driver else None
    driving = Driving(track, params.simulator, rival, medals_of(track, lap_ms), pilot)

    def keep(race: Race) -> Path:
        folder = RECORDINGS if race.by_person is None else TAKEOVERS
        return save_drive(folder, race, track, params.simulator)

    page = DrivePage(driving, keep, partial(_coached, settings=settings))
    # Compiling kernels later would stop the clock for seconds.
    page.picture(driving.shot())
    if driving.agent:
        torch.set_num_threads(1)  # for one car, torch's threads wait for each other longer than they compute
        driving.agent.controls()
    recorder = Recorder(track, params.simulator)
    recorder.tick((0.0, 1.0, 0.0))
    (tried,) = demonstration_results([recorder.race("driver")], track)
    planner_coach(tried, settings)(Starts(*np.array([[track.length_m - 1.0], [0.0], [0.0], [10.0]])), track.gate_m[-1:])
    with TemporaryDirectory() as folder:
        save_drive(Path(folder), recorder.race("driver"), track, params.simulator)
    return page


def _coached(race: RaceResult, ghost: Ghost | None, settings: RaceSettings) -> Lost:
    found = coach_race(race, planner_coach(race, settings), ghost and ghost.race)
    return Lost(coached_table(found), coached_summary(found))


def _road(name: str | None, params: Params) -> tuple[Track, Ghost | None, int | None]:
    """Returns the track, the ghost, and the time of the reference lap; the latter two None without one."""
    if name is not None and name.lower().endswith((GAME_SUFFIX, DRIVE_SUFFIX)):
        recorded = gather(sort_sources([Path(name)]), params, None, 1).race
        return recorded.track, Ghost(recorded, "the recording"), None
    if name is not None:
        (track, *_) = tracks_to_race_on([name], params)
    else:
        track = load_main_track(RACES) if (RACES / META_FILE).is_file() else campaign_track(FIRST_TRACK)
    lap = find_reference_race(RACES, EvaluationRaces.of(track, params))
    return track, Ghost(lap, "the reference lap") if lap else None, lap.time_ms if lap else None
