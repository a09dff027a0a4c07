"""A learner goes on from a checkpoint as if nothing had been, to the bit, and without pickle."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch

from rulka.agents.algorithms import make_learner
from rulka.agents.params import ALGORITHM_NAMES
from rulka.buffers.experience import Experience
from tests.agents.conftest import MUNCHAUSEN, learner_and_actor

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
    **{name: (name, {}, {"racer_tau": 0.25}) for name in ALGORITHM_NAMES},
    "iqn with everything": ("iqn", BTR, EVERYTHING),
}


@pytest.mark.parametrize("case", CASES)
def test_resume_is_exact_and_needs_no_pickle(lab, step, case):
    """In the midst of races of eleven decisions, of which groups of four begin alike."""
    algorithm, extras, changes = CASES[case]
    spec = lab.spec(algorithm, extras, **changes)
    races = lab.races(lambda state, action: step(float(action), state + 1, "terminated" if state == 10 else ""))
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
    resumed.load_experience(Experience(saved["experience"], copy.deepcopy(dict(experience.pieces))))
    assert resumed.num_allowed_env_steps() == learner.num_allowed_env_steps()
    found = []
    for one in (learner, resumed):
        for block in blocks[3:]:
            one.insert(block, 0, 1)
        metrics = one.update()
        assert metrics is not None
        # What optimizers hold shows in the weights; they name their parts by strings, which are not compared.
        state = {name: value for name, value in one.state_dict().items() if name not in ("optimizer", "policy")}
        found.append((metrics, state, dict(one.racer.state_dict())))
    torch.testing.assert_close(*found, rtol=0, atol=0)
