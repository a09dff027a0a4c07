"""How fast the simulator is on one thread: `python -m benchmarks.simulator [--json] [--seconds S]`.

Decisions (50 ms of driving) per second of CPU time: a Simulator with floats and one 64 x 64 grey frame each, driven by
the built-in driver from starts all over the track, and whole environments under random actions; on the track of
params.yaml with its hills and gates. Variants are interleaved and the best of their tries is taken. Where Box2D is
installed, gymnasium's CarRacing-v3 is measured in the same run, and every rate is given as a multiple of its. Beside
them the time to the first frame of a fresh process, with an empty kernel cache and a warm one, and the memory of a
baked track of 4 km.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
from numpy.typing import NDArray

from rulka.actions import action_table
from rulka.envs.race import RaceEnv
from rulka.envs.vector import RaceVectorEnv
from rulka.observation import NUM_FLOATS
from rulka.params import Params, read_params
from rulka.simulator.constants import road_array
from rulka.simulator.driver import PurePursuitDriver, sample_skills
from rulka.simulator.render import FrameRenderer, camera_array
from rulka.simulator.scene import bake_scene
from rulka.simulator.simulator import Simulator
from rulka.tracks.generate import generate_track
from rulka.tracks.track import Track

CAR_RACING = "CarRacing-v3"
NUM_DECISIONS = 60
"""Decisions of one pass, 3 s of driving from the same starts."""
LONG_TRACK_M = 4000.0
FIRST_FRAME = """
import os, time
start_s = time.perf_counter()
import gymnasium, rulka
env = gymnasium.make("rulka/Race-v0")
env.reset(seed=0)
env.step(0)
print(time.perf_counter() - start_s, sum(os.times()[:4]))
"""
Pass = Callable[[], int]


def driven_actions(params: Params, track: Track, num_cars: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Returns the saved rolling starts of the cars, each at its own place, and [T, N] what the built-in driver does."""
    simulator = Simulator(track, num_cars, params.simulator, action_table(params.actions.ticks_per_action))
    driver = PurePursuitDriver(
        track, params.simulator.physics, sample_skills(num_cars, params.races.driver, seed=0), seed=0
    )
    rng = np.random.default_rng(0)
    along_m = rng.uniform(0, track.length_m - 250.0, num_cars)
    simulator.reset(np.ones(num_cars, bool), along_m, rng.uniform(-3, 3, num_cars), 0.0, 20.0)
    starts, actions = simulator.save(), []
    for _ in range(NUM_DECISIONS):
        actions.append(driver.actions(simulator))
        simulator.step(actions[-1])
    return starts, np.array(actions)


def simulator_passes(params: Params, track: Track, num_cars: int) -> dict[str, Pass]:
    """Returns by name what is measured of the simulator; each returns how many decisions it drove."""
    starts, actions = driven_actions(params, track, num_cars)
    simulator = Simulator(track, num_cars, params.simulator, action_table(params.actions.ticks_per_action))
    camera = camera_array(params.simulator.camera)
    renderer = FrameRenderer(simulator.cars, simulator.zone_index, bake_scene(track), camera)
    floats = np.zeros((num_cars, NUM_FLOATS), np.float32)
    image = np.zeros((num_cars, params.observation.height, params.observation.width), np.uint8)

    def drive(with_floats: bool, with_frames: bool) -> int:
        simulator.restore(starts)
        for chosen in actions:
            simulator.step(chosen)
            if with_floats:
                simulator.floats(floats)
            if with_frames:
                renderer.render(image)
        return actions.size

    return {
        "physics": lambda: drive(False, False),
        "physics, floats": lambda: drive(True, False),
        "physics, floats, frames": lambda: drive(True, True),
    }


def vector_pass(track: Track, num_cars: int) -> Pass:
    """Returns a pass of the vector environment under random actions; a race that ends begins anew."""
    env = RaceVectorEnv(num_cars, track)
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 12, (NUM_DECISIONS, num_cars))

    def drive() -> int:
        for chosen in actions:
            env.step(chosen)
        return actions.size

    return drive


