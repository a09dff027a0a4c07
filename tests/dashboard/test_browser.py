"""The pages in a real browser: Debian's chromium, driven by Selenium. Skipped, with the reason, where there is none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select

from rulka.dashboard.app import PAGES, make_server, open_port
from rulka.datasets.formats.races import RaceDataset, write_races
from rulka.runtime.live import METRICS_FILE, LiveCars
from rulka.stages.folders import RACES
from rulka.tracks.track import Track
from tests.dashboard.conftest import CARS, errors, lap_of
from tests.waiting import PATIENCE_S, wait_for


@pytest.fixture
def site(run: Path, track: Track) -> Iterator[str]:
    """Address of the pages of a project with a training at work and two demonstrations."""
    del run
    RACES.mkdir(parents=True)
    named = lap_of(track, "a-0001", 30.0, source="recording", player="<b>&lt;$$")
    write_races(RACES, RaceDataset((named, lap_of(track, "a-0002", 25.0)), track, ()))
    with open_port(0) as door:
        server = make_server()
        thread = threading.Thread(target=server.run, args=([door],), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{door.getsockname()[1]}"
        server.should_exit = True
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def set_width(browser: Chrome, width: int) -> None:
    metrics = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


@pytest.mark.parametrize(
    "width", [pytest.param(1280, id="desk", marks=pytest.mark.slow), pytest.param(390, id="phone")]
)
def test_pages_load_offline_without_an_error_and_fit(browser: Chrome, site: str, width: int) -> None:
    set_width(browser, width)
    for path in PAGES:
        browser.get(site + path)
        if path in ("/runs", "/replay"):
            wait_for(lambda: browser.find_elements(By.CSS_SELECTOR, ".plot .main-svg"), "the chart")
        names = browser.find_elements(By.CSS_SELECTOR, "table th:first-child")
        assert [name.text for name in names if name.text and name.size["width"] < 60] == [], "one letter a line"
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width, path
        loaded = browser.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
        assert not [name for name in loaded if not name.startswith((site, "data:", "blob:"))]
        assert browser.find_element(By.CSS_SELECTOR, "nav [aria-current]").text == PAGES[path]
        brand, tab = (browser.find_element(By.CSS_SELECTOR, f"header {each}").rect for each in (".brand", "nav a"))
        is_above = brand["y"] + brand["height"] <= tab["y"]
        assert is_above or abs(brand["y"] + brand["height"] / 2 - tab["y"] - tab["height"] / 2) < 3, "on one line"
        assert errors(browser) == [], path


@pytest.mark.slow
def test_the_replay_moves_and_obeys_keys(browser: Chrome, site: str) -> None:
    set_width(browser, 1280)
    browser.get(f"{site}/replay")

    def clock() -> float:
        return float(browser.execute_script("return document.documentElement.dataset.at ?? 0"))

    def car() -> str:
        return browser.execute_script("return document.querySelector('#map circle').getAttribute('cx')")

    wait_for(lambda: clock() > 0.2, "the replay, which begins by itself")
    moved, slider, play = car(), browser.find_element(By.ID, "time"), browser.find_element(By.ID, "play")
    slider.send_keys(Keys.HOME)
    assert clock() == 0.0
    assert car() != moved
    assert play.text == "Play"
    Select(browser.find_element(By.ID, "pace")).select_by_value("0.25")  # so that it does not end by itself meanwhile
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.SPACE)
    wait_for(lambda: clock() > 0.0, "the replay, which goes on")
    assert play.text == "Pause"
    body.send_keys(Keys.SPACE)
    assert play.text == "Play"
    slider.send_keys(Keys.END)
    assert clock() == pytest.approx(12.05, abs=0.06)  # 300 m at 25 m/s, and the sample behind
    times = [row.text for row in browser.find_elements(By.CSS_SELECTOR, "#laps tr")]
    names = "return document.getElementById('gaps').data?.map(trace => trace.name)"
    wait_for(lambda: browser.execute_script(names), "the chart of gaps")
    assert browser.execute_script(names)[0] == "&lt;b>&amp;lt;$", "plotly reads tags and entities"
    assert ["10.00" in times[0], "12.00" in times[1]] == [True, True]


@pytest.mark.slow
def test_a_training_is_followed(browser: Chrome, site: str, run: Path) -> None:
    """Cars and numbers that are written while the page is open."""
    set_width(browser, 390)
    browser.get(f"{site}/live")

    def places() -> list[str]:
        shown = "[...document.querySelectorAll('#map circle')].filter(c => c.getAttribute('visibility') === 'visible')"
        script = f"return {shown}.map(c => c.getAttribute('cx'))"
        return browser.execute_script(script)

    def seen() -> str:
        return browser.execute_script("return document.documentElement.dataset.seen ?? ''")

    wait_for(lambda: len(places()) == 3, "three cars")
    before = places()
    cars = LiveCars(run)
    cars.add(0, CARS[1:2] + 5.0)
    cars.write()
    with (run / METRICS_FILE).open("a") as file:
        file.write("2}\n" + json.dumps({"env_steps": 256, "loss": 0.1}) + "\n")
    wait_for(lambda: seen() == "256", "the new line")
    wait_for(lambda: len(places()) == 1, "the one car that is left")
    assert places()[0] not in before
    assert errors(browser) == []
