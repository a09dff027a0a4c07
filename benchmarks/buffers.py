"""How fast replay gives batches, and how much memory it takes: `python -m benchmarks.buffers [--json]`.

512 transitions of 64 x 64 images and 184 floats out of 20,000 decisions, sampled and collated, on one thread. Variants
are interleaved in one run; the median CPU time of a batch is given. `rulka` also places each transition in a mini-race
and looks up to three decisions ahead; the others only copy what they stored:

- torchrl: `TensorDictReplayBuffer` over `LazyTensorStorage`, its default, with both images in every entry.
- peer: a list of objects, one for each transition, each attribute stacked by numpy when a batch is collated. This is
  what Linesight and the public rulka do (torchrl's `ListStorage` and their collate function).
- cpprb: its `ReplayBuffer` and `PrioritizedReplayBuffer`, where it is installed (it is no dependency).
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from rulka.agents.iqn import CLOCK, draw_clocks, mini_race_returns
from rulka.agents.precision import raise_malloc_thresholds
from rulka.buffers.experience import BlockSpec, ExperienceBlock, new_block
from rulka.buffers.replay import Replay, make_batch
from rulka.device import CPU
from rulka.observation import NUM_FLOATS

BATCH = 512
NUM_DECISIONS = 20_480
SPEC = BlockSpec(num_steps=64, num_cars=32, height=64, width=64, num_floats=NUM_FLOATS)
HORIZON = 140
NUM_ROUNDS = 40

Variants = dict[str, Callable[[], object]]


def random_blocks() -> list[ExperienceBlock]:
    """Returns blocks of noise, one decision in fifty a reset."""
    rng = np.random.default_rng(0)
    blocks = []
    for _ in range(NUM_DECISIONS // (SPEC.num_steps * SPEC.num_cars)):
        block = new_block(SPEC)
        block.image[...] = rng.integers(0, 256, block.image.shape, dtype=np.uint8)
        block.floats[...] = rng.standard_normal(block.floats.shape, dtype=np.float32)
        block.reward[...] = rng.standard_normal(block.reward.shape, dtype=np.float32)
        block.is_greedy[...] = rng.random(block.is_greedy.shape) < 0.95
        block.is_reset[...] = rng.random(block.is_reset.shape) < 0.02
        blocks.append(block)
    return blocks


def filled(blocks: list[ExperienceBlock], priority: tuple[float, float] | None = None) -> Replay:
    """Returns a replay that holds all blocks, with the alpha and epsilon of priorities where it has any."""
    replay = Replay(NUM_DECISIONS, 3, CPU, torch.Generator().manual_seed(0), priority=priority)
    for block in blocks:
        replay.insert(block, 0)
    if replay.sampler is not None:
        replay.sampler.beta = 0.4
    return replay


def our_variants(uniform: Replay, prioritised: Replay) -> Variants:
    """Returns our own ways to draw a batch."""
    errors = torch.from_numpy(np.random.default_rng(0).random(BATCH).astype(np.float32))

    def sample(replay: Replay) -> torch.Tensor:
        drawn = replay.draw(BATCH)
        clock = draw_clocks(torch.rand(BATCH, dtype=torch.float64).numpy(), HORIZON)
        drawn.floats[:, CLOCK] = torch.from_numpy(clock)
        drawn.next_floats[:, CLOCK] = torch.from_numpy(clock + drawn.found.num_steps)
        make_batch(drawn, mini_race_returns(drawn.found, clock, 0.99, HORIZON), CPU)
        return drawn.row

    return {
        "rulka uniform": lambda: sample(uniform),
        "rulka prioritised": lambda: sample(prioritised),
        "rulka prioritised, with update": lambda: prioritised.update_priorities(sample(prioritised), errors),
    }


def transitions_of(blocks: list[ExperienceBlock]) -> dict[str, np.ndarray]:
    """Returns single-decision transitions as arrays with one row each, as other buffers take them."""

    def rows(name: str, start: int, end: int | None) -> np.ndarray:
        arrays = [getattr(block, name)[start:end] for block in blocks]
        return np.concatenate([array.reshape(-1, *array.shape[2:]) for array in arrays])

    return {
        "image": rows("image", 0, -1),
        "floats": rows("floats", 0, -1),
        "next_image": rows("image", 1, None),
        "next_floats": rows("floats", 1, None),
        "action": rows("action", 0, None).astype(np.int64),
        "reward": rows("reward", 0, None),
        "done": rows("terminated", 0, None),
    }


def torchrl_variant(transitions: dict[str, np.ndarray]) -> Variants:
    """Returns torchrl's default buffer."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(NUM_DECISIONS), batch_size=BATCH)
    tensors = {name: torch.from_numpy(array) for name, array in transitions.items()}
    buffer.extend(TensorDict(tensors, batch_size=[NUM_DECISIONS]))
    return {"torchrl default": buffer.sample}