def single_pass(env: gymnasium.Env) -> Pass:
    """Returns a pass of a single environment under random actions."""
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, env.action_space.n, NUM_DECISIONS).tolist()  # pyright: ignore[reportAttributeAccessIssue] both are discrete

    def drive() -> int:
        for action in actions:
            *_observation, terminated, truncated, _info = env.step(action)
            if terminated or truncated:
                env.reset()
        return NUM_DECISIONS

    return drive


def all_passes(params: Params) -> dict[str, Pass]:
    """Returns everything that is measured, by name."""
    track = generate_track(**params.track.model_dump())
    passes: dict[str, Pass] = {}
    for num_cars in (256, 1):
        cars = f"{num_cars} car{'s' if num_cars > 1 else ''}"
        passes |= {f"{cars}: {name}": run for name, run in simulator_passes(params, track, num_cars).items()}
        passes[f"{cars}: RaceVectorEnv"] = vector_pass(track, num_cars)
    passes["1 car: RaceEnv"] = single_pass(RaceEnv(track))
    if importlib.util.find_spec("Box2D") is not None:
        passes[CAR_RACING] = single_pass(gymnasium.make(CAR_RACING, continuous=False))
    return passes


def measure(variants: dict[str, Pass], seconds: float) -> dict[str, float]:
    """Returns decisions per CPU second of each, the best of interleaved passes that take `seconds` each in all."""
    spent, best = dict.fromkeys(variants, 0.0), dict.fromkeys(variants, 0.0)
    for run in variants.values():
        run()  # compiles
    while min(spent.values()) < seconds:
        for name, run in variants.items():
            if spent[name] >= seconds:
                continue
            start_s = time.process_time()
            num_decisions = run()
            took_s = time.process_time() - start_s
            spent[name] += took_s
            best[name] = max(best[name], num_decisions / took_s)
    return best


def first_frame_s() -> dict[str, float]:
    """Returns seconds from the start of an import to the first step's frame, in fresh processes, and their CPU seconds.

    With an empty cache the process has a helper; CPU seconds are of both.
    """
    times = {}
    with tempfile.TemporaryDirectory() as cache:
        for name in ("cold", "warm"):
            environment = os.environ | {"NUMBA_CACHE_DIR": cache, "PYTHONPATH": str(Path(__file__).parents[1])}
            command = [sys.executable, "-c", FIRST_FRAME]
            run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
            times[name], times[f"{name}, CPU"] = (float(part) for part in run.stdout.split())
    return times


def baked_megabytes(params: Params) -> float:
    """Returns the memory of what renderer and physics hold of a track of 4 km."""
    track = generate_track(**params.track.model_copy(update={"length_m": LONG_TRACK_M}).model_dump())
    return (bake_scene(track).num_bytes + road_array(track).nbytes + track.zones.nbytes) / 1e6


def measure_all(params: Params, seconds: float) -> dict[str, dict[str, float] | float]:
    """Returns rates by name, how often CarRacing's they are where it was measured, times and memory."""
    rates = measure(all_passes(params), seconds)
    ratios = {name: rate / rates[CAR_RACING] for name, rate in rates.items()} if CAR_RACING in rates else {}
    return {
        "decisions_per_cpu_s": rates,
        "times_car_racing": ratios,
        "first_frame_s": first_frame_s(),
        "baked_4_km_mb": baked_megabytes(params),
    }


def print_table(results: dict) -> None:
    """Prints what `measure_all` returned for people."""
    ratios = results["times_car_racing"]
    print(f"{'':46s} {'decisions/s':>12s} {'x ' + CAR_RACING:>15s}")
    for name, rate in results["decisions_per_cpu_s"].items():
        print(f"{name:46s} {rate:12,.0f} {f'{ratios[name]:,.0f}' if ratios else '-':>15s}")
    if not ratios:
        print(f"{CAR_RACING} was not measured: Box2D is not installed")
    for name, took_s in results["first_frame_s"].items():
        print(f"first frame by kernel cache, {name}: {took_s:.2f} s")
    print(f"baked track of 4 km: {results['baked_4_km_mb']:.1f} MB")


def main() -> None:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--seconds", type=float, default=0.5, help="CPU seconds spent on each line of the table")
    arguments = parser.parse_args()
    results = measure_all(read_params(), arguments.seconds)
    if arguments.json:
        print(json.dumps(results))
    else:
        print_table(results)


if __name__ == "__main__":
    main()
