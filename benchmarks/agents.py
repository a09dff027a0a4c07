"""How fast agents learn and act on this machine: `python -m benchmarks.agents [--device cuda] [--json]`.

One thread, reference sizes of params.yaml, random observations. Variants are interleaved and the best of some tries
is taken; samples are decisions per second of wall time. On the CPU where no device is named; on a GPU with as many cars
as central inference may have, and with the most memory that tensors took there.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable

import numpy as np
import torch

from rulka.actions import Choices
from rulka.agents.algorithms import make_actor, make_learner
from rulka.agents.params import Algorithm
from rulka.agents.precision import Precision, raise_malloc_thresholds
from rulka.agents.spec import AgentSpec
from rulka.buffers.experience import BlockSpec, ExperienceBlock, new_block
from rulka.device import CPU, DEVICE_VARIABLE, choose_device, peak_bytes, wait_for
from rulka.observation import NUM_FLOATS, reference_normalisation
from rulka.params import Params, read_params
from rulka.schedule import Moment

NUM_ACTIONS = 12
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")
ACTING: tuple[Precision, ...] = (*PRECISIONS, "measured")
AFTER_WARMUP = Moment(10**9)
CARS, CARS_ON_DEVICE = (1, 32, 64), (1, 64, 256, 1024, 4096)


def random_block(spec: BlockSpec, seed: int) -> ExperienceBlock:
    """Returns a block of noise without resets."""
    rng = np.random.default_rng(seed)
    normalisation = reference_normalisation()
    block = new_block(spec)
    block.image[...] = rng.integers(0, 256, block.image.shape, dtype=np.uint8)
    noise = rng.standard_normal(block.floats.shape, dtype=np.float32)
    block.floats[...] = normalisation.mean + normalisation.std * noise
    block.action[...] = rng.integers(0, NUM_ACTIONS, block.action.shape, dtype=np.uint8)
    block.reward[...] = rng.standard_normal(block.reward.shape, dtype=np.float32)
    block.log_prob[...] = -np.log(NUM_ACTIONS)
    block.is_greedy[...] = True
    return block


def agent_spec(params: Params, algorithm: Algorithm, precision: Precision, **changes: object) -> AgentSpec:
    """Returns the spec of an agent with some settings of its algorithm changed."""
    settings = params.algorithms[algorithm]
    return AgentSpec(
        algorithm,
        params.observation,
        params.encoder,
        params.network,
        type(settings).model_validate(settings.model_dump() | changes),
        Choices(NUM_ACTIONS),
        reference_normalisation(),
        precision=precision,
    )


def update_variants(params: Params, device: torch.device = CPU) -> dict[str, Callable[[], int]]:
    """Returns updates by name; each returns how many samples it learned from."""
    variants: dict[str, Callable[[], int]] = {}
    size = (params.observation.height, params.observation.width)
    block = random_block(BlockSpec(32, 32, *size, NUM_FLOATS), 0)
    batch = params.ppo.batch_size
    steps = {"steps_per_update": 2 * batch, "value_warmup_steps": 0, "max_kl": 1e9, "max_versions_behind": 9}
    for precision in PRECISIONS:
        for epochs, encoder_epochs in ((1, 1), (3, 1), (3, 0)):
            settings = steps | {"epochs": epochs, "encoder_epochs": encoder_epochs}
            learner = make_learner(agent_spec(params, "ppo", precision, **settings), 0, device)

            def update_ppo(learner=learner, num_samples=2 * batch * epochs) -> int:  # noqa: ANN001
                learner.insert(block, 0, learner.version)
                assert learner.update() is not None
                return num_samples

            variants[f"ppo {precision}, encoder in {encoder_epochs} of {epochs} epochs"] = update_ppo
        settings = {
            "start_steps": 1024,
            "buffer_steps": 4096,
            "samples_per_insert": 1e9,
            "gradient_steps_per_update": 2,
        }
        learner = make_learner(agent_spec(params, "iqn", precision, **settings), 0, device)
        for _ in range(3):
            learner.insert(block, 0, 0)

        def update_iqn(learner=learner) -> int:  # noqa: ANN001
            assert learner.update() is not None
            return 2 * params.iqn.batch_size

        variants[f"iqn {precision}"] = update_iqn
    return variants


def act_variants(params: Params, num_cars: int, device: torch.device = CPU) -> dict[str, Callable[[], int]]:
    """Returns forward passes by name; each returns how many decisions it made."""
    variants: dict[str, Callable[[], int]] = {}
    block = random_block(BlockSpec(1, num_cars, params.observation.height, params.observation.width, NUM_FLOATS), 0)
    image, floats = torch.from_numpy(block.image[0]), torch.from_numpy(block.floats[0])
    for algorithm in ("ppo", "iqn"):
        for precision in ACTING:
            actor = make_actor(agent_spec(params, algorithm, precision), 0, device)
            actor.set_moment(AFTER_WARMUP)

            def act(actor=actor) -> int:  # noqa: ANN001
                actor.act(image, floats, explore=True)
                return num_cars

            variants[f"{algorithm} {precision}, {num_cars} cars"] = act
    return variants


def measure(variants: dict[str, Callable[[], int]], num_tries: int, device: torch.device = CPU) -> dict[str, float]:
    """Returns samples per second of each variant, the best of interleaved tries."""
    best = dict.fromkeys(variants, 0.0)
    for attempt in range(num_tries + 1):
        for name, run in variants.items():
            start_s = time.perf_counter()
            num_samples = run()
            wait_for(device)
            if attempt:
                best[name] = max(best[name], num_samples / (time.perf_counter() - start_s))
    return best


def main() -> None:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--device", default=os.environ.get(DEVICE_VARIABLE, "cpu"), help="auto, cpu, cuda or mps")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    raise_malloc_thresholds()
    params, device = read_params(), choose_device(arguments.device).device
    rates = {"update": measure(update_variants(params, device), 4, device)}
    for num_cars in CARS if device == CPU else CARS_ON_DEVICE:
        rates[f"act {num_cars}"] = measure(act_variants(params, num_cars, device), 30, device)
    if (peak := peak_bytes(device)) is not None:
        rates["peak memory"] = {"GB": peak / 1e9}
    if arguments.json:
        print(json.dumps(rates))
        return
    print("samples/s")
    for group, variants in rates.items():
        print(f"\n{group}")
        for name, rate in variants.items():
            print(f"  {name:48s} {rate:12,.1f}")


if __name__ == "__main__":
    main()