def peer_variant(transitions: dict[str, np.ndarray]) -> Variants:
    """Returns a list of objects, stacked attribute by attribute."""
    entries = [
        SimpleNamespace(**{name: array[row] for name, array in transitions.items()}) for row in range(NUM_DECISIONS)
    ]
    rng = np.random.default_rng(0)

    def sample() -> object:
        chosen = [entries[row] for row in rng.integers(0, NUM_DECISIONS, BATCH)]
        return [torch.from_numpy(np.stack([getattr(entry, name) for entry in chosen])) for name in transitions]

    return {"peer: objects, np.stack": sample}


def cpprb_variants(transitions: dict[str, np.ndarray]) -> Variants:
    """Returns cpprb's buffers, or nothing where cpprb is not installed."""
    try:
        cpprb: Any = importlib.import_module("cpprb")
    except ImportError:
        return {}
    layout = {name: {"shape": array.shape[1:] or 1, "dtype": array.dtype} for name, array in transitions.items()}
    uniform = cpprb.ReplayBuffer(NUM_DECISIONS, layout)
    prioritised = cpprb.PrioritizedReplayBuffer(NUM_DECISIONS, layout, alpha=0.6)
    for buffer in (uniform, prioritised):
        buffer.add(**transitions)
    return {
        "cpprb uniform": lambda: uniform.sample(BATCH),
        "cpprb prioritised": lambda: prioritised.sample(BATCH, beta=0.4),
    }


def median_ms(variants: Variants) -> dict[str, float]:
    """Returns the median CPU milliseconds of a call of each variant, interleaved.

    Each round has another order: what ran just before decides how much of the memory is in the caches.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    rng = np.random.default_rng(0)
    for attempt in range(NUM_ROUNDS + 2):
        for name in rng.permutation([*variants]).tolist():
            start_s = time.process_time()
            variants[name]()
            if attempt >= 2:  # compiled, and caches warm
                times[name].append(1000.0 * (time.process_time() - start_s))
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    raise_malloc_thresholds()  # as learners do
    blocks = random_blocks()
    uniform = filled(blocks)
    transitions = transitions_of(blocks)
    variants = (
        our_variants(uniform, filled(blocks, (0.6, 0.002))) | torchrl_variant(transitions) | peer_variant(transitions)
    )
    times = median_ms(variants | cpprb_variants(transitions))
    ring = uniform.ring
    ours = sum(array.nbytes for array in (*ring.arrays, *ring.seen.values())) / uniform.num_rows
    others = sum(array.nbytes for array in transitions.values()) / NUM_DECISIONS
    if arguments.json:
        print(json.dumps({"batch": BATCH, "cpu_ms": times, "bytes": {"rulka": ours, "others": others}}))
        return
    print(f"{BATCH} transitions sampled and collated\n{'':34s} {'CPU ms':>8s} {'of ours':>8s}")
    for name, value in times.items():
        print(f"  {name:32s} {value:8.3f} {value / times['rulka uniform']:8.2f}")
    print(f"\nbytes a transition: rulka {ours:,.0f}, others {others:,.0f}")


if __name__ == "__main__":
    main()
