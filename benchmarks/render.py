"""How fast frames are drawn and races are stepped on one core: `python -m benchmarks.render [--json]`.

CPU time of one thread, best of some interleaved tries. Frames are of cars spread over the track, turned and moved
sideways at random. A step is one decision of 50 ms: physics, floats and a 64 x 64 grey frame. gymnasium's
CarRacing-v3 is measured in the same run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import time
from collections.abc import Callable

import gymnasium
import numpy as np

from rulka.actions import action_table
from rulka.envs.race import RaceEnv
from rulka.envs.vector import RaceVectorEnv
from rulka.observation import NUM_FLOATS
from rulka.params import Params, reference_params
from rulka.simulator.render import POSE_SIZE, FrameRenderer, camera_array, render_rgb
from rulka.simulator.scene import bake_scene
from rulka.simulator.simulator import Simulator
from rulka.tracks.generate import generate_track
from rulka.tracks.track import Track

CAR_RACING = "CarRacing-v3"
TRIES = 25
TRY_S = 0.05
"""CPU seconds of one try of one variant."""
Variants = dict[str, Callable[[], int]]


def tracks(params: Params) -> dict[str, Track]:
    """Returns generated tracks by name."""
    hills = params.track
    settings = {
        "hills": hills,
        "hills, 3 km": hills.model_copy(update={"length_m": 3000.0, "seed": 3}),
    }
    return {name: generate_track(**track.model_dump()) for name, track in settings.items()}


def frame_variants(params: Params) -> Variants:
    """Returns functions that draw frames and return how many, by name."""
    variants: Variants = {}
    camera = camera_array(params.simulator.camera)
    for name, track in tracks(params).items():
        for count, height, width in ((1, 64, 64), (16, 64, 64), (256, 64, 64), (64, 120, 160)):
            simulator = spread_cars(track, count, params)
            renderer = FrameRenderer(simulator.cars, simulator.zone_index, bake_scene(track), camera)
            out = np.empty((count, height, width), np.uint8)

            def draw(renderer=renderer, out=out) -> int:  # noqa: ANN001
                renderer.render(out)
                return len(out)

            variants[f"{name}, {width} x {height} grey, {count} cars"] = draw
    return variants | {"hills, 640 x 480 colour, 1 car": colour_variant(params)}


def colour_variant(params: Params) -> Callable[[], int]:
    """Returns a function that draws one picture for people."""
    track = tracks(params)["hills"]
    simulator, scene = spread_cars(track, 1, params), bake_scene(track)

    def draw() -> int:
        render_rgb(scene, simulator.cars[0, :POSE_SIZE], int(simulator.zone_index[0]), 640, 480)
        return 1

    return draw


def spread_cars(track: Track, count: int, params: Params) -> Simulator:
    """Places cars all over a track."""
    rng = np.random.default_rng(0)
    simulator = Simulator(track, count, params.simulator, action_table(params.actions.ticks_per_action))
    places = rng.uniform(0, track.length_m - 1.0, count), rng.uniform(-6, 6, count), rng.normal(0, 0.15, count)
    simulator.reset(np.ones(count, bool), *places)
    return simulator


def step_variants(params: Params) -> Variants:
    """Returns functions that take decisions and return how many that were, by name."""
    variants: Variants = {}
    for count in (1, 16, 256):
        variants[f"hills, kernels, {count} cars"] = kernel_step(tracks(params)["hills"], count, params)
    for count in (1, 16, 256):
        env = RaceVectorEnv(count, start_anywhere=1.0)
        image = np.empty((count, 1, params.observation.height, params.observation.width), np.uint8)
        floats, potential = np.empty((count, NUM_FLOATS), np.float32), np.empty(count, np.float32)
        env.reset_into(image, floats, potential, seed=0)
        rng = np.random.default_rng(0)

        def step(env=env, image=image, floats=floats, potential=potential, rng=rng) -> int:  # noqa: ANN001
            env.step_into(rng.choice(3, size=len(image), p=(0.8, 0.1, 0.1)), image, floats, potential)
            return len(image)

        variants[f"hills, vector environment, {count} cars"] = step
    single = RaceEnv(start_anywhere=1.0)
    single.reset(seed=0)

    def step_single() -> int:
        _, _, terminated, truncated, _ = single.step(0)
        if terminated or truncated:
            single.reset()
        return 1

    variants["hills, single environment"] = step_single
    if importlib.util.find_spec("Box2D") is not None:
        variants[CAR_RACING] = car_racing_step()
    return variants


def kernel_step(track: Track, count: int, params: Params) -> Callable[[], int]:
    """Returns a function that takes one decision with every car: physics, floats and frames, no environment around."""
    simulator, camera = spread_cars(track, count, params), camera_array(params.simulator.camera)
    renderer = FrameRenderer(simulator.cars, simulator.zone_index, bake_scene(track), camera)
    out, floats = np.empty((count, 64, 64), np.uint8), np.empty((count, NUM_FLOATS), np.float32)
    actions, rng = np.zeros(count, np.int64), np.random.default_rng(0)

    def step() -> int:
        simulator.step(actions)
        is_over = simulator.is_off_track | simulator.is_finished
        if is_over.any():
            along_m = rng.uniform(0.0, track.length_m - 20.0, count)
            simulator.reset(is_over, along_m, np.zeros(count), np.zeros(count))
        renderer.render(out)
        simulator.floats(floats)
        return count

    return step


def car_racing_step() -> Callable[[], int]:
    """Returns a function that steps gymnasium's CarRacing-v3, 96 x 96 in colour, some times."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    env = gymnasium.make("CarRacing-v3", continuous=False)
    env.reset(seed=0)
    rng = np.random.default_rng(0)

    def step() -> int:
        for _ in range(20):
            _, _, terminated, truncated, _ = env.step(int(rng.integers(5)))
            if terminated or truncated:
                env.reset()
        return 20

    return step


def measure(variants: Variants) -> dict[str, float]:
    """Returns items per CPU second of each variant."""
    best = dict.fromkeys(variants, 0.0)
    for attempt in range(TRIES + 1):
        for name, run in variants.items():
            total, start_s = 0, time.process_time()
            while (spent_s := time.process_time() - start_s) < (TRY_S if attempt else 0.0) or not total:
                total += run()
            if attempt:
                best[name] = max(best[name], total / spent_s)
    return best


def main() -> None:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    params = reference_params()
    rates = {"frames": measure(frame_variants(params)), "steps": measure(step_variants(params))}
    if arguments.json:
        print(json.dumps(rates))
        return
    for unit, variants in rates.items():
        print(f"\n{unit} per CPU second")
        unit_rate = variants.get(CAR_RACING)
        for name, rate in variants.items():
            ratio = f"{rate / unit_rate:8,.0f} x CarRacing-v3" if unit_rate else f"{1e6 / rate:8.2f} us each"
            print(f"  {name:38s} {rate:10,.0f} {ratio}")


if __name__ == "__main__":
    main()
