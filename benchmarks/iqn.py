"""How fast IQN learns and acts beside plain eager float32: `python -m benchmarks.iqn [--device cuda] [--json]`.

With `--device` it tells instead how many samples a second of wall time IQN learns from there, at batches of 512 and
4,096, and the most memory that its tensors took. The ring lies there too, where it fits.

With `--agent FOLDER --frames FOLDER`, a trained agent and `data/frames`, it tells instead how often the fast ways to
act take the action of the whole network in float32.

One thread, 64 x 64 images, 184 floats, 12 actions, the reference network of 1,051,805 parameters (`dense_hidden` 1024).
Variants are interleaved; medians of CPU time are given, and the ratio to the naive variant of the same run.

- update: batch 512, 8 x 8 quantiles, double DQN; the naive one is `benchmarks._naive_iqn`. Beside it stands the rate at
  which this core multiplies matrices, the bound of every update that has to do the same sums. What ships is another
  network: fractions at the hidden units, and a frozen encoder, whose features the ring keeps.
- act: greedy decisions; the naive ones are the whole network at random fractions for each observation, as many as the
  reference has or as the others. "measured" is ONNX Runtime in float32, or bfloat16 where that is faster.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks._naive_iqn import NaiveIqn, values
from benchmarks.agents import ACTING, PRECISIONS, agent_spec, random_block
from models.encoders.config import ENCODER_CONFIG
from models.iqn import IqnNetwork, draw_fractions, fixed_fractions
from models.prepared import PreparedNetwork, can_prepare
from rulka.agents.algorithms import ALGORITHMS, make_actor
from rulka.agents.iqn import IqnLearner
from rulka.agents.network_params import NetworkParams
from rulka.agents.networks import build_iqn
from rulka.agents.precision import raise_malloc_thresholds
from rulka.artifacts import load_artifact
from rulka.buffers.experience import BlockSpec
from rulka.datasets.frames import FrameDataset
from rulka.device import DEVICE_VARIABLE, choose_device, peak_bytes, wait_for
from rulka.observation import NUM_FLOATS
from rulka.params import Params, read_params
from rulka.schedule import Moment, Schedule

BATCH, NUM_QUANTILES, NUM_QUANTILES_ACTING = 512, 8, 32
REFERENCE_HIDDEN = 1024
GEMM_SIZE = 2048
NUM_SHOWN = 2000
DEVICE_BATCHES, DEVICE_STEPS = (512, 4096), 50
NUM_ROUNDS = 15
NAIVE, SHIPPED = "naive", "as shipped"

Variants = dict[str, Callable[[], object]]


def reference_params() -> Params:
    """Returns params.yaml with the network of the reference, the encoder of which learns."""
    params = read_params()
    body = params.network.iqn.model_copy(update={"embedding_at": "state", "guided": False})
    network = params.network.model_copy(update={"dense_hidden": REFERENCE_HIDDEN, "iqn": body})
    no_limits = Schedule(interpolation="linear", points=((0, 0.0),))
    changes = {"rate_of": params.ppo.rate_of, "warmup_steps": 0, "guide_floor": no_limits}
    learning = params.iqn.model_copy(update=changes)
    return params.model_copy(update={"network": network, "iqn": learning})


def update_variants(params: Params) -> Variants:
    """Returns gradient steps by name, drawing of the batch included."""
    block = random_block(BlockSpec(32, 32, params.observation.height, params.observation.width, NUM_FLOATS), 0)
    settings = {
        "batch_size": BATCH,
        "num_quantiles": NUM_QUANTILES,
        "start_steps": 1024,
        "buffer_steps": 4096,
        "samples_per_insert": 1e9,
        "gradient_steps_per_update": 1,
    }
    settings_of: dict[str, Params] = {"rulka": params, SHIPPED: read_params()}
    learners = {
        f"{name} {precision}": IqnLearner(agent_spec(some, "iqn", precision, **settings), 0)
        for name, some in settings_of.items()
        for precision in PRECISIONS
    }
    for learner in learners.values():
        for _ in range(3):
            learner.insert(block, 0, 0)
    first = learners["rulka float32"]
    iqn = params.iqn.model_copy(update=settings)
    twin = NaiveIqn(first.network, iqn, iqn.learning_rate.at(Moment(0)))
    generator = torch.Generator().manual_seed(0)

    def naive() -> object:
        batch = first.draw().batch
        fractions = [draw_fractions(BATCH, NUM_QUANTILES, generator) for _ in range(3)]
        return twin.learn(batch, fractions[0], fractions[1], fractions[2])

    return {NAIVE: naive} | {name: learner.update for name, learner in learners.items()}


def device_settings(batch_size: int) -> dict[str, float]:
    """Returns what is changed of IQN's settings to measure updates of batches of a size."""
    return {
        "batch_size": batch_size,
        "start_steps": max(1024, batch_size),
        "buffer_steps": 65536,
        "samples_per_insert": 1e9,
        "gradient_steps_per_update": DEVICE_STEPS,
    }


