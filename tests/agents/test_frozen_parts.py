"""A part that does not learn stays as it is, to the bit, and all others move, with every fusion."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rulka.agents.algorithms import ALGORITHMS, make_actor, make_learner
from rulka.params import ALGORITHM_NAMES

BLOCKS = {"width": 16, "depth": 1, "heads": 2}
FUSIONS = {
    "concat": {"kind": "concat"},
    "projected": {"kind": "projected"},
    "fused vector": {"kind": "fused_vector", "tokens": 3, **BLOCKS},
    "each float": {"kind": "token_sequence", "image": "one", "floats": {"kind": "each"}, **BLOCKS},
    "unified": {"kind": "token_sequence", "image": "all", "floats": {"kind": "raw", "tokens": 2}, **BLOCKS},
}
PATCHES = {"kind": "patches", "patch": 17, "width": 16, "depth": 0, "heads": 2}


@pytest.mark.parametrize("algorithm", ALGORITHM_NAMES)
@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("part", ["encoder", "float_head", "trunk", "heads"])
def test_a_frozen_part_stays_and_the_others_learn(lab, races, part, fusion, algorithm):
    extras = {"fusion": FUSIONS[fusion]} | ({"encoder": PATCHES} if fusion == "unified" else {})
    frozen = {"rate_of": lab.spec(algorithm).settings.rate_of.model_dump() | {part: lab.constant(0.0)}}
    decay = {"weight_decay": 0.1, "gradient_steps_per_update": 2} if algorithm == "iqn" else {}
    spec = lab.spec(algorithm, extras, **frozen, **decay)
    learner, actor, rng = make_learner(spec, 0), make_actor(spec, 1), np.random.default_rng(0)
    before = {name: tensor.clone() for name, tensor in learner.network.named_parameters()}
    while learner.version < 2:
        block = races.drive(actor)
        block.image[...] = rng.integers(0, 256, block.image.shape)
        learner.insert(block, 0, learner.version)
        learner.update()
    kept = {name for name, tensor in learner.network.named_parameters() if torch.equal(tensor, before[name])}
    without_value = ("value_head.",) if algorithm in {"grpo", "dpo"} else ()  # which nothing teaches there
    assert kept == {name for name in before if name.startswith((*ALGORITHMS[algorithm].parts[part], *without_value))}
    assert any(name.startswith("fusion.") for name in before) == (fusion != "concat")
