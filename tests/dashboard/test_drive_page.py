"""The driver's seat over Starlette's client: messages, tabs, saving and refusals, on a clock that the test moves."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient, WebSocketTestSession
from starlette.websockets import WebSocketDisconnect
from websockets.sync.client import connect

from rulka.contracts.actions import FORWARD
from rulka.contracts.artifacts import ArtifactError
from rulka.dashboard.app import HOST, make_app, make_server, open_port
from rulka.dashboard.autopilot import Autopilot
from rulka.dashboard.drive_page import MAX_MESSAGES_PER_S, MAX_TABS, DrivePage, Lost, make_page
from rulka.dashboard.driving import COUNTDOWN_TICKS, OWN_BEST, Driving, Ghost, Phase
from rulka.datasets.drives import RedriveError, read_drive, save_drive
from rulka.datasets.formats.races import RaceDataset, write_races
from rulka.datasets.from_recordings import find_recordings, read_race_dataset
from rulka.evaluation.contest import Driver
from rulka.evaluation.external_policy import ExternalPolicy
from rulka.evaluation.race import EvaluationRaces
from rulka.evaluation.results import RaceResult
from rulka.machine.errors import UserError
from rulka.params import Params
from rulka.reference.medals import Medals
from rulka.stages.folders import RACES, RECORDINGS, TAKEOVERS
from rulka.tracks.track import TrackError
from rulka.video.sources import OtherMapError
from tests.conftest import straight_track
from tests.dashboard.conftest import LOST, STEP_TICKS, Clock, lap_of
from tests.waiting import PATIENCE_S, wait_for

ADDRESS = "127.0.0.1:8490"
GAS = (0.0, 1.0, 0.0)


class Tab:
    """A page, without its script."""

    def __init__(self, socket: WebSocketTestSession, driving: Driving, clock: Clock) -> None:
        self.socket, self._driving, self._clock = socket, driving, clock

    def send(self, **message: object) -> None:
        self.socket.send_text(json.dumps(message))

    def look(self) -> dict[str, Any]:
        """The next state; pictures are dropped."""
        while "text" not in (message := self.socket.receive()):
            if message["type"] == "websocket.close":
                raise WebSocketDisconnect(message["code"])
        return json.loads(message["text"])

    def until(self, condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """Looks until a condition holds, however many pictures that takes."""
        give_up_s = time.monotonic() + PATIENCE_S
        while not condition(state := self.look()):
            assert time.monotonic() < give_up_s, f"in vain, still {state}"
        return state

    def hold(self, steer: float, gas: float, brake: float) -> None:
        """Holds these controls, from the next tick on."""
        self.send(kind="drive", steer=steer, gas=gas, brake=brake)
        wait_for(lambda: self._driving.held.tolist() == [steer, gas, brake], "controls")

    def start(self) -> None:
        """Begins a race, to the end of its countdown."""
        self.send(kind="restart")
        wait_for(lambda: self._driving.phase is Phase.COUNTDOWN, "the countdown")
        self._clock.run(COUNTDOWN_TICKS)

    def drive_on(self) -> None:
        """Drives with the same controls until the race ends."""
        while self._driving.phase is Phase.RACING:
            self._clock.run(STEP_TICKS)


@pytest.fixture
def driving() -> Driving:
    return Driving(straight_track(), Params().simulator, medals=Medals(1, 2, 20_000, 30_000))


@pytest.fixture
def clock(driving: Driving) -> Clock:
    return Clock(driving)


@pytest.fixture
def page(project: Path, driving: Driving, clock: Clock) -> DrivePage:
    """Races on a straight road, kept in `data/recordings`."""
    (project / RECORDINGS).mkdir(parents=True)
    keep = partial(save_drive, RECORDINGS, track=driving.recorder.track, simulator=Params().simulator)
    return DrivePage(driving, keep, lambda *_: LOST, now=clock)


@pytest.fixture
def seat(page: DrivePage, driving: Driving, clock: Clock) -> Iterator[Callable]:
    """Returns a context manager that opens a tab."""
    with TestClient(make_app(drive=page), base_url=f"http://{ADDRESS}") as client:

        @contextmanager
        def open_tab(origin: str = f"http://{ADDRESS}") -> Iterator[Tab]:
            with client.websocket_connect(f"ws://{ADDRESS}/drive/socket", headers={"origin": origin}) as socket:
                yield Tab(socket, driving, clock)

        yield open_tab


def test_the_page_has_the_look_and_the_headers_of_the_others(page: DrivePage) -> None:
    client = TestClient(make_app(drive=page), base_url=f"http://{ADDRESS}")
    answer = client.get("/drive")
    assert '<a href="/drive" aria-current="page">Drive</a>' in answer.text
    assert "straight &lt;b&gt;road&lt;/b&gt;" in answer.text
    assert "silver 20.00" in answer.text
    assert "<code>rulka drive</code> starts it" in answer.text
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    assert client.get("/static/drive.js").status_code == 200
    assert client.get("/drive", headers={"host": "evil.example"}).status_code == 400
    assert TestClient(make_app(), base_url=f"http://{ADDRESS}").get("/drive").status_code == 404


def test_a_race_from_the_countdown_to_the_recording(seat: Callable, driving: Driving, clock: Clock) -> None:
    """Every tick of the clock is one of the race, and what was driven is what `races` reads."""
    with seat() as tab:
        first = tab.socket.receive_json()
        assert (first["phase"], first["drives"], first["pace"]) == ("ready", True, 1.0)
        assert Image.open(io.BytesIO(tab.socket.receive_bytes())).size == (640, 360)
        tab.send(kind="name", name=" Zoë/.. ")
        tab.send(kind="restart")
        tab.until(lambda state: state["phase"] == "countdown")
        clock.run(COUNTDOWN_TICKS - STEP_TICKS)
        assert driving.phase is Phase.COUNTDOWN
        clock.run(STEP_TICKS)
        assert driving.phase is Phase.RACING
        tab.hold(*GAS)
        clock.run(50)
        tab.hold(-0.25, 1.0, 0.0)
        clock.run(STEP_TICKS)
        tab.hold(*GAS)
        tab.drive_on()
        ended = tab.until(lambda state: state["phase"] == "finished")
        assert (ended["medal"], len(ended["splits"]), ended["is_offered"]) == ("silver", 3, False)
        assert ended["inputs"] == 3
        kept = tab.until(lambda state: state["kept"])["kept"]
        lost = tab.until(lambda state: state["lost"]["table"])["lost"]
        assert lost == {"table": [["bend", "lost"], ["0 to 9 m", "+0.50 s"]], "summary": "The coach takes 5.00 s."}
    race, track = read_drive(Path(kept))
    assert Path(kept).parent == RECORDINGS
    assert (race.player, race.race_time_ms, track.uid) == ("Zoë/..", ended["time_ms"], "straight")
    assert race.controls[:, 0].tolist() == 50 * [0.0] + 5 * [-0.25] + (len(race.controls) - 55) * [0.0]
    files = find_recordings(RECORDINGS, with_drives=True)
    dataset = read_race_dataset(RECORDINGS, files, None, Params().races.select, lambda: None)
    assert [(each.source, each.race_id) for each in dataset.races] == [("drive", race.race_id)]
    assert dataset.main_track.length_m == track.length_m


def test_a_finished_race_is_compared_with_the_planner_and_with_the_ghost_of_then(
    page: DrivePage, seat: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first race has no ghost; it is that of the second. The table stays until the next one is there."""
    told: list[tuple[int, str | None]] = []
    may_go_on = threading.Event()

    def coach(race: RaceResult, ghost: Ghost | None) -> Lost:
        told.append((race.duration_ms, ghost and ghost.label))
        assert may_go_on.wait(PATIENCE_S)
        return Lost([("bend",), (str(len(told)),)], "")

    monkeypatch.setattr(page, "_coach", coach)
    with seat() as tab:
        for steer in (0.0, 1 / 512, 0.0):
            tab.start()
            tab.hold(0.0, 1.0, 0.0)
            tab.hold(steer, 1.0, 0.0)
            tab.drive_on()
        assert tab.until(lambda state: state["phase"] == "finished")["lost"]["table"] == []
        may_go_on.set()
        tab.until(lambda state: state["lost"]["table"] == [["bend"], ["2"]])
        first_ms, last_ms = told[0][0], told[1][0]
    assert told == [(first_ms, None), (last_ms, OWN_BEST)], "the race between them was not the last one any more"