def rates_on(device: torch.device, params: Params) -> dict[str, float]:
    """Returns samples a second of updates on a device, and its peak memory in GB where it is counted."""
    size = params.observation.height, params.observation.width
    block = random_block(BlockSpec(32, 32, *size, NUM_FLOATS), 0)
    rates = {}
    for batch_size in DEVICE_BATCHES:
        for precision in PRECISIONS:
            learner = IqnLearner(agent_spec(params, "iqn", precision, **device_settings(batch_size)), 0, device)
            for _ in range(8):
                learner.insert(block, 0, 0)
            learner.update()  # to warm up
            wait_for(device)
            start_s = time.perf_counter()
            learner.update()
            wait_for(device)
            rate = DEVICE_STEPS * batch_size / (time.perf_counter() - start_s)
            rates[f"{precision}, batch {batch_size}: samples/s"] = rate
    peak = peak_bytes(device)
    return rates if peak is None else rates | {"peak memory: GB": peak / 1e9}


def act_variants(params: Params, num_cars: int) -> Variants:
    """Returns greedy decisions by name."""
    block = random_block(BlockSpec(1, num_cars, params.observation.height, params.observation.width, NUM_FLOATS), 0)
    image, floats = torch.from_numpy(block.image[0]), torch.from_numpy(block.floats[0])
    generator = torch.Generator().manual_seed(0)
    variants: Variants = {}
    for num_quantiles in (NUM_QUANTILES_ACTING, NUM_QUANTILES):
        for precision in ACTING:
            actor = make_actor(agent_spec(params, "iqn", precision, num_quantiles_acting=num_quantiles), 0)
            name = f"rulka {precision}, {num_quantiles} fractions"
            variants[name] = lambda actor=actor: actor.act(image, floats, explore=False)
    network = agent_spec(params, "iqn", "float32").fresh_network(build_iqn, 0)

    @torch.no_grad()
    def naive(num_quantiles: int) -> object:
        tau = draw_fractions(num_cars, num_quantiles, generator)
        return values(network, image, floats, tau).mean(dim=1).argmax(dim=1).numpy()

    few = {f"{NAIVE}, {NUM_QUANTILES} fractions": lambda: naive(NUM_QUANTILES)}
    return {NAIVE: lambda: naive(NUM_QUANTILES_ACTING)} | few | variants


