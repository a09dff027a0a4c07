"""What a step of learning costs beside its layers alone, for every fusion: `python -m benchmarks.fusions [--json]`.

PPO with the shipped settings, in small batches, on one thread of the CPU, in float32. The layers alone make the same
passes through the same network, forward and back with Adam, with a sum in place of every loss, and nothing else. Both
are interleaved and the best of some tries is taken.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.agents import agent_spec, measure, random_block
from models.encoders.config import ENCODER_CONFIG
from rulka.agents.algorithms import make_learner
from rulka.agents.precision import raise_malloc_thresholds
from rulka.buffers.experience import BlockSpec
from rulka.observation import NUM_FLOATS
from rulka.params import Params, read_params

NUM_TRIES = 4
BATCH = 128
BLOCKS = {"width": 64, "depth": 1, "heads": 4}
CONV = {"kind": "conv", "adaptive_pool": 0}
VIT: dict[str, Any] = {"model_type": "vit", "image_size": 64, "patch_size": 16, "hidden_size": 64}
VIT |= {"num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 256}
BACKBONE: dict[str, Any] = {"kind": "backbone", "source": {"kind": "architecture", "config": VIT}, "pixels": 64}
BACKBONE |= {"token": "cls", "architecture": VIT, "image": {"pixels": 64, "mean": [0.5] * 3, "std": [0.5] * 3}}
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "A: conv, concat": (CONV, {"kind": "concat"}),
    "B: backbone, projected": (BACKBONE, {"kind": "projected"}),
    "C: conv, fused vector": (CONV, {"kind": "fused_vector", "tokens": 8, **BLOCKS}),
    "C: conv, a token for each float": (
        CONV,
        {"kind": "token_sequence", "image": "one", "floats": {"kind": "each"}, **BLOCKS},
    ),
    "C: unified": (
        {"kind": "patches", "patch": 16, "width": 64, "depth": 0, "heads": 4},
        {"kind": "token_sequence", "image": "all", "floats": {"kind": "raw", "tokens": 4}, **BLOCKS},
    ),
}
"""Encoder and fusion, with the letters of the specification."""


def updates(params: Params, encoder: dict[str, Any], fusion: dict[str, Any]) -> dict[str, Callable[[], int]]:
    """Returns an update of PPO and its layers alone; each returns how many samples it learned from."""
    network = params.network.model_validate(params.network.model_dump() | {"fusion": fusion})
    epochs, encoder_epochs = params.ppo.epochs, params.ppo.encoder_epochs
    changed = params.model_copy(update={"network": network, "encoder": ENCODER_CONFIG.validate_python(encoder)})
    size = (params.observation.height, params.observation.width)
    block = random_block(BlockSpec(2 * BATCH // 32, 32, *size, NUM_FLOATS), 0)
    settings = {
        "batch_size": BATCH,
        "steps_per_update": 2 * BATCH,
        "value_warmup_steps": 0,
        "max_kl": 1e9,
        "max_versions_behind": 9,
    }
    learner = make_learner(agent_spec(changed, "ppo", "float32", **settings))
    image = torch.from_numpy(block.image).flatten(0, 1)
    floats = torch.from_numpy(block.floats).flatten(0, 1)

    def learn() -> int:
        learner.insert(block, 0, learner.version)
        assert learner.update() is not None
        return 2 * BATCH * epochs

    alone: Any = make_learner(agent_spec(changed, "ppo", "float32")).network
    optimizer = torch.optim.Adam(alone.parameters(), lr=1e-4, fused=True)

    def step(decide: Callable[[Tensor, Tensor], Any], seen: Tensor, floats: Tensor) -> None:
        decided = decide(seen, floats)
        optimizer.zero_grad(set_to_none=True)
        (decided.outputs.sum() + decided.value.sum()).backward()
        optimizer.step()

    def run_layers() -> int:
        with torch.no_grad():
            encoded = torch.cat([alone.encode(part) for part in image.split(BATCH)])
            alone.decide(encoded, floats)
        for epoch in range(epochs):
            has_encoder = epoch >= epochs - encoder_epochs
            for rows in torch.arange(2 * BATCH).split(BATCH):
                step(alone if has_encoder else alone.decide, (image if has_encoder else encoded)[rows], floats[rows])
        return 2 * BATCH * epochs

    return {"learner": learn, "layers alone": run_layers}


def main() -> None:
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    raise_malloc_thresholds()
    params = read_params()
    rates = {name: measure(updates(params, *given), NUM_TRIES) for name, given in VARIANTS.items()}
    if arguments.json:
        print(json.dumps(rates))
        return
    print(f"{'samples/s':34s} {'learner':>10s} {'layers':>10s} {'ratio':>6s}")
    for name, rate in rates.items():
        ratio = rate["layers alone"] / rate["learner"]
        print(f"{name:34s} {rate['learner']:10,.0f} {rate['layers alone']:10,.0f} {ratio:6.2f}")


if __name__ == "__main__":
    main()
