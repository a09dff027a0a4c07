"""The driver's seat in a real browser: keys, gamepad, lost focus, two tabs, and a race from the start to its recording.

The clock of the races moves only when the test moves it, so that the speed of the machine does not matter.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from rulka.contracts.actions import action_table
from rulka.dashboard.app import HOST, make_server, open_port
from rulka.dashboard.drive_page import DrivePage
from rulka.dashboard.driving import COUNTDOWN_TICKS, Driving, Phase
from rulka.datasets.drives import read_drive, save_drive
from rulka.params import Params
from rulka.planner.planner import Planner
from rulka.stages.folders import RECORDINGS
from rulka.tracks.campaign import campaign_track
from rulka.tracks.track import Track
from tests.conftest import straight_track
from tests.dashboard.conftest import LOST, STEP_TICKS, Clock, errors
from tests.waiting import PATIENCE_S, wait_for

AGENT: Any = SimpleNamespace(label="Agent (PPO)", controls=lambda: np.zeros(3, np.float32))
KEYS = ("ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight")
PAD = """
const pad = { connected: true, axes: [0, 0], buttons: [...Array(17)].map(() => ({ value: 0, pressed: false })) };
window.pad = pad; navigator.getGamepads = () => [null, pad];
"""


class Seat:
    """A served page, its races, and their clock.

    Attributes:
        driving: the races.
        run: lets so many ticks pass.
        page: joins them with the browser.
        server: serves the page.
        address: of the page.
    """

    def __init__(self, track: Track, door: socket.socket) -> None:
        self.driving = Driving(track, Params().simulator)
        clock = Clock(self.driving)
        self.run = clock.run
        keep = partial(save_drive, RECORDINGS, track=track, simulator=Params().simulator)
        self.page = DrivePage(self.driving, keep, lambda *_: LOST, now=clock)
        self.server, self.address = make_server(drive=self.page), f"http://{HOST}:{door.getsockname()[1]}/drive"
        self.thread = threading.Thread(target=self.server.run, args=([door],), daemon=True)
        self.thread.start()


@pytest.fixture
def serve(project: Path) -> Iterator[Callable[[Track], Seat]]:
    """Returns a function that serves races on a track."""
    (project / RECORDINGS).mkdir(parents=True)
    with ExitStack() as doors:
        seats: list[Seat] = []

        def begin(track: Track) -> Seat:
            seats.append(Seat(track, doors.enter_context(open_port(0))))
            return seats[-1]

        yield begin
        for seat in seats:
            seat.server.should_exit = True
            seat.thread.join(PATIENCE_S)
            assert not seat.thread.is_alive()


def key(browser: Chrome, code: str, *, down: bool) -> None:
    """Presses or releases a key of the keyboard, which holds it until then."""
    name = code.removeprefix("Key").lower() if code.startswith("Key") else code
    event = {"type": "rawKeyDown" if down else "keyUp", "code": code, "key": name}
    browser.execute_cdp_cmd("Input.dispatchKeyEvent", event)


def press(browser: Chrome, code: str) -> None:
    key(browser, code, down=True)
    key(browser, code, down=False)


def text(browser: Chrome, name: str) -> str:
    return browser.find_element(By.ID, name).text


def phase_of(browser: Chrome) -> str:
    return browser.execute_script("return document.documentElement.dataset.phase ?? ''")


def held(seat: Seat, *wanted: float) -> Callable[[], bool]:
    return lambda: bool(np.allclose(seat.driving.held, wanted, atol=1e-4))


def to_the_start(browser: Chrome, seat: Seat, code: str = "KeyR") -> None:
    wait_for(lambda: text(browser, "word"), "a state")
    press(browser, code)
    wait_for(lambda: seat.driving.phase is Phase.COUNTDOWN, "the countdown")
    wait_for(lambda: text(browser, "word") == "3", "its number")
    seat.run(COUNTDOWN_TICKS)
    assert seat.driving.phase is Phase.RACING


def test_keys_and_gamepad_are_held_and_released(browser: Chrome, serve: Callable[[Track], Seat]) -> None:
    script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": PAD})
    seat = serve(straight_track())
    browser.get(seat.address)
    to_the_start(browser, seat)
    key(browser, "ArrowUp", down=True)
    key(browser, "KeyA", down=True)
    wait_for(held(seat, -1.0, 1.0, 0.0), "both keys")
    seat.run(100)
    wait_for(lambda: text(browser, "time") == "1.00", "the clock of the page")
    assert int(text(browser, "speed").split()[0]) > 5
    key(browser, "KeyA", down=False)
    wait_for(held(seat, 0.0, 1.0, 0.0), "one key")
    browser.execute_script("window.dispatchEvent(new Event('blur'))")
    wait_for(held(seat, 0.0, 0.0, 0.0), "no key, although it is held: the page has lost the focus")
    browser.execute_script("window.dispatchEvent(new Event('focus')); pad.axes[0] = -0.54; pad.buttons[7].value = 0.9")
    wait_for(held(seat, -0.5, 1.0, 0.0), "half of the stick, and a trigger")
    browser.execute_script("pad.axes[0] = 0.05; pad.buttons[7].value = 0; pad.buttons[9].pressed = true")
    wait_for(lambda: seat.driving.phase is Phase.COUNTDOWN, "the gamepad's restart")
    seat.driving.agent = AGENT
    wait_for(lambda: text(browser, "wheel") == "Agent (PPO) drives. Hold Space to take over.", "the agent")
    key(browser, "Space", down=True)
    wait_for(lambda: seat.driving.is_by_person, "the person")
    key(browser, "Space", down=False)
    wait_for(lambda: not seat.driving.is_by_person, "the agent")
    browser.execute_script("pad.buttons[5].pressed = true")
    wait_for(lambda: seat.driving.is_by_person, "the person, by a bumper")
    browser.execute_script("pad.buttons[5].pressed = false")
    seat.driving.agent = None
    browser.find_element(By.ID, "name").click()
    press(browser, "KeyR")
    press(browser, "ArrowUp")
    assert held(seat, 0.0, 0.0, 0.0)(), "keys of a name drive nothing"
    assert errors(browser) == []
    browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


@pytest.mark.slow
def test_copper_oval_from_the_first_key_to_the_recording(browser: Chrome, serve: Callable[[Track], Seat]) -> None:
    """The planner looks at the car, and drives it by the keyboard."""
    params, track, table = Params(), campaign_track("copper-oval"), action_table(STEP_TICKS)
    seat = serve(track)
    browser.get(seat.address)
    name = browser.find_element(By.ID, "name")
    name.clear()
    name.send_keys("Ann \N{GREEK SMALL LETTER OMEGA}\n")
    wait_for(lambda: seat.page._player == "Ann \N{GREEK SMALL LETTER OMEGA}", "the name")
    to_the_start(browser, seat)
    key(browser, "KeyW", down=True)
    wait_for(held(seat, 0.0, 1.0, 0.0), "the key")
    seat.run(50)
    key(browser, "KeyW", down=False)
    to_the_start(browser, seat, "Backspace")
    assert seat.driving.recorder.num_ticks == 0
    planner = Planner(track, params.simulator.physics, table, 1, params.races.driver, seed=1)
    planner.plans.most_pace[:] = 0.9
    down: set[str] = set()
    while seat.driving.phase is Phase.RACING:
        action = planner.actions(seat.driving.recorder.car.save())[0]
        wanted = {code for code, is_held in zip(KEYS, table.keys()[action], strict=True) if is_held}
        for code in sorted(down ^ wanted):
            key(browser, code, down=code in wanted)
        down = wanted
        wait_for(held(seat, *table.analog()[action]), "the keys")
        seat.run(STEP_TICKS)
    assert seat.driving.phase is Phase.FINISHED
    wait_for(lambda: phase_of(browser) == "finished", "the end on the page")
    wait_for(lambda: text(browser, "kept"), "the recording")
    (path,) = RECORDINGS.iterdir()
    race, road = read_drive(path)
    assert text(browser, "kept") == f"Kept as {path.as_posix()}."
    assert (race.player, road.name) == ("Ann \N{GREEK SMALL LETTER OMEGA}", "Copper Oval")
    assert text(browser, "word").startswith(f"{(race.race_time_ms or 0) / 1000:.2f} s")
    assert len(browser.find_elements(By.CSS_SELECTOR, "#splits tr")) == len(road.gate_m)
    wait_for(lambda: text(browser, "summary") == LOST.summary, "the coach")
    table = browser.find_element(By.CSS_SELECTOR, "#lost-time table")
    assert table.text.splitlines() == ["bend lost", "0 to 9 m +0.50 s"]
    press(browser, "KeyR")
    wait_for(lambda: "your best race" in text(browser, "ghost"), "the ghost")
    assert errors(browser) == []


@pytest.mark.slow
def test_two_tabs_a_reload_and_a_server_that_is_gone(browser: Chrome, serve: Callable[[Track], Seat]) -> None:
    seat = serve(straight_track())
    browser.get(seat.address)
    to_the_start(browser, seat)
    key(browser, "ArrowUp", down=True)
    wait_for(held(seat, 0.0, 1.0, 0.0), "the key")
    seat.run(50)
    first = browser.current_window_handle
    browser.switch_to.new_window("tab")
    browser.get(seat.address)
    wait_for(lambda: "Another tab drives" in text(browser, "word"), "the tab that watches")
    press(browser, "KeyR")
    assert seat.driving.phase is Phase.RACING, "its keys do nothing"
    browser.switch_to.window(first)
    browser.close()
    browser.switch_to.window(browser.window_handles[0])
    wait_for(lambda: text(browser, "word") == "Paused. Press a key to go on.", "the pause")
    browser.refresh()
    wait_for(lambda: text(browser, "word") == "Paused. Press a key to go on.", "the pause, after a reload")
    key(browser, "ArrowUp", down=True)
    wait_for(held(seat, 0.0, 1.0, 0.0), "the key")
    assert not seat.driving.is_paused
    key(browser, "ArrowUp", down=False)
    seat.server.should_exit = True
    wait_for(lambda: "rulka drive starts it" in text(browser, "lost"), "the page, which says that the server is gone")
