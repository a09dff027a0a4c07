"""A project with one active training run, and a browser."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from selenium.common.exceptions import WebDriverException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from starlette.testclient import TestClient

from rulka.contracts.observation import CAR, NUM_CAR_FIELDS, ZONE_SPACING_M
from rulka.dashboard.app import make_app
from rulka.dashboard.drive_page import Lost
from rulka.dashboard.driving import Driving
from rulka.datasets.formats.races import Race, Source
from rulka.runtime.live import METRICS_FILE, TRACK_FILE, LiveCars
from rulka.tracks.generate import generate_track
from rulka.tracks.track import Track
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
CARS = np.array([[300.0, 1.0, 20.0, 30.0], [0.0, 0.0, 0.0, 5.0], [np.nan, np.nan, np.nan, 1.0]], np.float32)


@pytest.fixture(scope="session")
def track() -> Track:
    return generate_track(1, 300.0, 16.0, 0.1, 100.0)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a project in which nothing has run."""
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(project: Path, track: Track, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with two metrics lines, an incomplete third and cars on a generated track; active throughout the test."""
    monkeypatch.setattr("rulka.dashboard.live.STALE_S", PATIENCE_S)
    folder = project / "runs/train/ppo-1"
    folder.mkdir(parents=True)
    lines = [
        {"env_steps": 64, "minutes": 0.5, "loss": 2.0, "best_time_s": None},
        {"env_steps": 128, "minutes": 1.5, "loss": 1.0, "best_time_s": 13.5},
    ]
    (folder / METRICS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"env_steps": 19')
    track.save(folder / TRACK_FILE)
    cars = LiveCars(folder)
    cars.add(1, CARS)
    cars.add(0, CARS[:1] + 10.0)
    cars.write()
    return folder


def lap_of(
    track: Track, race_id: str, speed_mps: float, *, source: Source = "driver", player: str = "", sample_ms: int = 50
) -> Race:
    """A race along the centre line at constant speed, sampled until shortly after the finish."""
    race_time_ms = round(1000.0 * track.length_m / speed_mps)
    time_ms = np.arange(0, race_time_ms + 2 * sample_ms, sample_ms)
    zone = np.minimum(time_ms / 1000.0 * speed_mps / ZONE_SPACING_M, track.num_zones - 1)
    state = np.zeros((len(time_ms), NUM_CAR_FIELDS), np.float32)
    middle = [np.interp(zone, np.arange(track.num_zones), track.centre_m[:, axis]) for axis in range(3)]
    state[:, CAR["position"]] = np.stack(middle, axis=1)
    state[:, CAR["velocity"].start] = speed_mps
    controls = np.zeros((race_time_ms // 10, 3), np.float32)
    times = (race_time_ms // 2, race_time_ms)
    return Race(race_id, source, "", player, track.uid, race_time_ms, True, times, None, controls, time_ms, state)


STEP_TICKS = 5
LOST = Lost([("bend", "lost"), ("0 to 9 m", "+0.50 s")], "The coach takes 5.00 s.")


class Clock:
    """A clock of races that stands still until it is moved, and waits for every tick that is due."""

    def __init__(self, driving: Driving) -> None:
        self.now_s, self._ticked = 100.0, threading.Semaphore(0)
        driving.tick = partial(self._count, driving.tick)

    def __call__(self) -> float:
        return self.now_s

    def _count(self, tick: Callable[[], bool]) -> bool:
        try:
            return tick()
        finally:
            self._ticked.release()

    def run(self, ticks: int) -> None:
        """Lets so many ticks pass, a multiple of `STEP_TICKS`: the races catch up with no more at once."""
        for _ in range(ticks // STEP_TICKS):
            self.now_s += STEP_TICKS / 100
            for _ in range(STEP_TICKS):
                assert self._ticked.acquire(timeout=PATIENCE_S), "a tick that is due does not come"


@pytest.fixture
def client(project: Path) -> Iterator[TestClient]:
    del project
    with TestClient(make_app(), base_url="http://127.0.0.1:8480") as asking:
        yield asking


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """A browser that finds no other host than this machine; skips, with the reason, where there is none."""
    if not (CHROMIUM and DRIVER):
        pytest.skip("chromium and chromedriver are not installed: apt-get install chromium-driver")
    options = ChromeOptions()
    options.binary_location = CHROMIUM
    names = ("background-networking", "component-update", "dev-shm-usage", "gpu", "quic", "sync")
    arguments = ["headless=new", "no-sandbox", "no-first-run", *(f"disable-{name}" for name in names)]
    arguments += ["host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
    for argument in (*arguments, f"user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    try:
        driver = Chrome(options=options, service=Service(DRIVER))
    except WebDriverException as error:
        pytest.skip(f"chromium does not start here: {error.msg}")
    driver.set_page_load_timeout(PATIENCE_S)
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: Chrome) -> Chrome:
    """The browser, with an empty page: that of the test before asks for its server again and again, and complains."""
    chromium.get("about:blank")
    errors(chromium)
    return chromium


def errors(browser: Chrome) -> list[str]:
    """Errors in the browser's log since the last call."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
