"""What `rulka dashboard` takes from a training beside it: `python -m benchmarks.dashboard [--cars N] [--seconds S]`.

A training is played: it writes where its cars are every second and its numbers every two. Measured are the CPU time of
the server, with no page, one and ten that listen; how long after a training wrote it a page hears of it; how long pages
take to be answered; and the CPU time of writing the cars, which is all that a training does for pages.

With `--browser` chromium opens each page, new to it, and says when that had loaded with its scripts; then ten tabs of
it show the live page, of which one is seen, as it is for people; else ten connections stand for them, each of which is
told everything.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from rulka.dashboard.app import PAGES
from rulka.runtime.live import METRICS_FILE, TRACK_FILE, LiveCars
from rulka.tracks.campaign import campaign_track

REPORT_EVERY = 2
NUM_METRICS = 50
NUM_PAGES = 10
PATIENCE_S = 60.0


class Training:
    """Writes what a training writes, until it is told to end.

    Args:
        folder: of the run.
        num_cars: in all.
    """

    def __init__(self, folder: Path, num_cars: int) -> None:
        folder.mkdir(parents=True)
        campaign_track("copper-oval").save(folder / TRACK_FILE)
        self._live, self._metrics, self._num_cars = LiveCars(folder), folder / METRICS_FILE, num_cars
        self._end, self._thread = threading.Event(), threading.Thread(target=self._run, daemon=True)
        self.written_s: dict[float, float] = {}
        self.cpu_s: list[float] = []
        self._thread.start()

    def _run(self) -> None:
        rng, count = np.random.default_rng(1), 0
        while not self._end.wait(1.0):
            count += 1
            if count % REPORT_EVERY == 0:
                values = {f"metric_{k}": rng.normal() for k in range(NUM_METRICS)}
                with self._metrics.open("a") as file:
                    file.write(json.dumps({"env_steps": 4096 * count, "minutes": count / 60.0} | values) + "\n")
            began_s = time.thread_time()
            cars = rng.uniform(0.0, 200.0, (self._num_cars, 4)).astype(np.float32)
            cars[0, 3] = count  # by which a page's first car tells what it was told of
            self._live.add(0, cars)
            self._live.write()
            self.written_s[float(count)] = time.monotonic()
            self.cpu_s.append(time.thread_time() - began_s)

    def close(self) -> None:
        """Ends it."""
        self._end.set()
        self._thread.join()


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Yields the address of a dashboard of a project, and its process."""
    command = [sys.executable, "-m", "rulka.cli", "dashboard", "--port", "0"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[0].rstrip("/"), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def listen(address: str, training: Training, delays_s: list[float]) -> Any:
    """Opens a page's connection, which is told of everything; returns what closes it."""
    answer = urllib.request.urlopen(f"{address}/events", timeout=PATIENCE_S)

    def read() -> None:
        try:
            for line in answer:
                if line.startswith(b'data: {"run"'):
                    count = json.loads(line[6:])["cars"][0][2]
                    if (written_s := training.written_s.get(count)) is not None:
                        delays_s.append(time.monotonic() - written_s)
        except (OSError, ValueError, AttributeError):  # it was closed
            return

    threading.Thread(target=read, daemon=True).start()
    return answer


@contextmanager
def chromium() -> Iterator[Any]:
    """Has a browser for the block."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "disable-background-networking",
        "disable-dev-shm-usage",
    ):
        options.add_argument(f"--{argument}")
    browser = Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield browser
    finally:
        browser.quit()


def open_tabs(browser: Any, address: str, count: int) -> None:
    """Opens the live page in some tabs of a browser."""
    for number in range(count):
        if number:
            browser.switch_to.new_window("tab")
        browser.get(f"{address}/live")


def loaded_s(browser: Any, address: str) -> dict[str, float]:
    """Returns when each page had loaded with its scripts, in seconds since it was asked for."""
    found = {}
    for path in PAGES:
        browser.get(address + path)
        script = "return performance.getEntriesByType('navigation')[0].loadEventEnd"
        found[path] = float(browser.execute_script(script)) / 1000.0
    return found


def share_of_a_core(process: psutil.Process, seconds: float) -> float:
    """Returns which share of a core a process takes."""
    before, began_s = process.cpu_times(), time.monotonic()
    time.sleep(seconds)
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / (time.monotonic() - began_s)


def answer_s(address: str) -> dict[str, float]:
    """Returns how long each page takes, the middle of five, after a first time."""
    found = {}
    for path in PAGES:
        took_s = []
        for _ in range(6):
            began_s = time.monotonic()
            urllib.request.urlopen(address + path, timeout=PATIENCE_S).read()
            took_s.append(time.monotonic() - began_s)
        found[path] = statistics.median(took_s[1:])
    return found


def measure(num_cars: int, seconds: float, *, has_browser: bool) -> dict[str, Any]:
    """Returns what was measured."""
    delays_s: list[float] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name in ("params.yaml", "dvc.yaml"):
            shutil.copy(name, folder)
        training = stack.enter_context(closing(Training(folder / "runs/train/ppo-played", num_cars)))
        began_s = time.monotonic()
        address, process = stack.enter_context(served(folder))
        result: dict[str, Any] = {
            "cars": num_cars,
            "start_s": time.monotonic() - began_s,
            "answer_s": answer_s(address),
        }
        result["share_without_pages"] = share_of_a_core(process, seconds)
        with ExitStack() as pages:
            pages.enter_context(closing(listen(address, training, delays_s)))
            result["share_with_one"] = share_of_a_core(process, seconds)
            for _ in range(NUM_PAGES - 1):
                pages.enter_context(closing(listen(address, training, delays_s)))
            result["share_with_ten"] = share_of_a_core(process, seconds)
        if has_browser:
            with chromium() as browser:
                result["loaded_s"] = loaded_s(browser, address)
                open_tabs(browser, address, NUM_PAGES)
                result["share_with_ten_tabs"] = share_of_a_core(process, seconds)
        result |= {"delay_median_s": statistics.median(delays_s), "delay_most_s": max(delays_s)}
        result["training_cpu_ms_per_s"] = 1000.0 * statistics.median(training.cpu_s)
    return result


def main() -> None:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cars", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--browser", action="store_true", help="open ten tabs of chromium too")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    result = measure(arguments.cars, arguments.seconds, has_browser=arguments.browser)
    if arguments.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        pages = value.items() if isinstance(value, dict) else [("", value)]
        for path, number in pages:
            print(f"{name:22} {path:10} {number:10.4f}")


if __name__ == "__main__":
    main()
