"""A part that does not learn stays as it is, to the bit, and all others move, with every fusion."""

from __future__ import annotations

import copy
from itertools import product

import numpy as np
import pytest
import torch

from rulka.agents.algorithms import ALGORITHMS, make_actor, make_learner
from rulka.agents.params import ALGORITHM_NAMES, CriticParams, PolicyParams

BLOCKS = {"width": 16, "depth": 1, "heads": 2}
FUSIONS = {
    "concat": {"kind": "concat"},
    "projected": {"kind": "projected"},
    "fused vector": {"kind": "fused_vector", "tokens": 3, **BLOCKS},
    "each float": {"kind": "token_sequence", "image": "one", "floats": {"kind": "each"}, **BLOCKS},
    "unified": {"kind": "token_sequence", "image": "all", "floats": {"kind": "raw", "tokens": 2}, **BLOCKS},
}
PATCHES = {"kind": "patches", "patch": 17, "width": 16, "depth": 0, "heads": 2}


PARTS = ("encoder", "float_head", "trunk", "heads")


@pytest.mark.parametrize("algorithm", ALGORITHM_NAMES)
def test_a_frozen_part_stays_and_the_others_learn(lab, races, algorithm):
    """Every algorithm with every part; all of them together with every part of every fusion."""
    turn = ALGORITHM_NAMES.index(algorithm)
    chosen = [
        (fusion, part)
        for (k, fusion), (n, part) in product(enumerate(FUSIONS), enumerate(PARTS))
        if (k + n + turn) % len(FUSIONS) == 0
    ]
    assert {part for _, part in chosen} == set(PARTS)
    wrong = {pair: said for pair in chosen if (said := problem(lab, copy.deepcopy(races), *pair, algorithm))}
    assert not wrong


def problem(lab, races, fusion, part, algorithm) -> str:
    """Returns what is wrong after two updates with a frozen part, if anything."""
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
    is_taught = not isinstance(spec.settings, PolicyParams) or isinstance(spec.settings, CriticParams)
    without_value = () if is_taught else ("value_head.",)
    expected = {name for name in before if name.startswith((*ALGORITHMS[algorithm].parts[part], *without_value))}
    if any(name.startswith("fusion.") for name in before) != (fusion != "concat"):
        return f"its parts are {sorted(before)}"
    return "" if kept == expected else f"moved {sorted(expected - kept)}, stood still {sorted(kept - expected)}"
