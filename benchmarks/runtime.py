"""Throughput of collectors and learner, separately and together.

    python -m benchmarks.runtime [--seconds S] [--device cuda] [--json]

Learners and central inference run on the device (default: CPU), collectors on the CPU.

Networks with the sizes of params.yaml and random weights race on the track of params.yaml. Work of one process is
counted per second of its CPU time, which is robust to other load; work of several processes, per second of wall time.
A decision is one "env step" of one car.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from benchmarks.agents import agent_spec, peak_bytes
from benchmarks.harness import show
from rulka.agents.algorithms import make_actor, make_learner
from rulka.agents.params import Algorithm
from rulka.agents.shared.acting import NetworkActor
from rulka.agents.shared.learner import Learner
from rulka.agents.shared.spec import AgentSpec
from rulka.buffers.experience import BlockSpec, ExperienceBlock, new_block
from rulka.contracts.actions import action_table
from rulka.contracts.observation import reference_normalisation
from rulka.contracts.schedule import Moment
from rulka.machine.device import CPU, DEVICE_VARIABLE, choose_device, weights_on_host
from rulka.machine.precision import raise_malloc_thresholds
from rulka.params import Params, read_params
from rulka.runtime.central import Inference
from rulka.runtime.collector import Collector, LocalActor
from rulka.runtime.collectors import CollectLimits, CollectorProcesses
from rulka.runtime.connect import train_run
from rulka.runtime.messages import Request
from rulka.runtime.metrics_log import METRICS_FILE, read_metrics
from rulka.runtime.shared import SharedBlocks, SharedWeights, layout_of
from rulka.runtime.specs import RunSpec
from rulka.simulator.race_settings import RaceSettings
from rulka.tracks.generate import generate_track
from rulka.tracks.track import load_track
from rulka.training.environment import block_spec
from rulka.training.race_environment import RaceEnvironment

CENTRAL_CARS = (64, 256, 1024, 4096)
NEVER = 10**9
STARTUP_S = 12.0
"""Extra time for collector processes to import and compile, before the measured time."""


def _block_spec(params: Params) -> BlockSpec:
    return block_spec(params.observation, params.train, action_table(params.actions.ticks_per_action))


def race_settings(params: Params) -> RaceSettings:
    """Returns the race settings of collectors."""
    return RaceSettings.for_training(
        params.observation, params.actions, params.simulator, params.race_end, params.rewards, params.train, 1
    )


def per_cpu_second(run: Callable[[], int], seconds: float) -> float:
    """Returns the units of work that `run` does per CPU second: two warm-up calls, then calls for `seconds`."""
    run()
    run()
    start_s, count = time.process_time(), 0
    while time.process_time() - start_s < seconds:
        count += run()
    return count / (time.process_time() - start_s)


def central(params: Params, device: torch.device, seconds: float) -> dict[str, float]:
    """Measures decisions per second of central inference, through request slots in shared memory, without driving.

    Four collectors share the cars, and all send requests at once.
    """
    rates = {}
    for algorithm in ("ppo", "iqn"):
        spec = agent_spec(params, algorithm, params.train.precision)
        weights = weights_on_host(make_learner(spec, 0).network)
        for num_cars in CENTRAL_CARS:
            slot = replace(_block_spec(params), num_steps=1, num_cars=num_cars // 4)
            rates[f"{algorithm}, {num_cars} cars"] = _central_rate(spec, slot, weights, device, seconds)
    return rates


def _central_rate(
    spec: AgentSpec, slot: BlockSpec, weights: Mapping[str, torch.Tensor], device: torch.device, seconds: float
) -> float:
    slots, shared = [SharedBlocks(slot, 1) for _ in range(4)], SharedWeights(layout_of(weights))
    pipes = [cast(tuple[Connection, Connection], multiprocessing.Pipe()) for _ in slots]
    ours, theirs = cast(tuple[Connection, Connection], multiprocessing.Pipe())
    try:
        shared.publish(0, weights)
        for each in slots:  # fresh slots are poisoned
            each[0].image[:], each[0].floats[:] = 0, reference_normalisation().mean
        ends = tuple(end for _, end in pipes)
        make = partial(make_actor, spec, 0, device)
        inference = Inference(make, device, slots, shared, ends, theirs)
        requests = {index: Request(0, Moment(0)) for index in range(len(slots))}

        def answer() -> None:
            inference.respond(requests)
            for end, _ in pipes:
                end.recv()

        for _ in range(3):
            answer()
        start_s, count = time.perf_counter(), 0
        while not count or time.perf_counter() - start_s < seconds:
            answer()
            count += len(slots) * slot.num_cars
        return count / (time.perf_counter() - start_s)
    finally:
        for end in (ours, theirs, *(end for pair in pipes for end in pair)):
            end.close()


def alone(params: Params, track: Path, seconds: float, device: torch.device) -> dict[str, float]:
    """Measures cars, forward pass, collector and learner, one after the other in this process."""
    spec = _block_spec(params)
    block, num_cars = new_block(spec), spec.num_cars
    cars = RaceEnvironment(race_settings(params), [load_track(track)]).make_cars(num_cars, at_line=False)
    cars.reset_into(block.image[0], block.floats[0], block.potential[0], 1)
    forward = np.zeros(num_cars, np.int64)

    def drive() -> int:
        cars.step_into(forward, block.image[1], block.floats[1], block.potential[1])
        return num_cars

    rates = {"cars: simulate and render": per_cpu_second(drive, seconds)}
    for algorithm in ("ppo", "iqn"):
        actor = make_actor(agent_spec(params, algorithm, params.train.precision), 0)
        image, floats = torch.from_numpy(block.image[0]), torch.from_numpy(block.floats[0])
        rates[f"{algorithm}: forward pass of {num_cars}"] = per_cpu_second(partial(act, actor, image, floats), seconds)
        collector = Collector(0, cars, LocalActor(actor), 1, spec)
        rates[f"{algorithm}: collector"] = per_cpu_second(partial(collect, collector, block), seconds)
        learner = make_learner(agent_spec(params, algorithm, params.train.precision), 0, device)
        batch_size = getattr(params, algorithm).batch_size
        rates[f"{algorithm}: learner, samples"] = per_cpu_second(partial(learn, learner, block, batch_size), seconds)
    return rates


def act(actor: NetworkActor, image: torch.Tensor, floats: torch.Tensor) -> int:
    """Takes one decision for every car and returns the number of cars."""
    return len(actor.act(image, floats, explore=True).action)


def collect(collector: Collector, block: ExperienceBlock) -> int:
    """Fills a block and returns its number of decisions."""
    collector.fill(block, Moment(0))
    return block.reward.size


def learn(learner: Learner, block: ExperienceBlock, batch_size: int) -> int:
    """Feeds a learner until it makes an update, and returns the number of samples used."""
    while (values := learner.update()) is None:
        learner.insert(block, 0, learner.version)
    return int(values["gradient_steps"]) * batch_size


def together(
    params: Params, track: Path, algorithm: Algorithm, num_collectors: int, seconds: float, device: torch.device
) -> dict[str, Any]:
    """Trains for a while and returns env steps per second, and the shares of busy learner and waiting collectors."""
    limits = {"max_env_steps": NEVER, "max_minutes": (seconds + (STARTUP_S if num_collectors else 0.0)) / 60.0}
    few = {"order": "free", "num_checks": 1, "check_races": 1, "final_check_races": 1, "checkpoint_s": 1e9}
    train = params.train.model_copy(update={"num_collectors": num_collectors, **limits, **few})
    with tempfile.TemporaryDirectory() as folder:
        run = run_spec(params.model_copy(update={"train": train}), track, algorithm, Path(folder), device)
        with redirect_stdout(sys.stderr):  # keeps progress out of the result
            train_run(run)
        lines = [line for line in read_metrics(Path(folder) / METRICS_FILE) if line["env_steps"] and line["version"]]
    if len(lines) < 2:
        return {"env_steps_per_s": None}
    first, last = lines[0], lines[-1]
    shares = {name: _mean(lines, name) for name in ("learner_busy_share", "collectors_waiting_share")}
    wall_s = max(1e-9, 60.0 * (last["minutes"] - first["minutes"]))
    return {"env_steps_per_s": (last["env_steps"] - first["env_steps"]) / wall_s} | shares


def _learner_of(spec: AgentSpec, num_learners: int, device: torch.device) -> Learner:
    return make_learner(replace(spec, params=spec.params.share_of_learner(num_learners)), 0, device)


def run_spec(params: Params, track: Path, algorithm: Algorithm, folder: Path, device: torch.device = CPU) -> RunSpec:
    """Returns the spec of a run with the settings of `params.train`."""
    spec = agent_spec(params, algorithm, params.train.precision)
    races = RaceEnvironment(race_settings(params), [load_track(track)])
    return RunSpec(
        make_cars=races.make_cars,
        cars_of=races.cars_of_collector,
        make_actor=partial(make_actor, spec),
        collecting_actor=partial(make_actor, spec),
        build_learner=partial(_learner_of, spec),
        block=_block_spec(params),
        train=params.train,
        folder=folder,
        label=f"{algorithm}, {params.train.num_collectors or 'no'} collector processes",
        device=device,
    )


def inference(
    params: Params, track: Path, num_cars: int, place: str, seconds: float, device: torch.device = CPU
) -> float:
    """Runs four collectors without a learner and returns env steps per second of wall time.

    Args:
        params: settings of networks and cars.
        track: track file.
        num_cars: cars per collector.
        place: where actions are chosen, `train.inference`.
        seconds: duration to measure, after every collector has filled a block.
        device: device of central inference.
    """
    update = {
        "order": "free",
        "num_collectors": 4,
        "cars_per_collector": num_cars,
        "block_steps": 16,
        "inference": place,
    }
    params = params.model_copy(update={"train": params.train.model_copy(update=update)})
    with tempfile.TemporaryDirectory() as folder:
        run = run_spec(params, track, "iqn", Path(folder), device)
        tensors = weights_on_host(run.make_learner().network)
        collectors = CollectorProcesses(run, tensors, env_steps=0, num_starts=0)
        try:
            collectors.start()
            collectors.publish(0, tensors)
            heard: set[int] = set()
            while len(heard) < 4:
                heard |= set(take_blocks(collectors))
            start_s, count = time.monotonic(), 0
            while time.monotonic() - start_s < seconds:
                count += len(take_blocks(collectors))
        finally:
            collectors.stop()
    return count * run.block.num_steps * num_cars / (time.monotonic() - start_s)


def take_blocks(collectors: CollectorProcesses) -> list[int]:
    """Waits for blocks, releases them unread, and returns the indices of their collectors."""
    deliveries = collectors.collect(CollectLimits(NEVER, 1.0))
    for delivery in deliveries:
        collectors.release(delivery)
    return [delivery.collector for delivery in deliveries]


def _mean(lines: list[dict[str, Any]], name: str) -> float | None:
    values = [line[name] for line in lines if line.get(name) is not None]
    return float(np.mean(values)) if values else None


def main() -> None:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each run with learner and collectors")
    parser.add_argument("--device", default=os.environ.get(DEVICE_VARIABLE, "cpu"), help="auto, cpu, cuda or mps")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    raise_malloc_thresholds()
    logging.disable(logging.WARNING)
    params, device = read_params(), choose_device(arguments.device).device
    params = params.model_copy(update={"ppo": params.algorithms["ppo"].model_copy(update={"value_warmup_steps": 0})})
    with tempfile.TemporaryDirectory() as folder:
        track = Path(folder) / "track.npz"
        generate_track(**params.track.model_dump()).save(track)
        result: dict[str, Any] = {"alone": alone(params, track, arguments.seconds / 8, device)}
        result["together"] = {
            f"{algorithm}, {num} collectors": together(params, track, algorithm, num, arguments.seconds, device)
            for algorithm in ("ppo", "iqn")
            for num in (0, 2)
        }
        result["inference"] = {
            f"{cars} car{'s' * (cars > 1)} each, {place}": inference(
                params, track, cars, place, arguments.seconds / 2, device
            )
            for cars, place in product((1, 32), ("local", "central"))
        }
        result["central"] = central(params, device, arguments.seconds / 8)
        if (peak := peak_bytes(device)) is not None:
            result["peak_gb"] = peak / 1e9
    show(result, arguments.json)


if __name__ == "__main__":
    main()
