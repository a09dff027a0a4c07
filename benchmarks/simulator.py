"""Single-threaded speed of the simulator: `python -m benchmarks.simulator [--json] [--seconds S]`.

Measures frames and decisions (50 ms of driving) per CPU second. Frames show cars spread over the track of params.yaml,
with its hills and gates, and over one of 3 km. Decisions are measured on the track of params.yaml: of a Simulator, with
and without floats and one grey frame each, driven by the built-in driver from starts all over the track; and of whole
environments under random actions. Variants are interleaved, and the best try counts. If Box2D is installed,
gymnasium's CarRacing-v3 runs too, and every decision rate is also given as a multiple of its. Also reported: the time
to the first frame of a new process, with a cold and a warm kernel cache, and the memory of a baked track of 4 km.
"""

from __future__ import annotations

import argparse
import importlib.util
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

from benchmarks.harness import show
from rulka.contracts.actions import action_table
from rulka.contracts.observation import NUM_FLOATS
from rulka.envs.race import RaceEnv
from rulka.envs.vector import RaceVectorEnv
from rulka.params import Params, read_params
from rulka.planner.planner import Planner
from rulka.simulator.constants import road_array
from rulka.simulator.render import POSE_SIZE, FrameRenderer, camera_array, render_rgb
from rulka.simulator.scene import bake_scene
from rulka.simulator.simulator import Simulator
from rulka.tracks.generate import generate_track
from rulka.tracks.track import Track

CAR_RACING = "CarRacing-v3"
NUM_DECISIONS = 60
"""Decisions of one pass: 3 s of driving from the same starts."""
FRAMES = ((1, 64, 64), (16, 64, 64), (256, 64, 64), (64, 120, 160))
"""Number of cars, height and width."""
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
"""Returns the number of frames drawn, or decisions taken."""


def track_of(params: Params, length_m: float | None = None) -> Track:
    """Returns the track of the parameters, or a similar one of another length."""
    changes = {} if length_m is None else {"length_m": length_m, "seed": 3}
    return generate_track(**params.track.model_dump() | changes)


def spread_cars(track: Track, num_cars: int, params: Params) -> Simulator:
    """Returns a simulator with moving cars at random places of a track."""
    rng = np.random.default_rng(0)
    simulator = Simulator(track, num_cars, params.simulator, action_table(params.actions.ticks_per_action))
    along_m = rng.uniform(0, track.length_m - 250.0, num_cars)
    simulator.reset(np.ones(num_cars, bool), along_m, rng.uniform(-3, 3, num_cars), rng.normal(0, 0.1, num_cars), 20.0)
    return simulator


def frame_passes(params: Params) -> dict[str, Pass]:
    """Returns rendering passes by name; renderers are built in advance."""
    passes: dict[str, Pass] = {}
    camera = camera_array(params.simulator.camera)
    for name, track in (("hills", track_of(params)), ("hills, 3 km", track_of(params, 3000.0))):
        scene = bake_scene(track)
        for num_cars, height, width in FRAMES:
            cars, out = spread_cars(track, num_cars, params), np.empty((num_cars, height, width), np.uint8)
            renderer = FrameRenderer(cars.cars, cars.zone_index, scene, camera)
            passes[f"{name}: {width} x {height} grey, {num_cars} cars"] = drawing(renderer, out)
    track = track_of(params)
    scene, car = bake_scene(track), spread_cars(track, 1, params)
    pose, zone = car.cars[0, :POSE_SIZE], int(car.zone_index[0])
    passes["hills: 640 x 480 colour, 1 car"] = lambda: len(render_rgb(scene, pose, zone, 640, 480)) // 480
    return passes


def drawing(renderer: FrameRenderer, out: NDArray[np.uint8]) -> Pass:
    """Returns a pass that draws one frame per car."""

    def draw() -> int:
        renderer.render(out)
        return len(out)

    return draw


