"""Latency of the driver's seat: `python -m benchmarks.drive [--presses N] [--json]`.

A client presses and releases keys at random moments of a race on Copper Oval, with and without a ghost, over a
websocket on loopback to `rulka drive` in a separate process. Latency: milliseconds from the message of a key to the
picture whose state has had a tick with it; a browser adds decoding and its screen. Also ticks and pictures per second,
and the server's cores. `picture`: CPU milliseconds of drawing a picture, and of encoding it in each format.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image
from websockets.sync.client import connect
from websockets.sync.connection import Connection as Socket
from websockets.typing import Origin

from benchmarks.harness import show
from rulka.dashboard.app import HOST, make_server, open_port
from rulka.dashboard.drive_page import HEIGHT, WIDTH, DrivePage, Lost
from rulka.dashboard.driving import Driving, Ghost
from rulka.evaluation.race import EvaluationRaces, find_reference_race
from rulka.params import Params
from rulka.simulator.scene import bake_scene
from rulka.tracks.campaign import campaign_track
from rulka.video.race_video import draw_race

SLUG = "copper-oval"
PAUSES_S = (0.03, 0.15)
"""Range of the pause between two presses."""
MOST_S = 30.0
NUM_PICTURES = 60
FORMATS: dict[str, dict[str, Any]] = {
    "JPEG": {"quality": 85},
    "WEBP": {"quality": 85, "method": 0},
    "PNG": {"compress_level": 1},
}


def prepared(*, with_ghost: bool) -> Driving:
    """Returns races on the track, with the reference lap as ghost if there is one that is not stale here."""
    params, track = Params(), campaign_track(SLUG)
    lap = find_reference_race(Path("none"), EvaluationRaces.of(track, params)) if with_ghost else None
    return Driving(track, params.simulator, Ghost(lap, "the reference lap") if lap else None)


def serve(pipe: Connection, with_ghost: bool) -> None:
    """Serves until the process is terminated; sends its port through `pipe`."""
    driving = prepared(with_ghost=with_ghost)
    page = DrivePage(driving, lambda _: Path("not kept"), lambda *_: Lost([], ""))
    page.picture(driving.shot())
    driving.recorder.tick((0.0, 0.0, 0.0))
    with open_port(0) as door:
        pipe.send(door.getsockname()[1])
        make_server(drive=page).run([door])


@dataclass
class Seen:
    """What the client has received: states with the time of their picture, in seconds."""

    states: list[dict[str, Any]]
    at_s: list[float]


class Client:
    """Presses keys, and waits for the pictures that show them."""

    def __init__(self, socket: Socket) -> None:
        self._socket, self._num_sent = socket, 0
        self.seen = Seen([], [])

    def look(self) -> dict[str, Any]:
        """Waits for the next picture and returns its state."""
        state = json.loads(self._socket.recv(MOST_S))
        self._socket.recv(MOST_S)
        self.seen.states.append(state)
        self.seen.at_s.append(time.perf_counter())
        return state

    def press(self, steer: float, gas: float) -> float:
        """Sends controls; returns milliseconds until a picture shows them."""
        sent_s = time.perf_counter()
        self._socket.send(json.dumps({"kind": "drive", "steer": steer, "gas": gas, "brake": 0.0}))
        self._num_sent += 1
        while self.look()["inputs"] < self._num_sent:
            pass
        return 1000.0 * (self.seen.at_s[-1] - sent_s)

    def rest(self, seconds: float) -> None:
        """Looks at pictures for so long, then waits for the moment; begins a race where there is none."""
        ends_s = time.perf_counter() + seconds
        while self.look()["phase"] not in ("countdown", "racing") or time.perf_counter() < ends_s - 1 / 30:
            if self.seen.states[-1]["phase"] not in ("countdown", "racing"):
                self._socket.send(json.dumps({"kind": "restart"}))
        time.sleep(max(0.0, ends_s - time.perf_counter()))


def measure(num_presses: int, *, with_ghost: bool) -> dict[str, float]:
    """Measures latency and rates in races of one kind."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, with_ghost), daemon=True)
    process.start()
    port, rng = ours.recv(), random.Random(1)
    server = psutil.Process(process.pid)
    with connect(f"ws://{HOST}:{port}/drive/socket", origin=Origin(f"http://{HOST}:{port}")) as socket:
        client = Client(socket)
        client.rest(0.5)
        client.seen = Seen([], [])
        before, start_s = sum(server.cpu_times()[:2]), time.perf_counter()
        latency_ms = []
        for number in range(num_presses):
            client.rest(rng.uniform(*PAUSES_S))
            latency_ms.append(client.press((0.0, -0.2, 0.0, 0.2)[number % 4], 1.0))
        wall_s = time.perf_counter() - start_s
        cores = (sum(server.cpu_times()[:2]) - before) / wall_s
    process.terminate()
    process.join()
    states = client.seen.states
    return {
        "latency p50, ms": float(np.percentile(latency_ms, 50)),
        "latency p95, ms": float(np.percentile(latency_ms, 95)),
        "latency, largest, ms": max(latency_ms),
        "pictures/s": len(states) / wall_s,
        "slowest pace": min(state["pace"] for state in states),
        "server, cores": cores,
    }


def cpu_ms(work: Callable[[], object]) -> float:
    """Returns the CPU milliseconds of a call of `work`, the mean of several after one more."""
    work()
    start_s = time.process_time()
    for _ in range(NUM_PICTURES):
        work()
    return 1000.0 * (time.process_time() - start_s) / NUM_PICTURES


def picture_costs() -> dict[str, float]:
    """Measures what a picture costs on the start line, where the ghost is in it."""
    track = campaign_track(SLUG)
    pose, zone_index, none = Driving(track, Params().simulator).shot()
    view = (bake_scene(track), pose, zone_index, WIDTH, HEIGHT)
    image = Image.fromarray(draw_race(*view, none))

    def encoded(kind: str) -> Callable[[], object]:
        return lambda: image.save(io.BytesIO(), kind, **FORMATS[kind])

    drawing = {
        "draw, ms": cpu_ms(lambda: draw_race(*view, none)),
        "draw with a ghost, ms": cpu_ms(lambda: draw_race(*view, pose[None])),
    }
    return drawing | {f"{kind}, ms": cpu_ms(encoded(kind)) for kind in FORMATS}


def main() -> None:
    """Prints the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presses", type=int, default=400, help="of keys, in races of each kind")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args()
    found = {
        "alone": measure(options.presses, with_ghost=False),
        "with a ghost": measure(options.presses, with_ghost=True),
        "picture": picture_costs(),
    }
    show(found, options.json)


if __name__ == "__main__":
    main()
