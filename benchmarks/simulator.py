"""How fast the simulator is on one thread: `python -m benchmarks.simulator [--json] [--seconds S]`.

Thousand decisions (50 ms of driving) per second of CPU time on the track of params.yaml, driven by the built-in driver
from starts all over it, for 1, 16 and 256 cars: physics alone, with the 184 floats, with floats and one grey frame
each, and the whole vector environment. Variants are interleaved and the best of their tries is taken. Where Box2D is
installed, gymnasium's CarRacing-v3 is measured in the same run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Callable

import gymnasium
import numpy as np
from numpy.typing import NDArray

from rulka.actions import action_table
from rulka.observation import NUM_FLOATS
from rulka.params import Params, read_params
from rulka.simulator.camera import camera_array
from rulka.simulator.driver import PurePursuitDriver, sample_skills
from rulka.simulator.render import render_frames
from rulka.simulator.scene import bake_scene
from rulka.simulator.simulator import Simulator
from rulka.tracks.generate import generate_track
from rulka.tracks.track import Track

NUM_CARS = (1, 16, 256)
NUM_DECISIONS = 60
"""Decisions of one pass, 3 s of driving from the same starts."""
Pass = Callable[[], int]


def start_anywhere(simulator: Simulator, seed: int) -> None:
    """Puts every car at its own place, rolling."""
    rng, num = np.random.default_rng(seed), simulator.num_cars
    last_m = simulator.track.length_m - 250.0
    simulator.reset(np.ones(num, bool), rng.uniform(0, last_m, num), rng.uniform(-3, 3, num), 0.0, 20.0)


def driven_actions(params: Params, track: Track, num_cars: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Returns the saved starts of the cars and [T, N] what the built-in driver does from there."""
    simulator = Simulator(track, num_cars, params.simulator, action_table(params.actions.ticks_per_action))
    driver = PurePursuitDriver(
        track, params.simulator.physics, sample_skills(num_cars, params.races.driver, seed=0), seed=0
    )
    start_anywhere(simulator, seed=0)
    starts, actions = simulator.save(), []
    for _ in range(NUM_DECISIONS):
        actions.append(driver.actions(simulator))
        simulator.step(actions[-1])
    return starts, np.array(actions)


def passes(params: Params, track: Track, num_cars: int) -> dict[str, Pass]:
    """Returns by name what is measured; each returns how many decisions it drove."""
    starts, actions = driven_actions(params, track, num_cars)
    simulator = Simulator(track, num_cars, params.simulator, action_table(params.actions.ticks_per_action))
    scene, camera = bake_scene(track), camera_array(params.simulator.camera)
    floats = np.zeros((num_cars, NUM_FLOATS), np.float32)
    image = np.zeros((num_cars, params.observation.height, params.observation.width), np.uint8)

    def drive(with_floats: bool, with_frames: bool) -> int:
        simulator.restore(starts)
        for chosen in actions:
            simulator.step(chosen)
            if with_floats:
                simulator.floats(floats)
            if with_frames:
                render_frames(simulator.cars, simulator.zone_index, scene, camera, image)
        return actions.size

    return {
        "physics": lambda: drive(False, False),
        "physics, floats": lambda: drive(True, False),
        "physics, floats, frames": lambda: drive(True, True),
    }


def environment_pass(name: str, num_cars: int, num_decisions: int) -> Pass:
    """Returns a pass of a gymnasium environment under random actions; a race that ends begins anew."""
    env = gymnasium.make_vec(name, num_envs=num_cars, vectorization_mode="vector_entry_point")
    env.action_space.seed(0)
    env.reset(seed=0)

    def drive() -> int:
        for _ in range(num_decisions):
            env.step(env.action_space.sample())
        return num_decisions * num_cars

    return drive


def car_racing_pass() -> Pass:
    """Returns a pass of CarRacing-v3, 96 x 96 pixels, one action every 20 ms."""
    env = gymnasium.make("CarRacing-v3", continuous=False)
    env.action_space.seed(0)
    env.reset(seed=0)

    def drive() -> int:
        for _ in range(NUM_DECISIONS):
            *_observation, terminated, truncated, _info = env.step(env.action_space.sample())
            if terminated or truncated:
                env.reset()
        return NUM_DECISIONS

    return drive


def measure(variants: dict[str, Pass], seconds: float) -> dict[str, float]:
    """Returns decisions per CPU second of each, the best of interleaved passes that take `seconds` each in all."""
    spent, best = dict.fromkeys(variants, 0.0), dict.fromkeys(variants, 0.0)
    for run in variants.values():
        run()  # compiles
    while min(spent.values()) < seconds:
        for name, run in variants.items():
            start_s = time.process_time()
            num_decisions = run()
            took_s = time.process_time() - start_s
            spent[name] += took_s
            best[name] = max(best[name], num_decisions / took_s)
    return best


def measure_all(params: Params, seconds: float) -> dict[str, dict[str, float]]:
    """Returns decisions per CPU second by number of cars and variant."""
    track = generate_track(**params.track.model_dump())
    rates = {}
    for num_cars in NUM_CARS:
        variants = passes(params, track, num_cars)
        variants["vector environment"] = environment_pass("rulka/Race-v0", num_cars, NUM_DECISIONS)
        rates[f"{num_cars} cars"] = measure(variants, seconds)
    if importlib.util.find_spec("Box2D") is not None:
        rates["CarRacing-v3"] = measure({"environment": car_racing_pass()}, seconds)
    return rates


def main() -> None:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--seconds", type=float, default=1.0, help="CPU seconds spent on each number of the table")
    arguments = parser.parse_args()
    rates = measure_all(read_params(), arguments.seconds)
    if arguments.json:
        print(json.dumps(rates))
        return
    print("thousand decisions per second of CPU time, one thread")
    for group, variants in rates.items():
        print(f"\n{group}")
        for name, rate in variants.items():
            print(f"  {name:28s} {rate / 1000:10,.1f}")


if __name__ == "__main__":
    main()