def test_no_tick_is_left_out_where_the_machine_is_too_slow(seat: Callable, clock: Clock) -> None:
    """Of a second that comes at once five ticks are driven, and the page is told."""
    with seat() as tab:
        tab.start()
        tab.hold(*GAS)
        clock.run(50)
        clock.now_s += 1.0
        state = tab.until(lambda state: state["pace"] < 1.0)
        assert state["time_ms"] == 550
        assert 0.0 < state["pace"] < 0.8


def test_an_unfinished_race_is_kept_when_it_is_asked_for(seat: Callable) -> None:
    with seat() as tab:
        tab.send(kind="keep")  # there is none yet
        for _ in range(2):
            tab.start()
            tab.hold(1.0, 1.0, 0.0)
            tab.drive_on()
            ended = tab.until(lambda state: state["phase"] == "left the track")
            assert (ended["is_offered"], ended["kept"]) == (True, "")
        assert not list(RECORDINGS.iterdir())
        tab.send(kind="keep")
        tab.send(kind="keep")  # a second press of the button
        kept = tab.until(lambda state: state["kept"])
        assert not kept["is_offered"]
        assert "unfinished" in kept["kept"]
    assert [path.as_posix() for path in RECORDINGS.iterdir()] == [kept["kept"]]
    assert not read_drive(Path(kept["kept"]))[0].is_finished


