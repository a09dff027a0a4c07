"""Decisions per second over the link to a game: `python -m benchmarks.link [--json] [--port P | --engine]`.

A cycle is one decision in the game's protocol: run step, frame request, frame, inputs, on to the next run step 50 ms
later. `with the state` also fetches and rewinds to the simulation state in every run step, as a rollout does. The
server is `rulka game serve` in a separate process, over loopback, with 64 x 64 grey frames; with `--port`, the server
on that port. With `--engine` it is the game's plugin in AngelScript's engine (tests/game/host), on one core with this
process; this mode also measures run steps per second, the time for a program to take over from a silent one, and the
CPU share of a held game. Rates are medians of several tries in wall time; CPU time is per cycle, for both sides.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import numpy as np
import psutil

from benchmarks.harness import show
from rulka.contracts.actions import CONTROLS
from rulka.game.client import Frame, GameClient
from rulka.game.frames import grey_from_bgra
from rulka.game.protocol import LOOPBACK, RunStep
from rulka.game.serve import make_server
from rulka.game.state import read_state
from rulka.game.sync import Sync
from rulka.params import reference_params
from rulka.tracks.generate import generate_track

SIDE, PERIOD_MS, SPEED = 64, 50, 100.0
TRIES, TRY_S = 7, 1.5
TIMEOUT_S = 20.0
TARGET = 3000.0
HELD_S = 2.0
ACTIONS = (0, 0, 1, 0, 2, 0)
"""Alternates steering along the road."""


def serve(pipe: Connection) -> None:
    """Serves until the process is terminated; sends its port through `pipe`."""
    params = reference_params()
    server = make_server(generate_track(**dict(params.track)), params, 0, speed=SPEED)
    pipe.send(server.port)
    server.serve()


class Driver:
    """Drives cycles on a new connection."""

    def __init__(self, client: GameClient) -> None:
        self._client = client
        self._grey = np.empty((SIDE, SIDE), np.uint8)
        self._cycle = 0
        sync = client.receive()
        sync.set_step_period(PERIOD_MS)
        sync.set_speed(SPEED)
        sync.echo()
        sync = self._run_step()
        while isinstance(sync.message, RunStep) and sync.message.time_ms < 0:
            sync.echo()
            sync = self._run_step()
        self._start = sync.state()
        self._sync = sync

    def cycle(self, *, with_state: bool) -> None:
        """Takes one decision; at the end of the race, rewinds to its start."""
        sync = self._sync
        sync.set_speed(0.0)
        sync.request_frame(SIDE, SIDE)
        if with_state:
            sync.rewind_to_current()
            read_state(sync.echo_for_state())
        else:
            sync.echo()
        sync = self._client.receive()
        assert isinstance(sync.message, Frame)
        grey_from_bgra(sync.message.pixels, self._grey)
        sync.set_inputs(CONTROLS[ACTIONS[self._cycle % len(ACTIONS)]])
        sync.set_speed(SPEED)
        sync.echo()
        self._sync = self._run_step()
        self._cycle += 1

    def _run_step(self) -> Sync:
        sync = self._client.receive()
        while not isinstance(sync.message, RunStep):
            if getattr(sync.message, "current", 0) == getattr(sync.message, "target", 1):
                sync.rewind(self._start)
            sync.echo()
            sync = self._client.receive()
        return sync


def measure(port: int, server: psutil.Process | None) -> dict[str, dict[str, float]]:
    """Returns cycles per second and CPU microseconds per cycle of both sides, by variant."""
    variants = {"request, frame, act": False, "with the state": True}
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in variants}
    with GameClient(LOOPBACK, port, TIMEOUT_S) as client:
        driver = Driver(client)
        for _ in range(TRIES):
            for name, with_state in variants.items():
                found[name].append(_try(lambda state=with_state: driver.cycle(with_state=state), server))
    return {
        name: {
            "cycles_per_s": round(statistics.median(row[0] for row in rows), 1),
            "client_cpu_us": round(statistics.median(row[1] for row in rows), 1),
            "server_cpu_us": round(statistics.median(row[2] for row in rows), 1),
        }
        for name, rows in found.items()
    }


def _try(cycle: Callable[[], None], server: psutil.Process | None) -> tuple[float, float, float]:
    before = _cpu_s(server), time.process_time(), time.perf_counter()
    count = 0
    while time.perf_counter() - before[2] < TRY_S:
        cycle()
        count += 1
    after = _cpu_s(server), time.process_time(), time.perf_counter()
    server_s, client_s, wall_s = (end - start for start, end in zip(before, after, strict=True))
    return count / wall_s, 1e6 * client_s / count, 1e6 * server_s / count


def _cpu_s(process: psutil.Process | None) -> float:
    return sum(process.cpu_times()[:2]) if process is not None else 0.0


def measure_engine() -> dict[str, dict[str, float]]:
    """Measures against the game's plugin in AngelScript's engine, on one core with this process."""
    from tests.game.engine import hosted

    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with hosted(pictures_per_s=100_000, gates="1000,2000") as host:
            game = psutil.Process(host.process.pid)
            found = measure(host.port, game)
            return found | {"the plugin": _steps(host.port) | _takeover(host.port, game)}
    finally:
        os.sched_setaffinity(0, cores)


def _steps(port: int) -> dict[str, float]:
    with GameClient(LOOPBACK, port, TIMEOUT_S) as client:
        sync = client.receive()
        sync.set_step_period(10)
        sync.set_speed(SPEED)
        rates = []
        for _ in range(TRIES):
            count, before_s = 0, time.perf_counter()
            while time.perf_counter() - before_s < TRY_S:
                sync.echo()
                sync, count = client.receive(), count + 1
            rates.append(count / (time.perf_counter() - before_s))
        sync.shut_down()
    return {"run_steps_per_s": round(statistics.median(rates), 1)}


def _takeover(port: int, game: psutil.Process) -> dict[str, float]:
    waits_s, shares = [], []
    for _ in range(TRIES):
        silent = GameClient(LOOPBACK, port, TIMEOUT_S)
        sync = silent.receive()
        sync.set_timeout(10**8)
        sync.flush()
        time.sleep(0.2)  # at first the game busy-waits for the echo
        before_s = _cpu_s(game)
        time.sleep(HELD_S)
        shares.append((_cpu_s(game) - before_s) / HELD_S)
        before_s = time.perf_counter()
        with GameClient(LOOPBACK, port, TIMEOUT_S) as client:
            client.receive().shut_down()
            waits_s.append(time.perf_counter() - before_s)
        silent.close()
    return {"takeover_s": round(statistics.median(waits_s), 3), "held_cores": round(statistics.median(shares), 4)}


def main() -> None:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--port", type=int, help="measure what listens there instead of a server of our own")
    parser.add_argument("--engine", action="store_true", help="measure the game's plugin in AngelScript's engine")
    options = parser.parse_args()
    found = measure(options.port, None) if options.port else measure_engine() if options.engine else measure_own()
    show({"target_cycles_per_s": TARGET, **found}, options.json)


def measure_own() -> dict[str, dict[str, float]]:
    """Measures against Rulka's server in a separate process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    try:
        return measure(ours.recv(), psutil.Process(process.pid))
    finally:
        process.terminate()
        process.join()


if __name__ == "__main__":
    main()
