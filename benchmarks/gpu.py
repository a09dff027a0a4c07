"""The whole table of a GPU in docs/performance.md, in at most six minutes: `python -m benchmarks.gpu [--out FILE]`.

It prints the table and writes it as JSON. Each part is a process of its own, so that a part that fails or is stopped at
its limit takes no other with it; what it measured until then is kept.

- correctness: float32 on the device beside the CPU, as a relative difference; at most `TOLERANCE`, or it says so.
- update, reference, acting: samples or decisions per second, see `benchmarks.agents`.
- end to end: environment steps per second of a training, see `benchmarks.runtime`.
- levels: frames per second of Levels 0 and 1, see `benchmarks.pretraining`.

A bare machine needs an NVIDIA driver, Python 3.11 or 3.12, `pip install torch==2.13.0` from the index of its CUDA (as
pytorch.org/get-started says), then `pip install -e .` here. It needs no data: tracks, races and weights are made.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.agents import (
    ACT_TRIES,
    CARS_ON_DEVICE,
    NUM_QUANTILES,
    REFERENCE_BATCHES,
    agent_spec,
    decisions,
    iqn_learner,
    iqn_updates,
    peak_bytes,
    ppo_updates,
    random_block,
    reference_params,
)
from benchmarks.harness import Variants, best_rates, show
from benchmarks.pretraining import make_frames, median_rates, setups_of
from benchmarks.runtime import together
from models.iqn import fixed_fractions
from rulka.agents.algorithms import make_learner
from rulka.agents.iqn.learner import quantile_huber_loss, target_quantiles
from rulka.agents.iqn.params import IqnParams
from rulka.machine.device import CPU, choose_device, on_host, wait_for
from rulka.machine.errors import UserError
from rulka.machine.precision import raise_malloc_thresholds
from rulka.machine.processes import end_group, start_group
from rulka.params import Params, read_params
from rulka.tracks.generate import generate_track

TOLERANCE = 1e-3
"""Largest relative difference between float32 on two devices: sums are of other order, TF32 is off."""
TRIES, TRAIN_S = 20, 12.0
MARK = "measured: "
"""Begins each line with figures in the output of a part."""
GRACE_S, LAST_LINES = 2.0, 5
"""Time that a part has to end after its limit; lines of output that are shown of one that failed."""
Found = Iterator[dict[str, Any]]


def correctness(params: Params, device: torch.device) -> Found:
    """Yields relative differences of the device's numbers."""
    for name, compute in {"iqn, gradient": _iqn_gradient, "ppo, metrics": _ppo_metrics}.items():
        here, there = compute(params, CPU), compute(params, device)
        yield {name: _judged(float((there - here).norm() / here.norm()))}


def _judged(difference: float) -> str:
    return f"{difference:.1e}{'' if difference <= TOLERANCE else f', more than {TOLERANCE}'}"


def _iqn_gradient(params: Params, device: torch.device) -> Tensor:
    """Returns the gradient of IQN's loss for the first batch, at fixed fractions."""
    learner, tau = iqn_learner(params, "float32", device), fixed_fractions(NUM_QUANTILES).to(device)
    batch, settings = learner.sample(), params.algorithms["iqn"]
    assert isinstance(settings, IqnParams)
    target = target_quantiles(learner.network, learner.target, batch, tau, tau, settings)
    quantile = learner.network.quantiles_of_action(batch.image, batch.floats, tau, batch.action)
    quantile_huber_loss(quantile, tau, target, settings.kappa).sum().backward()
    gradients = [weight.grad.flatten() for weight in learner.network.parameters() if weight.grad is not None]
    return on_host(torch.cat(gradients))[0]


def _ppo_metrics(params: Params, device: torch.device) -> Tensor:
    """Returns metrics of an update of one gradient step, whose batch is all there is."""
    block, size = random_block(params, 32, 16), 32 * 16
    settings = {"steps_per_update": size, "batch_size": size, "epochs": 1, "encoder_epochs": 1, "value_warmup_steps": 0}
    learner = make_learner(agent_spec(params, "ppo", "float32", **settings), 0, device)
    learner.insert(block, 0, 0)
    metrics = learner.update()
    assert metrics is not None
    return torch.tensor([metrics[name] for name in ("loss", "policy_loss", "value_loss", "entropy", "grad_norm")])


def _rates(variants: Variants, num_tries: int, device: torch.device) -> dict[str, float]:
    return best_rates(variants, num_tries, wait=partial(wait_for, device))