def test_what_cannot_be_kept_is_said(page: DrivePage, seat: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> Path:
        raise RedriveError("its inputs drive another race")

    monkeypatch.setattr(page, "_keep", refuse)
    with seat() as tab:
        tab.send(kind="name", name="a\nb")
        assert "cannot be the name of a driver" in tab.until(lambda state: state["problem"])["problem"]
        tab.start()
        tab.hold(*GAS)
        tab.drive_on()
        ended = tab.until(lambda state: state["phase"] == "finished" and state["problem"])
        assert (ended["problem"], ended["player"]) == ("its inputs drive another race", "driver")


def test_a_second_tab_watches_and_takes_over_when_the_first_is_gone(seat: Callable, clock: Clock) -> None:
    with seat() as other:
        with seat() as first:
            assert not first.look()["drives"], "the other one was first"
        with seat() as watcher:
            other.start()
            other.hold(*GAS)
            clock.run(30)
            assert not watcher.until(lambda state: state["time_ms"] == 300)["drives"]
            other.socket.close()
            watcher.until(lambda state: state["drives"] and state["is_paused"])
            clock.run(STEP_TICKS)
            watcher.hold(*GAS)
            clock.run(STEP_TICKS)
            state = watcher.until(lambda state: state["time_ms"] > 300)
            assert (state["time_ms"], state["is_paused"]) == (350, False)


def test_nothing_runs_without_a_tab(page: DrivePage, seat: Callable, clock: Clock) -> None:
    with seat() as tab:
        tab.start()
        tab.hold(*GAS)
        clock.run(30)
    assert all(task.done() or task.cancelling() for task in page._work)
    clock.now_s += 60.0
    with seat() as tab:  # as after a reload
        again = tab.look()
        assert again["is_paused"]
        assert again["drives"]
        assert (again["time_ms"], again["pace"]) == (300, 1.0)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("drive", "a message is damaged: Invalid JSON"),
        ("[]", "must be an object"),
        ("[" * 200, "Invalid JSON"),
        ('{"kind": "fly"}', "kind: must be 'drive', 'name', 'restart' or 'keep' (got 'fly')"),
        ('{"kind": "restart", "file": "a"}', "file is not a key"),
        ('{"kind": "drive", "steer": 1.5, "gas": 0, "brake": 0}', "steer: must be less than or equal to 1 (got 1.5)"),
        ('{"kind": "drive", "steer": NaN, "gas": 0, "brake": 0}', "steer: must be"),
        ('{"kind": "drive", "steer": "1", "gas": 0, "brake": 0}', "steer: must be a valid number"),
        ('{"kind": "drive", "steer": 0, "gas": -1, "brake": 0}', "gas: must be"),
        ('{"kind": "drive", "takes_over": 1}', "takes_over: must be"),
        ('{"steer": 0}', "kind is missing"),
        ('{"kind": "name", "name": "' + "a" * 300 + '"}', "JSON of at most 256 characters"),
        (b"\x00\x01", "JSON of at most 256 characters"),
    ],
)
def test_malformed_messages_end_the_connection(seat: Callable, message: str | bytes, says: str) -> None:
    with seat() as tab:
        tab.socket.send_bytes(message) if isinstance(message, bytes) else tab.socket.send_text(message)
        assert says in tab.until(lambda state: "refused" in state)["refused"]
        with pytest.raises(WebSocketDisconnect) as end:
            tab.look()
        assert end.value.code == 1008


