"""Data-loading overhead of pretraining: `python -m benchmarks.pretraining [--device cuda] [--json]`.

Training frames per second of wall time for Level 0 with every objective and for Level 1, through the stages' loop
(`rulka.pretraining.fit`): with batches read from shards in a temporary folder, and with the first batch repeated.
Sizes and precision are those of params.yaml; values are medians of interleaved rounds in random order.
"""

from __future__ import annotations

import argparse
import io
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.harness import show
from rulka.agents.shared.networks import build_clone_policy
from rulka.contracts.actions import action_table
from rulka.contracts.observation import reference_normalisation
from rulka.datasets.formats.frames import Batch, FrameDataset, Images
from rulka.machine.device import DEVICE_VARIABLE, choose_device, make_generator, wait_for
from rulka.machine.precision import raise_malloc_thresholds
from rulka.machine.progress import Progress
from rulka.params import Params, read_params
from rulka.pretraining.fit import TrainingTask, fit
from rulka.pretraining.objectives import OBJECTIVES, Objective, build_objective
from rulka.pretraining.params import FitParams
from tasks.capture import capture
from tasks.races import races

NUM_ROUNDS = 7
NUM_BATCHES = 8
NUM_DEMONSTRATIONS = 8
"""About 250 frames each: enough that no batch of a round is read twice."""

Round = Callable[[], int]
"""Trains on some batches and returns their number of frames."""
Setup = tuple[nn.Module, FitParams, Callable[..., Any], Callable[[Any], Tensor]]
"""Network, training parameters, iterator over an epoch's batches, and loss of a batch."""


def make_frames(params: Params, folder: Path) -> FrameDataset:
    """Captures races of the built-in driver and returns their training frames."""
    chosen = params.races.model_copy(update={"num_demonstrations": NUM_DEMONSTRATIONS, "reference_decisions": 0})
    (folder / "recordings").mkdir()
    params = params.model_copy(update={"races": chosen})
    races(params, recordings_dir=folder / "recordings", out_dir=folder / "races")
    capture(params, races_dir=folder / "races", out_dir=folder / "frames", runs_dir=folder / "runs")
    return FrameDataset(folder / "frames", "train")


def setups_of(params: Params, frames: FrameDataset, device: torch.device) -> dict[str, Setup]:
    """Returns the setups of every Level 0 objective, and of Level 1, by name."""
    found: dict[str, Setup] = {}
    for kind in OBJECTIVES:
        objective, generator = build_objective(kind(), params.encoder, params.observation), make_generator(device, 0)

        def rebuild(batch: Images, of: Objective = objective, generator: torch.Generator = generator) -> Tensor:
            return of.loss(batch.image, generator)

        found[kind().kind] = objective.to(device), params.pretrain, frames.iterate_images, rebuild
    sizes = params.observation, params.encoder, params.network
    num_actions = action_table(params.actions.ticks_per_action).num_actions
    policy = build_clone_policy(*sizes, reference_normalisation(), num_actions).to(device)
    share = torch.from_numpy(frames.action_share[:]).to(device)

    def imitate(batch: Batch) -> Tensor:
        return functional.cross_entropy(policy(batch.image, batch.floats), share[batch.number])

    return found | {"clone": (policy, params.clone, frames.iterate_batches, imitate)}


def rounds_of(setup: Setup) -> dict[str, Round]:
    """Returns two rounds of training: "read" reads its batches, "cached" repeats the first one."""
    network, params, iterate, loss = setup
    device = next(network.parameters()).device
    epochs = itertools.count()

    def read() -> Iterator[Any]:
        return iterate(seed=0, epoch=next(epochs), batch_size=params.batch_size)

    first = next(read())
    once = params.model_copy(update={"epochs": 1})

    def learn(batches: Callable[[], Iterator[Any]]) -> int:
        task = TrainingTask(lambda _: itertools.islice(batches(), NUM_BATCHES), loss, lambda: None)
        bar = Progress("", None, "frames", stream=io.StringIO())
        fit(network, once, NUM_BATCHES, task, bar)
        wait_for(device)
        return int(bar.done)

    return {"read": lambda: learn(read), "cached": lambda: learn(lambda: itertools.repeat(first))}


def median_rates(setups: dict[str, Setup]) -> dict[str, dict[str, float]]:
    """Returns median frames per second of wall time, read and cached, and their median ratio; rounds interleave."""
    rounds = {name: rounds_of(setup) for name, setup in setups.items()}
    rates: dict[str, list[dict[str, float]]] = {name: [] for name in rounds}
    rng = np.random.default_rng(0)
    for attempt in range(NUM_ROUNDS + 1):
        for name in rng.permutation([*rounds]).tolist():
            found = {}
            for which in rng.permutation([*rounds[name]]).tolist():
                start_s = time.perf_counter()
                num_frames = rounds[name][which]()
                found[which] = num_frames / (time.perf_counter() - start_s)
            if attempt:  # the first runs with cold caches
                rates[name].append(found | {"ratio": found["read"] / found["cached"]})
    return {name: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for name, rows in rates.items()}


def main() -> None:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", help=f"as {DEVICE_VARIABLE}; the CPU where neither is given")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    params = read_params()
    raise_malloc_thresholds()
    torch.manual_seed(0)
    device = choose_device(arguments.device or os.environ.get(DEVICE_VARIABLE, "cpu")).device
    with tempfile.TemporaryDirectory() as folder:
        frames = make_frames(params, Path(folder))
        rates = median_rates(setups_of(params, frames, device))
    facts = {"device": str(device), "batch": params.pretrain.batch_size}
    show(facts | {"frames_per_s": rates}, arguments.json)


if __name__ == "__main__":
    main()