def simulator_passes(params: Params, track: Track, num_cars: int) -> dict[str, Pass]:
    """Returns simulator passes by name; they replay decisions of the built-in driver."""
    simulator = spread_cars(track, num_cars, params)
    driver = Planner(track, params.simulator.physics, simulator.table, num_cars, params.races.driver, seed=0)
    starts, actions = simulator.save(), []
    for _ in range(NUM_DECISIONS):
        actions.append(driver.actions(simulator.save()))
        simulator.step(actions[-1])
    camera = camera_array(params.simulator.camera)
    renderer = FrameRenderer(simulator.cars, simulator.zone_index, bake_scene(track), camera)
    floats = np.zeros((num_cars, NUM_FLOATS), np.float32)
    image = np.zeros((num_cars, params.observation.height, params.observation.width), np.uint8)

    def drive(with_sight: bool) -> int:
        simulator.restore(starts)
        for chosen in actions:
            simulator.step(chosen)
            if with_sight:
                simulator.floats(floats)
                renderer.render(image)
        return NUM_DECISIONS * num_cars

    return {"physics": lambda: drive(False), "physics, floats, frames": lambda: drive(True)}


def vector_pass(track: Track, num_cars: int) -> Pass:
    """Returns a pass of the vector environment under random actions, with autoreset."""
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


def decision_passes(params: Params) -> dict[str, Pass]:
    """Returns all passes that take decisions, by name."""
    track = track_of(params)
    passes: dict[str, Pass] = {}
    for num_cars in (256, 16, 1):
        cars = f"{num_cars} car{'s' if num_cars > 1 else ''}"
        passes |= {f"{cars}: {name}": run for name, run in simulator_passes(params, track, num_cars).items()}
        passes[f"{cars}: RaceVectorEnv"] = vector_pass(track, num_cars)
    passes["1 car: RaceEnv"] = single_pass(RaceEnv(track))
    if importlib.util.find_spec("Box2D") is not None:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        passes[CAR_RACING] = single_pass(gymnasium.make(CAR_RACING, continuous=False))
    return passes


def measure(variants: dict[str, Pass], seconds: float) -> dict[str, float]:
    """Returns frames or decisions per CPU second: the best pass of each variant, interleaved for `seconds` each."""
    spent, best = dict.fromkeys(variants, 0.0), dict.fromkeys(variants, 0.0)
    for run in variants.values():
        run()  # compiles
    while min(spent.values()) < seconds:
        for name, run in variants.items():
            if spent[name] >= seconds:
                continue
            start_s = time.process_time()
            count = run()
            took_s = max(time.process_time() - start_s, 1e-6)
            spent[name] += took_s
            best[name] = max(best[name], count / took_s)
    return best


def first_frame_s() -> dict[str, float]:
    """Returns wall and CPU seconds from import to the first step's frame, in new processes, by cache state.

    With an empty cache the process starts a helper; CPU seconds include both.
    """
    times = {}
    with tempfile.TemporaryDirectory() as cache:
        for name in ("cold", "warm"):
            environment = os.environ | {"NUMBA_CACHE_DIR": cache, "PYTHONPATH": str(Path(__file__).parents[1])}
            command = [sys.executable, "-c", FIRST_FRAME]
            run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=900)
            times[name], times[f"{name}, CPU"] = (float(part) for part in run.stdout.split())
    return times


def measure_all(params: Params, seconds: float) -> dict[str, dict[str, float] | float]:
    """Returns rates by name, their multiples of CarRacing's if measured, startup times and memory."""
    rates = measure(decision_passes(params), seconds)
    ratios = {name: rate / rates[CAR_RACING] for name, rate in rates.items()} if CAR_RACING in rates else {}
    long = track_of(params, 4000.0)
    return {
        "frames_per_cpu_s": measure(frame_passes(params), seconds),
        "decisions_per_cpu_s": rates,
        "times_car_racing": ratios,
        "first_frame_s": first_frame_s(),
        "baked_4_km_mb": (bake_scene(long).num_bytes + road_array(long).nbytes + long.zones.nbytes) / 1e6,
    }


def main() -> None:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--seconds", type=float, default=0.5, help="CPU seconds spent on each line of the table")
    arguments = parser.parse_args()
    show(measure_all(read_params(), arguments.seconds), arguments.json)


if __name__ == "__main__":
    main()