def test_too_many_messages_or_tabs_and_strange_origins_are_refused(seat: Callable) -> None:
    with seat() as tab:
        for _ in range(MAX_MESSAGES_PER_S + 1):
            tab.send(kind="drive")
        assert tab.until(lambda state: "refused" in state)["refused"] == "more than 200 messages in a second"
    with seat() as first, seat() as watcher:
        watcher.send(kind="restart")
        assert "another tab drives" in watcher.until(lambda state: "refused" in state)["refused"]
        assert first.look()["phase"] == "ready"
    tabs = [seat() for _ in range(MAX_TABS + 1)]
    opened = [tab.__enter__() for tab in tabs]
    assert f"{MAX_TABS} tabs" in opened[-1].until(lambda state: "refused" in state)["refused"]
    for tab in reversed(tabs):
        tab.__exit__(None, None, None)
    for origin in ("http://evil.example", "", "null", "http://127.0.0.1", f"https://{ADDRESS}"):
        with pytest.raises(WebSocketDisconnect), seat(origin):
            pass


def by_an_agent(driving: Driving, decide: Callable[..., Any]) -> None:
    """Puts an agent at the wheel."""
    settings = EvaluationRaces.of(driving.recorder.track, Params()).settings
    driving.agent = Autopilot(Driver("agent", "Agent (PPO)", decide), driving.recorder, settings)


