"""What `rulka dashboard` takes from a training beside it: `python -m benchmarks.dashboard [--cars N] [--seconds S]`.

A training is played: it writes where its cars are every second and its numbers every two. Measured are the CPU time of
the server, with no page, one and ten live pages, each of which asks once a second as in a browser; how long pages take
to be answered; and the CPU time of writing the cars, which is all that a training does for pages.
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
            self._live.add(0, cars)
            self._live.write()
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


@contextmanager
def asking(address: str, num_pages: int) -> Iterator[None]:
    """Asks for the block what so many live pages ask, once a second each."""
    end = threading.Event()

    def ask() -> None:
        while not end.wait(1.0):
            urllib.request.urlopen(f"{address}/newest.json", timeout=PATIENCE_S).read()

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(num_pages)]
    for thread in threads:
        thread.start()
    yield
    end.set()
    for thread in threads:
        thread.join()


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


def measure(num_cars: int, seconds: float) -> dict[str, Any]:
    """Returns what was measured."""
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
        for num_pages in (0, 1, NUM_PAGES):
            with asking(address, num_pages):
                result[f"share_with_{num_pages}"] = share_of_a_core(process, seconds)
        result["training_cpu_ms_per_s"] = 1000.0 * statistics.median(training.cpu_s)
    return result


def main() -> None:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cars", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    result = measure(arguments.cars, arguments.seconds)
    if arguments.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        pages = value.items() if isinstance(value, dict) else [("", value)]
        for path, number in pages:
            print(f"{name:22} {path:10} {number:10.4f}")


if __name__ == "__main__":
    main()