def update(params: Params, device: torch.device) -> Found:
    """Yields the rates of updates at default sizes."""
    for updates in (iqn_updates, ppo_updates):
        yield _rates(updates(params, device), TRIES, device)


def reference(params: Params, device: torch.device) -> Found:
    """Yields the rates of updates of IQN's reference network."""
    del params
    for batch in REFERENCE_BATCHES:
        updates = iqn_updates(reference_params(), device, batch_size=batch, num_quantiles=NUM_QUANTILES)
        yield {f"batch {batch}": _rates(updates, TRIES, device)}


def acting(params: Params, device: torch.device) -> Found:
    """Yields the rates of decisions, from one car to many."""
    for num_cars in CARS_ON_DEVICE:
        yield {f"{num_cars} cars": _rates(decisions(params, num_cars, device), ACT_TRIES, device)}


def end_to_end(params: Params, device: torch.device) -> Found:
    """Yields environment steps per second, with two collectors and with one on each core that is left."""
    at_once = params.algorithms["ppo"].model_copy(update={"value_warmup_steps": 0})
    params = params.model_copy(update={"ppo": at_once})
    with tempfile.TemporaryDirectory() as folder:
        track = Path(folder) / "track.npz"
        generate_track(**params.track.model_dump()).save(track)
        for num_collectors in sorted({2, max(2, (os.cpu_count() or 1) - 2)}):
            for algorithm in ("iqn", "ppo"):
                found = together(params, track, algorithm, num_collectors, TRAIN_S, device)
                yield {f"{algorithm}, {num_collectors} collectors": found}


def levels(params: Params, device: torch.device) -> Found:
    """Yields frames per second of Levels 0 and 1."""
    with tempfile.TemporaryDirectory() as folder:
        frames = make_frames(params, Path(folder))
        for name, setup in setups_of(params, frames, device).items():
            yield median_rates({name: setup})


PARTS: dict[str, tuple[float, Callable[[Params, torch.device], Found]]] = {
    "update": (60.0, update),
    "end to end": (110.0, end_to_end),
    "correctness": (30.0, correctness),
    "acting": (40.0, acting),
    "reference": (40.0, reference),
    "levels": (70.0, levels),
}
"""Parts with their limits in seconds, start included, the most wanted ones first; 350 s together."""


def measure(part: str, device: str, limit_s: float) -> dict[str, Any]:
    """Runs a part in a process of its own; returns what it had measured at its end or at its limit."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", device, "--part", part]
    with tempfile.TemporaryFile() as said:
        process = start_group(command, os.environ, said)
        with suppress(subprocess.TimeoutExpired):
            process.wait(limit_s)
        code = process.poll()
        end_group(process, GRACE_S)  # its collectors too
        said.seek(0)
        lines = said.read().decode(errors="replace").splitlines()
    found: dict[str, Any] = {}
    for line in lines:
        if line.startswith(MARK):
            found |= json.loads(line.removeprefix(MARK))
    if notes := [line for line in lines if line.startswith("device: ")]:
        found["notes"] = "; ".join(notes)
    if code is None:
        found["ended"] = f"at its limit of {limit_s:g} s"
    elif code:
        found["ended"] = f"with exit code {code}: {' / '.join(lines[-LAST_LINES:])}"
    return found


def main() -> None:
    """Prints the table, or one JSON object, and writes it; with `--part`, prints what it measured line by line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu to see what it does")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu.json"), help="file to write")
    parser.add_argument("--limits", type=float, default=1.0, help="factor on the limits of all parts")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--part", choices=PARTS, help="measure this part alone, in this process")
    arguments = parser.parse_args()
    try:
        chosen = choose_device(arguments.device)
    except UserError as error:
        sys.exit(f"error: {error}\n{error.hint}")
    if arguments.part is not None:
        torch.set_num_threads(1)
        raise_malloc_thresholds()
        for found in PARTS[arguments.part][1](read_params(), chosen.device):
            print(MARK + json.dumps(found), flush=True)
        if (peak := peak_bytes(chosen.device)) is not None:
            print(MARK + json.dumps({"peak memory, GB": peak / 1e9}), flush=True)
        return
    table: dict[str, Any] = {"device": f"{chosen.device} ({chosen.why})", "torch": torch.__version__}
    for part, (limit_s, _) in PARTS.items():
        table[part] = measure(part, arguments.device, arguments.limits * limit_s)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    show(table, arguments.json)


if __name__ == "__main__":
    main()