def test_a_person_takes_over_and_only_then_the_race_is_kept(seat: Callable, driving: Driving, clock: Clock) -> None:
    by_an_agent(driving, lambda image, floats: np.array([FORWARD]))
    with seat() as tab:
        tab.start()
        tab.drive_on()
        ended = tab.until(lambda state: state["phase"] == "finished")
        assert (ended["agent"], ended["is_by_person"]) == ("Agent (PPO)", False)
        tab.start()
        clock.run(50)
        tab.hold(0.0, 0.0, 1.0)
        clock.run(STEP_TICKS)
        assert driving.recorder.has_person is False, "keys without the one that takes over"
        tab.send(kind="drive", steer=0, gas=0, brake=0, takes_over=True)
        assert tab.until(lambda state: state["is_by_person"])["is_by_person"]
        clock.run(20)
        tab.hold(0.0, 1.0, 0.0)
        tab.drive_on()
        kept = tab.until(lambda state: state["kept"])["kept"]
    race, _ = read_drive(Path(kept))
    assert [path.as_posix() for path in RECORDINGS.iterdir()] == [kept]
    assert race.by_person is not None
    assert np.flatnonzero(race.by_person).tolist() == list(range(55, 75))
    assert race.controls[[54, 55, 75]].tolist() == [[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]


def test_an_agent_that_fails_as_it_drives_is_named(seat: Callable, driving: Driving, clock: Clock) -> None:
    by_an_agent(driving, ExternalPolicy(lambda seen: np.array([99]), label="mine"))
    with seat() as tab:
        tab.start()
        clock.run(STEP_TICKS)
        state = tab.until(lambda state: state["problem"])
        assert state["problem"] == "mine decided 99, expected 0 to 11"
        assert state["phase"] == "ready"


def test_agents_and_ghosts_by_name(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ghost may be an agent; what does not load, or was driven elsewhere, is named."""
    (project / "data").mkdir()
    straight_track().save(project / "road.npz")
    (project / "pushed.py").write_text("import numpy as np\ndef gas(seen): return np.zeros(len(seen['floats']), int)\n")
    monkeypatch.syspath_prepend(project)
    page = make_page("road.npz", Params(), agent=Path("pushed:gas"), ghost=Path("pushed:gas"))
    assert page._driving.agent is not None
    recorder = page._driving.recorder
    for by_person, folder in ((True, RECORDINGS), (False, TAKEOVERS)):
        recorder.begin()
        recorder.tick((0.0, 1.0, 0.0), by_person=by_person)
        assert page._keep(recorder.race("Ann")).parent == folder
    ghost = page._driving.ghost
    assert ghost is not None
    assert (ghost.label, ghost.race.track.uid, ghost.race.is_finished) == ("pushed:gas", "straight", True)
    with pytest.raises(ArtifactError, match="nothing"):
        make_page("road.npz", Params(), agent=Path("nothing"))
    with pytest.raises(UserError, match="nothing is nothing to watch"):
        make_page("road.npz", Params(), ghost=Path("nothing"))
    with pytest.raises(OtherMapError, match="in one picture"):
        make_page("road.npz", Params(), ghost=Path("copper-oval"))


def test_pages_by_the_name_of_a_track(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name the main track of the project, or before there is one, a track of the campaign."""
    params = Params()
    with pytest.raises(UserError, match="there is no folder data"):
        make_page("copper-oval", params)
    (project / "data").mkdir()
    page = make_page(None, params)
    assert page.track.name == "Copper Oval"
    assert RECORDINGS.is_dir()
    RACES.mkdir()
    write_races(RACES, RaceDataset((lap_of(straight_track(), "a", 20.0),), straight_track(), ()))
    monkeypatch.setattr("rulka.dashboard.drive_page.find_reference_race", lambda *_: None)
    assert make_page(None, params).track.uid == make_page("main", params).track.uid == "straight"
    with pytest.raises(TrackError, match="there is no track 'nowhere'"):
        make_page("nowhere", params)
    assert not list(RECORDINGS.iterdir())


def test_a_real_server_serves_the_websocket_and_ends(page: DrivePage) -> None:
    with open_port(0) as door:
        server, port = make_server(drive=page), door.getsockname()[1]
        thread = threading.Thread(target=server.run, args=([door],), daemon=True)
        thread.start()
        with connect(f"ws://{HOST}:{port}/drive/socket", origin=f"http://{HOST}:{port}") as socket:  # type: ignore[arg-type]
            assert json.loads(socket.recv(timeout=PATIENCE_S))["phase"] == "ready"
            assert socket.recv(timeout=PATIENCE_S)[:3] == b"\xff\xd8\xff"
            server.should_exit = True
            thread.join(PATIENCE_S)
        assert not thread.is_alive()
