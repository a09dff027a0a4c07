"""Every algorithm goes on from a checkpoint to the bit and without pickle; a frozen part stays and all others move."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch

from rulka.agents.algorithms import actor_class, make_learner
from rulka.agents.params import ALGORITHMS
from rulka.agents.shared.params import CriticParams, PolicyParams
from rulka.buffers.experience import StoredExperience
from tests.agents.conftest import (
    MUNCHAUSEN,
    Races,
    Step,
    changed,
    constant,
    learner_and_actor,
    small_spec,
    weights,
)

EVERYTHING = {
    "use_double_dqn": False,
    "munchausen": MUNCHAUSEN,
    "held_out_share": 0.2,
    "target_every": 3,
    "batch_size": 8,
    "gradient_steps_per_update": 2,
}
BTR = {
    "encoder": {"kind": "impala", "width": 1, "adaptive_pool": 2, "spectral_norm": True},
    "layer_norm": True,
    "noisy_sigma": 0.5,
}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    **{name: (name, {}, {"racer_tau": 0.25}) for name in ALGORITHMS},
    "iqn with everything": ("iqn", BTR, EVERYTHING),
}


@pytest.mark.parametrize("case", CASES)
def test_resume_is_exact_and_needs_no_pickle(case):
    """In the midst of races of eleven decisions, of which groups of four begin alike."""
    algorithm, extras, changes = CASES[case]
    spec = small_spec(algorithm, extras, **changes)
    races = Races(lambda state, action: Step(float(action), state + 1, "terminated" if state == 10 else ""))
    races.deal(4)
    learner, actor = learner_and_actor(spec)
    blocks = [races.drive(actor) for _ in range(6)]
    for block in blocks[:2]:
        learner.insert(block, 0, 0)
    learner.update()
    learner.insert(blocks[2], 0, 0)
    experience, file = learner.experience(), io.BytesIO()
    torch.save({"learner": learner.state_dict(), "experience": experience.state}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = make_learner(spec, seed=0 if "held_out_share" in changes else 99)  # which races are held out, it says
    resumed.load_state_dict(saved["learner"])
    resumed.load_experience(StoredExperience(saved["experience"], copy.deepcopy(dict(experience.pieces))))
    assert resumed.num_allowed_env_steps() == learner.num_allowed_env_steps()
    found = []
    for one in (learner, resumed):
        for block in blocks[3:]:
            one.insert(block, 0, 1)
        metrics = one.update()
        # What optimizers hold shows in the weights; they name their parts by strings, which are not compared.
        state = {name: value for name, value in one.state_dict().items() if name not in ("optimizer", "policy")}
        found.append((metrics, state, dict(one.racer.state_dict())))
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_initial_weights_reach_all_that_starts_as_their_copy(algorithm):
    """The average that races, the initial policy of a penalty, and the networks that give targets."""
    has_penalty = "initial_kl_weight" in ALGORITHMS[algorithm].model_fields
    changes = {"racer_tau": 0.25} | ({"initial_kl_weight": constant(0.1)} if has_penalty else {})
    learner, other = (make_learner(small_spec(algorithm, **changes), seed=seed) for seed in (0, 1))
    given = other.network.state_dict()
    learner.load_network(given)
    network, racer = learner.network, learner.racer
    copies = [racer, *(each for each in vars(learner).values() if isinstance(each, type(network)))]
    expected = 3 if has_penalty or algorithm in ("dpo", "iqn", "pql") else 2
    assert (racer is network, len(copies)) == (False, expected)
    for each in copies:
        torch.testing.assert_close(each.state_dict(), given, rtol=0, atol=0)


TOKENS = {"kind": "token_sequence", "image": "all", "floats": {"kind": "raw", "tokens": 2}}
UNIFIED = {
    "encoder": {"kind": "patches", "patch": 17, "width": 16, "depth": 0, "heads": 2},
    "fusion": TOKENS | {"width": 16, "depth": 1, "heads": 2},
}


@pytest.mark.parametrize("part", ["encoder", "float_head", "trunk", "heads", "fusion", "value"])
@pytest.mark.parametrize(("algorithm", "extras"), [*((name, {}) for name in ALGORITHMS), ("ppo", UNIFIED)])
def test_a_frozen_part_stays_and_the_others_learn(races, algorithm, extras, part):
    """In two updates."""
    frozen = {"rate_of": small_spec(algorithm).params.rate_of.model_dump() | {part: constant(0.0)}}
    decay = {"weight_decay": 0.1, "gradient_steps_per_update": 2} if algorithm == "iqn" else {}
    spec = small_spec(algorithm, extras, **frozen, **decay)
    learner, actor = learner_and_actor(spec)
    before = {name: tensor.clone() for name, tensor in learner.network.named_parameters()}
    while learner.version < 2:
        learner.insert(races.drive(actor), 0, learner.version)
        learner.update()
    kept = {name for name, tensor in learner.network.named_parameters() if torch.equal(tensor, before[name])}
    is_taught = not isinstance(spec.params, PolicyParams) or isinstance(spec.params, CriticParams)
    without_value = () if is_taught else ("value_head.",)
    beginnings = {"fusion": ("fusion.",), "value": ("value_head.",)} | actor_class(algorithm).parts
    assert kept == {name for name in before if name.startswith((*beginnings[part], *without_value))}


def test_a_part_that_was_frozen_learns_from_its_moment_on(races):
    """Blocks of 256 decisions, one for each update: the encoder stands still in the first alone."""
    later = {"interpolation": "staircase", "points": [[0, 0.0], [300, 1.0]]}
    rates = small_spec("ppo").params.rate_of.model_dump() | {"encoder": later}
    learner, actor = learner_and_actor(small_spec("ppo", rate_of=rates))
    moved = []
    for version in range(2):
        before = weights(learner)
        learner.insert(races.drive(actor), 0, version)
        learner.update()
        moved.append("encoder" in changed(before, weights(learner)))
    assert moved == [False, True]