def agreement(agent: Path, frames: Path) -> dict[str, float]:
    """Returns the share of frames in which each way to act takes the action of the whole network in float32.

    The fractions are those the agent acts with. How often two draws of 32 random ones agree stands beside it: a network
    whose actions are nearly equal is not of one mind itself.
    """
    artifact = load_artifact(agent, ("agent",))
    config, observation = artifact.config, artifact.observation.params()
    sizes = NetworkParams.model_validate(config["network"])
    encoder, num_actions = ENCODER_CONFIG.validate_python(config["encoder"]), artifact.table.num_actions
    network = ALGORITHMS["iqn"].build_network(observation, encoder, sizes, artifact.normalisation, num_actions)
    assert isinstance(network, IqnNetwork)
    network.load_state_dict(artifact.tensors)
    network.eval().requires_grad_(False)
    dataset = FrameDataset(frames, "train")
    shown = np.sort(np.random.default_rng(0).choice(len(dataset), NUM_SHOWN, replace=False))
    batch = dataset.batch(shown)
    generator = torch.Generator().manual_seed(0)
    tau = fixed_fractions(config["iqn"]["num_quantiles_acting"])

    def whole(tau: torch.Tensor) -> torch.Tensor:
        return network(batch.image, batch.floats, tau).value.mean(dim=1).argmax(dim=1)

    expected = whole(tau.expand(NUM_SHOWN, -1))
    low = copy.deepcopy(network)
    low.store_in(torch.bfloat16)
    ways: dict[str, Any] = {"float32": network, "bfloat16": low}
    chosen = {name: way.advantages(batch.image, batch.floats, tau).argmax(dim=1) for name, way in ways.items()}
    if can_prepare(network) and (head := network.acting_head(tau)) is not None:
        chosen["ONNX Runtime"] = PreparedNetwork(network, head)(batch.image, batch.floats).argmax(dim=1)
    shares = {f"rulka {name}": float((choice == expected).float().mean()) for name, choice in chosen.items()}
    draws = [whole(draw_fractions(NUM_SHOWN, NUM_QUANTILES_ACTING, generator)) for _ in range(2)]
    return shares | {"two random draws": float((draws[0] == draws[1]).float().mean())}


def gemm_rates() -> dict[str, float]:
    """Returns the GFLOP per CPU second of a large matrix product in each precision."""
    rates = {}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        factors = [torch.randn(GEMM_SIZE, GEMM_SIZE).to(dtype) for _ in range(2)]
        ms = median_ms({name: lambda factors=factors: factors[0] @ factors[1]}, 5)[name]
        rates[name] = 2.0 * GEMM_SIZE**3 / ms / 1e6
    return rates


def median_ms(variants: Variants, num_rounds: int, num_calls: int = 1) -> dict[str, float]:
    """Returns the median CPU milliseconds of a call of each variant, interleaved, after two calls to warm up."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for attempt in range(num_rounds + 2):
        for name, run in variants.items():
            start_s = time.process_time()
            for _ in range(num_calls):
                run()
            if attempt >= 2:
                times[name].append(1000.0 * (time.process_time() - start_s) / num_calls)
    return {name: statistics.median(values_ms) for name, values_ms in times.items()}


def main() -> None:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--agent", type=Path, help="folder of a trained IQN agent")
    parser.add_argument("--frames", type=Path, default=Path("data/frames"), help="what it is shown")
    parser.add_argument(
        "--device",
        default=os.environ.get(DEVICE_VARIABLE),
        help="auto, cpu, cuda, cuda:1 or mps: measure updates there",
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.device is not None:
        rates = rates_on(choose_device(arguments.device).device, reference_params())
        text = "\n".join(f"{name:40s} {rate:12,.1f}" for name, rate in rates.items())
        print(json.dumps(rates) if arguments.json else text)
        return
    if arguments.agent is not None:
        for name, share in agreement(arguments.agent, arguments.frames).items():
            print(f"{name:24s} {100 * share:7.2f} % of {NUM_SHOWN} frames")
        return
    raise_malloc_thresholds()
    params = reference_params()
    rates = gemm_rates()
    times = {f"update, batch {BATCH}": median_ms(update_variants(params), NUM_ROUNDS)}
    for num_cars, num_calls in ((1, 50), (64, 2)):
        times[f"act, {num_cars} cars"] = median_ms(act_variants(params, num_cars), NUM_ROUNDS, num_calls)
    if arguments.json:
        print(json.dumps({"cpu_ms": times, "gemm_gflops": rates}))
        return
    print(f"matrix products, GFLOP/s: float32 {rates['float32']:,.0f}, bfloat16 {rates['bfloat16']:,.0f}")
    for group, variants in times.items():
        print(f"\n{group + ': CPU ms':40s} {'':>9s} {'times as fast':>14s}")
        for name, value in variants.items():
            print(f"  {name:38s} {value:9.3f} {variants[NAIVE] / value:14.2f}")


if __name__ == "__main__":
    main()
